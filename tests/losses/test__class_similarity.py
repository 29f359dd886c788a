from __future__ import annotations

import pytest
import torch

from nearkin.losses._class_similarity import (
    class_similarity,
    class_similarity_and_gradient,
    proxy_spread,
    proxy_spread_and_gradient,
)

KINDS = ["softmax", "max", "mean"]


def some_similarities(per_class: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(3, 5, per_class, dtype=torch.float64, generator=generator) * 2 - 1


def one_at_a_time(s, kind, gamma):
    if kind == "max":
        return max(s)
    if kind == "mean":
        return sum(s) / len(s)
    exps = [torch.exp(v / gamma) for v in s]
    return sum(e / sum(exps) * v for e, v in zip(exps, s, strict=True))


@pytest.mark.parametrize("gamma", [0.1, 0.01, 2.0])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per_class", [1, 4])
def test_both_forms_equal_the_formula(kind, gamma, per_class):
    s = some_similarities(per_class).requires_grad_()
    expected = torch.stack([torch.stack([one_at_a_time(c, kind, gamma) for c in row]) for row in s])
    slope = torch.linspace(-1, 2, 15, dtype=torch.float64).view(3, 5)
    (expected_slope,) = torch.autograd.grad(expected, s, slope)

    value, to_proxies = class_similarity_and_gradient(s.detach().clone(), kind, gamma=gamma)
    value = value.clone()
    by_proxy, similarities = to_proxies(slope.clone())

    torch.testing.assert_close(class_similarity(s, kind, gamma=gamma), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(by_proxy, expected_slope, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(similarities, s.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("gamma", [0.1, 1e-3])
def test_extreme_similarities_stay_finite(gamma):
    s = torch.tensor([[[1.0, -1.0], [-1.0, -1.0], [1.0, 1.0]]])
    value, to_proxies = class_similarity_and_gradient(s, "softmax", gamma=gamma)
    slope, _ = to_proxies(torch.ones(1, 3))
    torch.testing.assert_close(value, torch.tensor([[1.0, -1.0, 1.0]]), rtol=0, atol=1e-6)
    torch.testing.assert_close(slope, torch.tensor([[[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]]]), rtol=0, atol=1e-4)


def spread(vectors):
    unit = vectors / vectors.norm(dim=2, keepdim=True)
    classes, per_class, _ = vectors.shape
    pairs = [(unit[c, s] - unit[c, t]).norm() for c in range(classes) for t in range(per_class) for s in range(t)]
    return sum(pairs) / (classes * per_class * (per_class - 1))


@pytest.mark.parametrize("per_class", [2, 5])
def test_spread_and_its_gradient_equal_the_formula(per_class):
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(3, per_class, 4, dtype=torch.float64, generator=generator).requires_grad_()
    expected = 0.5 * spread(vectors)
    value, matrices = proxy_spread_and_gradient(vectors.detach(), vectors.detach().norm(dim=2), tau=0.5)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(proxy_spread(vectors, tau=0.5), expected, rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(expected, vectors)
    torch.testing.assert_close(matrices @ vectors.detach(), gradient, rtol=1e-9, atol=1e-9)


def test_spread_of_one_proxy_is_zero():
    value, matrices = proxy_spread_and_gradient(torch.randn(4, 1, 3), torch.ones(4, 1), tau=0.2)
    assert value == 0
    assert torch.equal(matrices, torch.zeros(4, 1, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_proxies_do_not_pull_on_each_other(dtype):
    vectors = torch.randn(50, 1, 8, dtype=dtype).expand(50, 4, 8).contiguous()
    value, matrices = proxy_spread_and_gradient(vectors, vectors.norm(dim=2), tau=1.0)
    assert value == 0
    assert (matrices == 0).all()
    wide = torch.randn(5, 1, 2000, dtype=dtype).expand(5, 4, 2000).clone().requires_grad_()
    value = proxy_spread(wide, tau=1.0)
    assert value == 0
    assert (torch.autograd.grad(value, wide)[0] == 0).all()
