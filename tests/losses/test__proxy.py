from __future__ import annotations

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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


@pytest.mark.parametrize("loss_class", LOSSES)
def test_the_two_ways_to_a_loss_agree(loss_class, proxy_batch):
    """forward is one closed form; class_similarities and from_similarities go through autograd."""
    z, labels = proxy_batch
    z.requires_grad_()
    options = {"tau": 0.0} if loss_class in MULTI else {}
    loss = loss_class(6, 5, **options).double()
    leaves = [z, loss.bank.vectors]
    fused, by_steps = loss(z, labels), loss.from_similarities(loss.class_similarities(z), labels)
    torch.testing.assert_close(fused, by_steps, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        torch.autograd.grad(fused, leaves), torch.autograd.grad(by_steps, leaves), rtol=1e-9, atol=1e-9
    )


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


@pytest.mark.parametrize(
    "proxies, embeddings, expected",
    [
        (torch.float32, torch.float64, torch.float64),
        (torch.float64, torch.float32, torch.float64),
        (torch.float32, torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.float16, torch.float32),
    ],
)
def test_nothing_is_cast_down(proxies, embeddings, expected):
    loss = ProxyAnchor(6, 5).to(proxies)
    z = torch.randn(4, 5).to(embeddings).requires_grad_()
    value = loss(z, torch.tensor([0, 3, 3, 5]))
    value.backward()
    assert value.dtype == expected
    assert z.grad.dtype == embeddings
    assert loss.bank.vectors.dtype == loss.bank.vectors.grad.dtype == proxies


def test_backward_inside_autocast_stays_in_float32():
    torch.manual_seed(0)
    loss = CosFace(6, 64)
    z, labels = torch.randn(4, 64, requires_grad=True), torch.tensor([0, 3, 3, 5])
    (expected,) = torch.autograd.grad(loss(z, labels), z)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (gradient,) = torch.autograd.grad(loss(z, labels), z)
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize("kind", ["softmax", "max", "mean"])
def test_own_similarities_are_the_own_columns_of_the_class_similarities(kind):
    loss = MultiProxyAnchor(6, 5, proxies_per_class=3, class_similarity=kind).double()
    unit = torch.nn.functional.normalize(torch.randn(7, 5, dtype=torch.float64))
    labels = torch.tensor([0, 3, 3, 1, 0, 3, 5])
    own = loss.own_similarities(unit, labels)
    torch.testing.assert_close(own, loss.class_similarities(unit)[torch.arange(7), labels].detach())
    torch.testing.assert_close(loss.own_similarities(unit[:6], None), loss.class_similarities(unit[:6]).diag().detach())


def test_integer_labels_of_any_width():
    loss = ProxyAnchor(6, 5)
    z, labels = torch.randn(4, 5), torch.tensor([0, 3, 3, 5])
    values = {loss(z, labels.to(dtype)).item() for dtype in (torch.int64, torch.int32, torch.uint8)}
    assert len(values) == 1
