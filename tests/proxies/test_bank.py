from __future__ import annotations

import pytest
import torch

from nearkin.proxies import ProxyBank


def test_vectors_start_with_the_deviation_of_the_official_code():
    torch.manual_seed(0)
    bank = ProxyBank(50, 4, 64)
    assert (bank.classes, bank.per_class, bank.dim) == tuple(bank.vectors.shape) == (50, 4, 64)
    assert bank.vectors.std().item() == pytest.approx((2 / 200) ** 0.5, rel=0.03)
    assert bank.vectors.dtype == torch.float32
    assert [parameter is bank.vectors for parameter in bank.parameters()] == [True]


def test_a_scale_changes_the_length_and_nothing_else():
    banks = []
    for scale in (1.0, 3.0):
        torch.manual_seed(0)
        banks.append(ProxyBank(5, 2, 4, scale=scale).vectors)
    torch.testing.assert_close(banks[1], 3 * banks[0])


def test_beginning_anew_keeps_the_parameter_that_the_optimiser_holds():
    bank = ProxyBank(2, 1, 3)
    held = bank.vectors
    bank.restart(torch.ones(2, 1, 3))
    assert bank.vectors is held
    assert held.eq(1).all()
    assert held.requires_grad


@pytest.mark.parametrize(
    "sizes, name", [((0, 1, 4), "num_classes"), ((3, 0, 4), "proxies_per_class"), ((3, 1, 0), "dim")]
)
def test_sizes_are_named_as_recipes_do(sizes, name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        ProxyBank(*sizes)
