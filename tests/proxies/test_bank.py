from __future__ import annotations

import pytest
import torch
from torch import nn

from nearkin.errors import RecipeError
from nearkin.proxies import ProxyBank
from nearkin.proxies import bank as proxy_bank


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


@pytest.mark.parametrize("classes", [5, 16, 31, 32, 33, 100])
def test_the_rows_of_a_rank_are_those_of_one_draw_and_few_others_are_held(classes, monkeypatch):
    monkeypatch.setattr(proxy_bank, "_ROWS_AT_ONCE", 1)  # blocks of sixteen
    torch.manual_seed(3)
    whole = torch.randn(classes, 2, 3)
    drawn, randn = [], torch.randn
    monkeypatch.setattr(torch, "randn", lambda *shape: drawn.append(shape[0]) or randn(*shape))
    for rows in (range(classes // 3), range(classes // 3, classes - 1), range(classes - 1, classes)):
        torch.manual_seed(3)
        torch.testing.assert_close(proxy_bank._rows_of_normal(rows, classes, 2, 3), whole[rows.start : rows.stop])
    assert sum(drawn) == 3 * classes
    assert max(drawn) < 32


def test_of_two_processes_each_has_its_share_of_one_bank(monkeypatch):
    torch.manual_seed(0)
    alone = ProxyBank(5, 2, 8, scale=1.5)
    assert alone.local_share == 1
    monkeypatch.setattr(proxy_bank, "world", lambda: 2)
    for own in (range(3), range(3, 5)):
        monkeypatch.setattr(proxy_bank, "share_of", lambda classes, own=own: own)
        torch.manual_seed(0)
        bank = ProxyBank(5, 2, 8, scale=1.5)
        torch.testing.assert_close(bank.vectors, alone.vectors[own.start : own.stop])
        assert bank.local_share == len(own) / 5
        bank.restart(torch.arange(80.0).view(5, 2, 8))
        assert bank.vectors[0, 0, 0] == 16 * own.start
        # What one process has saved has all classes, what a rank has saved its own; both below another module.
        for saved in (alone.vectors, alone.vectors[own.start : own.stop]):
            nn.Sequential(bank).load_state_dict({"0.vectors": saved.detach() + 1})
            torch.testing.assert_close(bank.vectors, alone.vectors[own.start : own.stop] + 1)


def test_more_processes_than_classes_are_refused(monkeypatch):
    monkeypatch.setattr(proxy_bank, "world", lambda: 3)
    monkeypatch.setattr(proxy_bank, "share_of", lambda classes: range(2, 2))
    with pytest.raises(RecipeError, match=r"^3 processes .* 2 training classes: .*--nproc-per-node=2"):
        ProxyBank(2, 1, 4)
