import pytest
import torch

from nearkin.numerics import check_at_least, check_choice, check_embeddings, checked_labels


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_the_row_that_is_not_finite_is_named(bad):
    embeddings = torch.zeros(5, 3)
    embeddings[3, 1] = bad
    with pytest.raises(ValueError, match=r"embeddings must be finite, got NaN or infinity in row 3"):
        check_embeddings(embeddings)


def test_large_values_whose_sum_overflows_are_finite():
    huge = torch.full((4, 4), 3e38)
    assert torch.isinf(huge.sum())
    assert check_embeddings(huge) is None
    opposite = torch.tensor([[float("inf")], [float("-inf")]])
    with pytest.raises(ValueError, match="row 0"):
        check_embeddings(opposite)


def test_shapes_and_dtypes():
    for embeddings, said in (
        (torch.zeros(3), r"shape \[N, D\]"),
        (torch.zeros(0, 3), "at least one row"),
        (torch.zeros(2, 3, dtype=torch.long), "floating point"),
    ):
        with pytest.raises(ValueError, match=said):
            check_embeddings(embeddings)
    with pytest.raises(ValueError, match="must have 4 columns"):
        check_embeddings(torch.zeros(2, 3), dim=4)
    for labels, said in (
        (torch.zeros(3, dtype=torch.long), r"shape \[2\]"),
        (torch.zeros(2), "must be integers"),
        (torch.tensor([0, 5]), r"0\.\.4.*got 5"),
        (torch.tensor([-1, 0]), r"0\.\.4.*got -1"),
    ):
        with pytest.raises(ValueError, match=said):
            checked_labels(labels, torch.zeros(2, 3), num_classes=5)


def test_options_out_of_range_are_named():
    check_at_least(1, size=1, steps=None)
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        check_at_least(1, steps=3, size=0)
    with pytest.raises(ValueError, match="pull must be at least 0, got nan"):
        check_at_least(0, pull=float("nan"))
    check_choice("all", "hard", mining="hard")
    with pytest.raises(ValueError, match="mining must be 'all', 'semihard' or 'hard', got 'easy'"):
        check_choice("all", "semihard", "hard", mining="easy")
