"""Class representatives: held as long as promised, fair, never their own example; and the nearest classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkin.samplers.class_representatives import ClassRepresentativeSampler
from nearkin.samplers.sampler import generator

SIZES = [3, 1, 5, 2, 4, 4, 3]
LABELS = np.repeat(np.arange(len(SIZES)), SIZES)


def sampler_for(labels=LABELS, *, classes=3, images=3, seed=5, **options):
    return ClassRepresentativeSampler(
        labels, batch_size=classes * images, images_per_class=images, seed=seed, **options
    )


def split(labels, rows, classes):
    """Representatives and, for each class of the batch in order, its examples."""
    heads, tails = rows[:classes], rows[classes:].reshape(classes, -1)
    assert (labels[tails] == labels[heads][:, None]).all(), "examples are grouped in the representatives' order"
    return heads, tails


def test_batches_equal_a_plain_script():
    """Every draw written out with lists: shuffled rounds of classes, of representatives and of examples."""
    seed, classes, per_class, held = 5, 3, 3, 4
    images = [rows.tolist() for rows in np.split(np.arange(len(LABELS)), np.cumsum(SIZES)[:-1])]

    class_queue, example_queues = [], [[] for _ in SIZES]
    class_rounds, example_rounds = 0, [0] * len(SIZES)
    representatives = [None] * len(SIZES)
    waiting = [[] for _ in SIZES]
    rounds = [0] * len(SIZES)

    def in_rounds(queue, count, group, stream, done):
        """Take a group off the queue; a used-up round is followed by the next, what the group holds kept back."""
        taken = []
        while len(taken) < group:
            if not queue:
                order = generator(seed, *stream, done).permutation(count).tolist()
                done += 1
                if group <= count and taken:
                    first = group - len(taken)
                    clash = [place for place in range(first) if order[place] in taken]
                    free = [place for place in range(first, count) if order[place] not in taken]
                    for a, b in zip(clash, free, strict=False):
                        order[a], order[b] = order[b], order[a]
                queue.extend(order)
            taken.append(queue.pop(0))
        return taken, done

    expected = []
    for step in range(30):
        if step % held == 0:
            for c, own in enumerate(images):
                if not waiting[c]:
                    number = rounds[c] if len(own) > 2 else 0
                    order = generator(seed, 1, c, number).permutation(len(own)).tolist()
                    if len(own) > 2 and order[0] == representatives[c]:
                        order[0], order[1] = order[1], order[0]
                    waiting[c], rounds[c] = order, rounds[c] + 1
                representatives[c] = waiting[c].pop(0)
        chosen, class_rounds = in_rounds(class_queue, len(SIZES), classes, (0,), class_rounds)
        batch = [images[c][representatives[c]] for c in chosen]
        for c in chosen:
            others = max(1, len(images[c]) - 1)
            places, example_rounds[c] = in_rounds(example_queues[c], others, per_class - 1, (2, c), example_rounds[c])
            batch += [images[c][-1 if place == representatives[c] else place] for place in places]
        expected.append(batch)

    sampler = sampler_for(steps_per_projection=held)
    assert [sampler.next_batch().tolist() for _ in range(30)] == expected


@given(
    sizes=st.lists(st.integers(1, 7), min_size=2, max_size=8),
    classes=st.integers(1, 5),
    images=st.integers(2, 4),
    held=st.integers(1, 5),
    mined=st.booleans(),
    seed=st.integers(0, 3),
)
@settings(max_examples=40)
def test_representatives_are_held_distinct_and_never_examples(sizes, classes, images, held, mined, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    known = torch.randn(len(sizes), 3, generator=torch.Generator().manual_seed(seed)) if mined else None
    sampler = sampler_for(
        labels, classes=classes, images=images, steps_per_projection=held, seed=seed, embeddings=known
    )
    wanted = min(classes, len(sizes))
    for number in range(25):
        rows = sampler.next_batch()
        assert len(rows) == wanted * images == sampler.batch_size
        heads, tails = split(labels, rows, sampler.num_representatives)
        assert len(set(labels[heads].tolist())) == wanted
        now = sampler.representatives(number // held)
        assert heads.tolist() == now[labels[heads]].tolist()
        for head, group in zip(heads.tolist(), tails.tolist(), strict=True):
            own = sizes[labels[head]]
            assert head not in group or own == 1
            if own - 1 >= images - 1:
                assert len(set(group)) == images - 1, "no example twice in a batch unless the class is too small"
    for projection in range(20):
        before, after = sampler.representatives(projection), sampler.representatives(projection + 1)
        assert labels[before].tolist() == list(range(len(sizes)))
        assert ((before != after) | (np.array(sizes) == 1)).all()
    for c, size in enumerate(sizes):
        for turn in range(3):
            drawn = [sampler.representatives(p)[c] for p in range(turn * size, (turn + 1) * size)]
            assert sorted(drawn) == np.flatnonzero(labels == c).tolist(), "each image once per round"


@given(
    sizes=st.lists(st.integers(1, 7), min_size=2, max_size=8),
    images=st.integers(2, 4),
    batches=st.integers(1, 40),
    mined=st.booleans(),
)
@settings(max_examples=40)
def test_classes_and_examples_are_fair(sizes, images, batches, mined):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    known = torch.arange(len(sizes)).float()[:, None] if mined else None
    sampler = sampler_for(labels, classes=2, images=images, steps_per_projection=0, embeddings=known)
    turns, seen = np.zeros(len(sizes), dtype=int), np.zeros(len(labels), dtype=int)
    for _ in range(batches):
        heads, tails = split(labels, sampler.next_batch(), sampler.num_representatives)
        turns[labels[heads]] += 1
        np.add.at(seen, tails.ravel(), 1)
    assert mined or turns.max() - turns.min() <= 1
    held = sampler.representatives(0)
    for c, size in enumerate(sizes):
        if size > 1:
            others = np.setdiff1d(np.flatnonzero(labels == c), held)
            assert seen[others].max() - seen[others].min() <= max(1, -(-(images - 1) // (size - 1)))


def test_over_many_projections_every_image_is_an_example_about_as_often():
    labels = np.repeat(np.arange(4), 10)
    sampler = sampler_for(labels, classes=2, images=3, occurrences=3)
    seen = np.zeros(len(labels), dtype=int)
    for _ in range(2000):
        np.add.at(seen, sampler.next_batch()[2:], 1)
    assert seen.mean() == 200
    assert abs(seen - 200).max() < 40


def test_the_number_of_steps_follows_the_formula():
    sop = sampler_for(np.repeat(np.arange(11318), 2), classes=64, images=2)
    assert sop.steps_per_projection == 1062  # ceil(6·2·11318/128) = ceil(1061.06)
    cub = sampler_for(np.repeat(np.arange(100), 5), classes=32, images=4)
    assert cub.steps_per_projection == 19  # ceil(6·4·100/128) = ceil(18.75)
    assert sampler_for(np.repeat(np.arange(100), 5), classes=50, images=2, occurrences=3).steps_per_projection == 6
    # With fewer classes than the batch asks for every class is in every batch.
    assert sampler_for(np.repeat(np.arange(4), 5), classes=64, images=2).steps_per_projection == 6


def test_one_step_per_projection_draws_like_n_pair():
    labels = np.repeat(np.arange(6), 8)
    sampler = sampler_for(labels, classes=6, images=2, steps_per_projection=1)
    before = np.full(6, -1)
    pairs = set()
    for _ in range(100):
        heads, tails = split(labels, sampler.next_batch(), 6)
        now = heads[np.argsort(labels[heads])]
        assert (now != before).all(), "another representative in every step"
        before = now
        pairs |= set(zip(heads.tolist(), tails[:, 0].tolist(), strict=True))
    # Of the 6·8·7 ordered pairs of two images of a class, 600 draws find about 5 in 6.
    assert all(a != b for a, b in pairs)
    assert len(pairs) > 0.75 * 6 * 8 * 7


def test_in_an_endless_projection_representatives_never_change():
    sampler = sampler_for(steps_per_projection=0)
    held = sampler.representatives(0)
    for _ in range(300):
        heads, _ = split(LABELS, sampler.next_batch(), 3)
        assert heads.tolist() == held[LABELS[heads]].tolist()


def test_a_class_with_one_image_is_its_own_example():
    labels = np.array([0, 1, 1, 1])
    sampler = sampler_for(labels, classes=2, images=3)
    heads, tails = split(labels, sampler.next_batch(), 2)
    assert tails[labels[heads].tolist().index(0)].tolist() == [0, 0]


@pytest.mark.parametrize("unit", [True, False])
def test_mined_batches_are_the_nearest_classes(unit):
    generator = torch.Generator().manual_seed(0)
    labels = np.repeat(np.arange(40), 3)
    known = torch.randn(40, 6, generator=generator)
    known = known / known.norm(dim=1, keepdim=True) * (1 if unit else torch.rand(40, 1, generator=generator))
    sampler = sampler_for(labels, classes=5, images=2, embeddings=known.clone())
    assert sampler.lookahead == 0
    first = []
    for _ in range(40):
        # What came to be known since the last batch must count.
        changed = torch.randint(40, (5,), generator=generator).unique()
        fresh = torch.nn.functional.normalize(torch.randn(len(changed), 6, generator=generator), dim=1)
        sampler.refresh(changed, fresh.requires_grad_())
        known[changed] = fresh.detach()
        heads, _ = split(labels, sampler.next_batch(), 5)
        chosen = labels[heads].tolist()
        distance = [(known[chosen[0]] - known[c]).norm().item() for c in range(40)]
        assert sorted(chosen) == sorted(np.argsort(distance)[:5].tolist())
        first.append(chosen[0])
    assert sorted(first) == list(range(40)), "every class leads a batch once per round"


def test_a_class_leads_its_batch_even_among_its_doubles():
    sampler = sampler_for(np.repeat(np.arange(8), 2), classes=2, images=2, embeddings=torch.ones(8, 3))
    first = [int(sampler.next_batch()[0]) // 2 for _ in range(8)]
    assert sorted(first) == list(range(8))


@pytest.mark.parametrize("mined", [False, True])
def test_a_restored_sampler_continues(mined, tmp_path):
    fresh = [torch.randn(3, 4, generator=torch.Generator().manual_seed(step)) for step in range(30)]

    def make():
        known = torch.linspace(-1, 1, 28).sin().view(7, 4) if mined else None
        return sampler_for(steps_per_projection=4, embeddings=known)

    def draw(sampler, steps):
        """What a run does: a batch, its state, and then the step that refreshes what is known."""
        batches = []
        for step in steps:
            batches.append(sampler.next_batch().tolist())
            state = sampler.state_dict()
            sampler.refresh(torch.from_numpy(LABELS[batches[-1][:3]]), fresh[step])
        return batches, state

    whole, _ = draw(make(), range(30))
    begun, state = draw(make(), range(13))
    torch.save(state, tmp_path / "sampler.pt")
    second = make()
    second.load_state_dict(torch.load(tmp_path / "sampler.pt", weights_only=True))
    assert begun + draw(second, range(13, 30))[0] == whole


def test_mining_changes_the_batches():
    plain, mined = sampler_for(), sampler_for(embeddings=torch.linspace(-1, 1, 28).sin().view(7, 4))
    assert [plain.next_batch().tolist() for _ in range(5)] != [mined.next_batch().tolist() for _ in range(5)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"images": 1}, "images_per_class must be at least 2"),
        ({"steps_per_projection": -1}, "steps_per_projection must be at least 0"),
        ({"occurrences": 0}, "occurrences must be at least 1"),
        ({"embeddings": torch.zeros(6, 2)}, "a row for each of the 7 classes, got 6"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        sampler_for(**options)


def test_a_batch_size_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="multiple of images_per_class"):
        ClassRepresentativeSampler(LABELS, batch_size=7, images_per_class=2, seed=0)
