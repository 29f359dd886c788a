"""Similarities to classes: whole, in blocks, and as the papers write them."""

from __future__ import annotations

import itertools

import pytest
import torch

from nearkin.losses import class_similarities as similarities_module
from nearkin.losses.class_similarities import (
    Combination,
    class_similarities,
    combine,
    plain_class_similarities,
    proxy_spread,
)

KINDS = ["softmax", "max", "mean"]


def some_proxies(per_class: int, *, classes: int = 7, dim: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(per_class)
    x, p = (torch.randn(*size, dim, dtype=torch.float64, generator=generator) for size in ((5,), (classes, per_class)))
    return (3 * x).requires_grad_(), (0.2 * p).requires_grad_()


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
def test_one_similarity_of_several_equals_the_formula(kind, gamma, per_class):
    s = torch.rand(per_class, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    expected = torch.stack([one_at_a_time(s[:, n, c], kind, gamma) for n in range(3) for c in range(5)]).view(3, 5)
    torch.testing.assert_close(combine(s, kind, gamma=gamma), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("gamma", [0.1, 1e-3])
def test_extreme_similarities_stay_finite(gamma):
    s = torch.tensor([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]], requires_grad=True)
    value = combine(s, "softmax", gamma=gamma)
    (slope,) = torch.autograd.grad(value.sum(), s)
    torch.testing.assert_close(value.detach(), torch.tensor([1.0, -1.0, 1.0]), rtol=0, atol=1e-6)
    torch.testing.assert_close(slope, torch.tensor([[1.0, 0.5, 0.5], [0.0, 0.5, 0.5]]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("block", [1, 3, 7, 100])
@pytest.mark.parametrize(("kind", "per_class"), [("softmax", 1), *itertools.product(KINDS, [3])])
def test_every_block_size_gives_the_values_and_gradients_of_the_plain_form(monkeypatch, kind, per_class, block, kept):
    if not kept:
        monkeypatch.setattr(similarities_module, "KEPT_BYTES", 0)
    inputs = some_proxies(per_class)
    how = Combination(kind, gamma=0.3, with_spread=per_class > 1)
    slope = torch.linspace(-1, 2, 35, dtype=torch.float64).view(5, 7)
    results = []
    for similarities, spread in (
        class_similarities(*inputs, how, block=block),
        plain_class_similarities(*inputs, how),
    ):
        results.append((similarities, spread, *torch.autograd.grad((similarities * slope).sum() + 2 * spread, inputs)))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("per_class", [1, 3])
def test_derivatives_of_both_orders_are_right(per_class):
    how = Combination("softmax", gamma=0.3, with_spread=per_class > 1)
    inputs = some_proxies(per_class)
    assert torch.autograd.gradcheck(lambda x, p: class_similarities(x, p, how, block=3), inputs)
    assert torch.autograd.gradgradcheck(lambda x, p: class_similarities(x, p, how, block=3), inputs)


@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_a_gradient_that_nobody_wants_is_left_out(wanted):
    x, p = (t.detach().requires_grad_(on) for t, on in zip(some_proxies(2), wanted, strict=True))
    similarities, _ = class_similarities(x, p, Combination())
    for create_graph in (False, True):
        similarities.sum().backward(retain_graph=True, create_graph=create_graph)
        assert [t.grad is not None for t in (x, p)] == list(wanted)


def spread_by_loops(vectors):
    unit = vectors / vectors.norm(dim=2, keepdim=True)
    classes, per_class, _ = vectors.shape
    pairs = [(unit[c, s] - unit[c, t]).norm() for c in range(classes) for t in range(per_class) for s in range(t)]
    return sum(pairs) / (classes * per_class * (per_class - 1))


@pytest.mark.parametrize("per_class", [2, 5])
def test_the_spread_of_proxies_equals_the_formula(per_class):
    _, vectors = some_proxies(per_class)
    value, expected = proxy_spread(vectors), spread_by_loops(vectors)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(*(torch.autograd.grad(v, vectors)[0] for v in (value, expected)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_proxies_do_not_pull_on_each_other(dtype):
    for shape in ((50, 1, 8), (5, 1, 2000)):
        vectors = torch.randn(shape, dtype=dtype).expand(-1, 4, -1).clone().requires_grad_()
        value = proxy_spread(vectors)
        assert value == 0
        assert (torch.autograd.grad(value, vectors)[0] == 0).all()
    assert proxy_spread(torch.randn(4, 1, 3, dtype=dtype)) == 0


def test_blocks_are_as_large_as_the_device_allows(monkeypatch):
    seen = []
    monkeypatch.setattr(
        similarities_module._ClassSimilarities, "apply", lambda x, p, how, block: (seen.append(block), None)
    )
    for classes in (10, 10**6):
        class_similarities(torch.empty(128, 512), torch.empty(classes, 2, 512, device="meta").to("meta"), Combination())
        class_similarities(torch.empty(128, 512), torch.empty(1, 2, 512), Combination())
    assert seen == [2**28 // (2 * 512 * 4), 2**22 // (2 * 512 * 4)] * 2
