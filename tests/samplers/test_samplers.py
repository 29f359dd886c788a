import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearkin.samplers import BalancedSampler, RandomSampler
from nearkin.samplers.sampler import FairStream


@given(count=st.integers(1, 12), group=st.integers(1, 15), seed=st.integers(0, 5), groups=st.integers(1, 40))
def test_a_stream_is_fair_at_every_moment(count, group, seed, groups):
    stream = FairStream(count, group, seed=seed)
    seen = np.zeros(count, dtype=int)
    for number in range(groups):
        items = stream[number]
        assert len(items) == group
        if group <= count:
            assert len(set(items.tolist())) == group
        for item in items:
            seen[item] += 1
            assert seen.max() - seen.min() <= 2  # at a seam the moved-back items may come once more before the rest
        if (number + 1) * group % count == 0:
            assert seen.max() == seen.min()


@given(count=st.integers(1, 12), group=st.integers(1, 12), number=st.integers(0, 60))
def test_a_group_is_a_function_of_its_number(count, group, number):
    walked = FairStream(count, group, seed=3)
    for earlier in range(number):
        walked[earlier]
    assert walked[number].tolist() == FairStream(count, group, seed=3)[number].tolist()


def test_random_batches_cover_an_epoch_once():
    sampler = RandomSampler(10, batch_size=3, seed=1)
    assert sampler.batches_per_epoch == 3
    first = np.concatenate([sampler.next_batch() for _ in range(3)])
    second = np.concatenate([sampler.next_batch() for _ in range(3)])
    assert len(set(first.tolist())) == 9
    assert first.tolist() != second.tolist()


def test_a_random_batch_is_never_larger_than_the_data():
    sampler = RandomSampler(5, batch_size=100, seed=0)
    assert sorted(sampler.next_batch().tolist()) == [0, 1, 2, 3, 4]
    assert sampler.batches_per_epoch == 1


@given(
    sizes=st.lists(st.integers(1, 7), min_size=2, max_size=8),
    classes=st.integers(1, 5),
    images=st.integers(1, 4),
    seed=st.integers(0, 3),
)
def test_balanced_batches_are_balanced_and_fair(sizes, classes, images, seed):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    labels = np.random.default_rng(seed).permutation(labels)
    sampler = BalancedSampler(labels, batch_size=classes * images, images_per_class=images, seed=seed)
    turns = np.zeros(len(sizes), dtype=int)
    seen = np.zeros(len(labels), dtype=int)
    for _ in range(30):
        rows = sampler.next_batch()
        found, counts = np.unique(labels[rows], return_counts=True)
        assert len(found) == min(classes, len(sizes))
        assert (counts == images).all()
        turns[found] += 1
        np.add.at(seen, rows, 1)
        for label in found:
            mine = rows[labels[rows] == label]
            if sizes[label] >= images:
                assert len(set(mine.tolist())) == images, "no image twice in a batch unless the class is too small"
    assert turns.max() - turns.min() <= 1
    for label in range(len(sizes)):
        own = seen[labels == label]
        assert own.max() - own.min() <= max(1, -(-images // sizes[label]))


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="multiple of images_per_class"):
        BalancedSampler(np.array([0, 1]), batch_size=5, images_per_class=2, seed=0)
    with pytest.raises(ValueError, match="at least 1"):
        RandomSampler(0, batch_size=5, seed=0)
