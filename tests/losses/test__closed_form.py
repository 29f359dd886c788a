"""The gradient in closed form: equal to autograd's, in less memory, and sound where autograd would be."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nearkin.catalogue import keyword_options
from nearkin.losses import (
    AllPairsMultiProxyAnchor,
    ArcFace,
    CosFace,
    DataWiseMultiProxyAnchor,
    MultiProxyAnchor,
    NormalizedSoftmax,
    ProxyAnchor,
    ProxyNCA,
    ProxyNCAPlusPlus,
    SoftTriple,
)
from nearkin.losses._closed_form import closed_form
from nearkin.losses._informative import InformativeSampleWeights

SINGLE = [ProxyAnchor, ProxyNCA, ProxyNCAPlusPlus, NormalizedSoftmax, CosFace, ArcFace]
MULTI = [SoftTriple, MultiProxyAnchor, DataWiseMultiProxyAnchor, AllPairsMultiProxyAnchor]
LOSSES = [*SINGLE, *MULTI]


class LargeArrays(TorchDispatchMode):
    """Counts the storages of at least ``numel`` elements that are alive at once; ``allowed`` ones are left out."""

    def __init__(self, numel: int, allowed: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.numel, self.allowed = numel, allowed
        self.alive: dict[int, weakref.ref[torch.Tensor]] = {}
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().nbytes() >= self.numel * leaf.element_size():
                self.alive[id(leaf)] = weakref.ref(leaf)
        tensors = [t for t in (ref() for ref in self.alive.values()) if t is not None]
        storages = {t.untyped_storage().data_ptr() for t in tensors} - set(self.allowed)
        self.most = max(self.most, len(storages))
        return result


def large_arrays(loss, z, labels, numel, *, by_steps=False):
    """At most how many arrays of ``numel`` elements a step holds, the proxies themselves aside."""
    with LargeArrays(numel, allowed=(loss.bank.vectors.data_ptr(),)) as arrays:
        value = loss.from_similarities(loss.class_similarities(z), labels) if by_steps else loss(z, labels)
        value.backward()
    return arrays.most


@pytest.mark.parametrize("loss_class", MULTI)
def test_several_proxies_take_at_most_two_arrays_of_all_similarities(loss_class):
    # dim < N, so that nothing but the similarities [N, C, K] has N·C·K elements.
    loss = loss_class(40, 8, proxies_per_class=10)
    z = torch.randn(30, 8, requires_grad=True)
    labels = torch.randint(40, (30,))
    assert large_arrays(loss, z, labels, 30 * 40 * 10) <= 2
    assert large_arrays(loss, z, labels, 30 * 40 * 10, by_steps=True) > 2, "the count sees what autograd keeps"


@pytest.mark.parametrize("loss_class", SINGLE)
def test_one_proxy_takes_at_most_three_arrays_of_all_similarities(loss_class):
    loss = loss_class(400, 8)
    z = torch.randn(30, 8, requires_grad=True)
    assert large_arrays(loss, z, torch.randint(400, (30,)), 30 * 400) <= 3


@pytest.mark.parametrize("loss_class", LOSSES)
def test_no_copy_of_the_proxies_but_their_gradient(loss_class):
    # dim > N, so that an array of C·K·dim elements can only be as large as the proxies.
    loss = loss_class(300, 32)
    z = torch.randn(6, 32, requires_grad=True)
    assert large_arrays(loss, z, torch.randint(300, (6,)), loss.bank.vectors.numel()) == 1


def weighting():
    weights = InformativeSampleWeights(6, 5, memory_size=30)
    weights.memory_on = weights.filter_on = True
    return weights


WITH_OPTIONS = [
    (loss, options)
    for loss in LOSSES
    for options in ({}, {"weighting": True}, {"proxies_per_class": 3})
    if set(options) <= set(keyword_options(loss))
]


@pytest.mark.parametrize("loss_class, options", WITH_OPTIONS)
def test_the_closed_form_agrees_with_autograd_through_the_formula(loss_class, options, proxy_batch):
    z, labels = proxy_batch
    z.requires_grad_()
    results = []
    for by_autograd in (False, True):
        torch.manual_seed(0)
        built = {key: weighting() if key == "weighting" else value for key, value in options.items()}
        loss = loss_class(6, 5, **built).double()
        assert loss.has_closed_form
        for _ in range(3 if "weighting" in options else 1):  # a weighting learns from the batches before
            value = loss.by_autograd(z, loss.bank.vectors, labels) if by_autograd else loss(z, labels)
        results.append((value, *torch.autograd.grad(value, [z, loss.bank.vectors])))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("loss_class", LOSSES)
def test_gradient_is_scaled_and_can_be_taken_twice(loss_class):
    torch.manual_seed(0)
    loss = loss_class(6, 5).double()
    z, labels = torch.randn(4, 5, dtype=torch.float64, requires_grad=True), torch.tensor([0, 3, 3, 5])
    leaves = [z, loss.bank.vectors]
    value = loss(z, labels)
    once = torch.autograd.grad(value, leaves, retain_graph=True)
    thrice = torch.autograd.grad(3 * value, leaves)
    torch.testing.assert_close(thrice, tuple(3 * g for g in once))


@pytest.mark.parametrize("loss_class", LOSSES)
def test_proxies_near_zero_and_zero_have_finite_gradients(loss_class):
    loss = loss_class(4, 3)
    with torch.no_grad():
        loss.bank.vectors[0] = 0.0
        loss.bank.vectors[1] = 1e-15
    z = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1e-20, 0.0]], requires_grad=True)
    value = loss(z, torch.tensor([0, 1, 2]))
    value.backward()
    assert value.isfinite()
    assert z.grad.isfinite().all()
    assert loss.bank.vectors.grad.isfinite().all()


def test_only_what_needs_a_gradient_gets_one():
    loss = SoftTriple(6, 5)
    z, labels = torch.randn(4, 5), torch.tensor([0, 3, 3, 5])
    loss(z, labels).backward()
    assert loss.bank.vectors.grad is not None
    loss.requires_grad_(False)
    z.requires_grad_()
    loss(z, labels).backward()
    assert z.grad.abs().sum() > 0
    with torch.no_grad():
        value = loss(z, labels)
    assert not value.requires_grad
    torch.testing.assert_close(value, loss(z, labels).detach())


def test_backward_inside_autocast_stays_in_float32():
    torch.manual_seed(0)
    loss = CosFace(6, 64)
    z, labels = torch.randn(4, 64, requires_grad=True), torch.tensor([0, 3, 3, 5])
    (expected,) = torch.autograd.grad(loss(z, labels), z)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (gradient,) = torch.autograd.grad(loss(z, labels), z)
    assert torch.equal(gradient, expected)


def test_the_spread_of_a_classs_proxies_is_weighed_by_tau():
    torch.manual_seed(0)
    loss = MultiProxyAnchor(4, 5, proxies_per_class=3).double()
    z, labels = torch.randn(6, 5, dtype=torch.float64), torch.arange(6) % 4
    values = [closed_form(z, loss.bank.vectors, labels, loss, tau=tau) for tau in (0.0, 1.0, 2.0)]
    spread = values[1] - values[0]
    assert spread.item() != 0
    torch.testing.assert_close(values[2] - values[1], spread)
    one = ProxyAnchor(4, 5).double()
    without, with_tau = (closed_form(z, one.bank.vectors, labels, one, tau=tau) for tau in (0.0, 1.0))
    assert torch.equal(without, with_tau), "one proxy has no spread"
