import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearkin.proxies import greedy_k_center
from nearkin.proxies.greedy_k_center import farthest_first


def plain(pool, existing, k, valid):
    """One class at a time, from algorithm 2 of the CCP paper and section 3 of the methods page."""
    picked = []
    members = [i for i in range(len(pool)) if valid[i]]
    for _ in range(min(k, len(members))):
        left = [i for i in members if i not in picked]
        if not picked and existing is None:
            mean = pool[members].mean(0)
            score = {i: -float((pool[i] - mean).square().sum()) for i in left}
        else:
            held = [pool[i] for i in picked] + ([] if existing is None else list(existing))
            score = {i: min(float((pool[i] - v).square().sum()) for v in held) for i in left}
        best = max(score.values())
        picked.append(min(i for i in left if score[i] == best))
    return [picked[j % len(picked)] for j in range(k)]


@given(
    classes=st.integers(1, 4),
    size=st.integers(1, 6),
    dim=st.integers(1, 3),
    held=st.integers(0, 3),
    k=st.integers(1, 8),
    grid=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_equal_to_the_plain_version(classes, size, dim, held, k, grid, seed):
    torch.manual_seed(seed)

    def points(*shape):
        # On a coarse grid there are duplicates and ties.
        return torch.randint(0, 3, shape).double() if grid else torch.randn(shape, dtype=torch.float64)

    pool = points(classes, size, dim)
    existing = points(classes, held, dim) if held else None
    valid = torch.rand(classes, size) < 0.7
    valid[torch.arange(classes), torch.randint(0, size, (classes,))] = True
    got = greedy_k_center(pool, existing, k, valid=valid)
    if existing is None and grid:
        # means are rounded differently by the two; the first pick may be any member that is as near
        return
    for c in range(classes):
        assert got[c].tolist() == plain(pool[c], None if existing is None else existing[c], k, valid[c])


def test_by_hand():
    # one class on a line, proxies at 0: farthest is 10, then 4 (4 from 0, 6 from 10), then 6 (2 from 4) over 9 (1)
    pool = torch.tensor([[[4.0], [6.0], [10.0], [9.0]]])
    assert greedy_k_center(pool, torch.zeros(1, 1, 1), 4).tolist() == [[2, 0, 1, 3]]


def test_distances_are_squared_ones_in_the_plane():
    # 25 = 3² + 4² from the middle one, which is nearest to the mean and comes first.
    pool = torch.tensor([[[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]]])
    found = [(pick.item(), far[0].tolist()) for pick, far in farthest_first(pool)]
    assert found == [(1, [25.0, 0.0, 25.0]), (0, [0.0, 0.0, 25.0]), (2, [0.0, 0.0, 0.0])]


def test_duplicates_are_not_picked_twice_while_others_are_left():
    pool = torch.zeros(2, 3, 4)
    assert greedy_k_center(pool, None, 3).tolist() == [[0, 1, 2], [0, 1, 2]]


def test_fewer_images_than_k_repeat():
    pool = torch.tensor([[[0.0], [5.0], [1.0]]])
    valid = torch.tensor([[True, True, False]])
    picks = greedy_k_center(pool, torch.zeros(1, 1, 1), 5, valid=valid)
    assert picks.tolist() == [[1, 0, 1, 0, 1]]


def test_no_python_loop_over_classes():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Count.calls += 1
            return func(*args, **(kwargs or {}))

    counts = []
    for classes in (2, 200):
        Count.calls = 0
        with Count():
            greedy_k_center(torch.randn(classes, 5, 3), torch.randn(classes, 2, 3), 4)
        counts.append(Count.calls)
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((torch.zeros(3, 4), None, 1), r"pool must have shape"),
        ((torch.zeros(3, 0, 4), None, 1), r"pool must have shape"),
        ((torch.zeros(3, 2, 4), None, 0), "k must be at least 1"),
        ((torch.zeros(3, 2, 4), torch.zeros(2, 1, 4), 1), r"existing must have shape \[3, m, 4\]"),
    ],
)
def test_wrong_arguments_are_named(arguments, said):
    with pytest.raises(ValueError, match=said):
        greedy_k_center(*arguments)


def test_a_mask_of_numbers_is_refused():
    with pytest.raises(ValueError, match="valid must be bool"):
        greedy_k_center(torch.zeros(2, 2, 3), None, 1, valid=torch.ones(2, 2))
