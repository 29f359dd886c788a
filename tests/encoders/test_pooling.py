import pytest
import torch

from nearkin.encoders.encoder import POOLINGS, GeMPool, build_pooling
from nearkin.errors import RecipeError

MAP = torch.tensor([[[[1.0, 2.0], [3.0, 6.0]], [[0.0, 0.0], [0.0, 8.0]]]])


@pytest.mark.parametrize(
    "name, expected",
    [
        ("avg", [3.0, 2.0]),
        ("max", [6.0, 8.0]),
        ("avg+max", [9.0, 10.0]),
        ("gem", [((1 + 8 + 27 + 216) / 4) ** (1 / 3), (512 / 4) ** (1 / 3)]),
        ("gem3", [((1 + 8 + 27 + 216) / 4) ** (1 / 3), (512 / 4) ** (1 / 3)]),
    ],
)
def test_by_hand(name, expected):
    torch.testing.assert_close(build_pooling(name)(MAP).detach(), torch.tensor([expected]), rtol=1e-5, atol=1e-5)


def test_gem_learns_its_power_and_survives_zeros_and_negatives():
    pool = GeMPool()
    features = torch.tensor([[[[-1.0, 0.0], [0.5, 2.0]]]], requires_grad=True)
    pool(features).sum().backward()
    assert pool.p.grad is not None
    assert pool.p.grad != 0
    assert torch.isfinite(features.grad).all()


def test_gem3_learns_nothing_and_takes_the_weights_of_gem():
    pool = build_pooling("gem3")
    assert not list(pool.parameters())
    features = MAP.clone().requires_grad_()
    pool(features).sum().backward()
    assert torch.isfinite(features.grad).all()
    pool.load_state_dict(GeMPool(p=2.0).state_dict())
    assert pool.p == 2.0


def test_gem_with_power_one_is_the_mean_and_with_a_large_one_nears_the_maximum():
    torch.testing.assert_close(GeMPool(p=1.0)(MAP).detach(), build_pooling("avg")(MAP), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(GeMPool(p=40.0)(MAP[:, :1] / 6).detach(), torch.tensor([[1.0]]), rtol=0.05, atol=0)


def test_gem_of_half_precision_does_not_overflow():
    features = torch.full((1, 1, 2, 2), 60.0, dtype=torch.float16)
    pooled = GeMPool()(features).detach()
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled, torch.tensor([[60.0]]), rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", sorted(POOLINGS))
def test_any_map_size(name):
    assert build_pooling(name)(torch.rand(2, 5, 1, 3)).shape == (2, 5)


def test_unknown_name_is_suggested():
    with pytest.raises(RecipeError, match=r"did you mean 'avg\+max'"):
        build_pooling("avgmax")
