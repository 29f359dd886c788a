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
from nearkin.losses._informative import InformativeSampleWeights
from nearkin.losses._proxy import ProxyLoss

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


class Hinge(ProxyLoss):
    """A loss by the book: the formula and nothing else, with a parameter of its own."""

    def __init__(self, num_classes, dim, **options):
        super().__init__(num_classes, dim, **options)
        self.margin = torch.nn.Parameter(torch.tensor(0.2))

    def from_similarities(self, similarities, labels, weights=None):
        own = similarities.gather(1, labels[:, None])
        terms = (similarities - own + self.margin).clamp_min(0)
        return (terms if weights is None else terms * weights.negative).mean()


@pytest.mark.parametrize("options", [{}, {"weighting": True}, {"proxies_per_class": 3, "tau": 0.2}])
def test_a_loss_needs_nothing_but_its_formula(options):
    torch.manual_seed(0)
    loss = Hinge(6, 5, **{key: weighting() if key == "weighting" else value for key, value in options.items()})
    assert not loss.has_closed_form
    centres = torch.randn(6, 5)
    labels = torch.arange(6).repeat(4)
    optimiser = torch.optim.Adam(loss.parameters(), lr=0.05)
    first = None
    for _ in range(40):
        optimiser.zero_grad()
        value = loss(centres[labels] + 0.1 * torch.randn(24, 5), labels)
        value.backward()
        if first is None:
            first = value.item()
            assert all(parameter.grad.abs().sum() > 0 for parameter in loss.parameters())
        optimiser.step()
    assert value.item() < 0.7 * first
    assert loss.similarity_weights(centres, torch.arange(6)).shape == (6, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert loss(centres.bfloat16(), torch.arange(6)).dtype == torch.float32


def test_another_formula_does_not_inherit_the_gradient_of_the_old_one():
    class Doubled(ProxyAnchor):
        def from_similarities(self, similarities, labels, weights=None):
            return 2 * super().from_similarities(similarities, labels, weights)

    class Faster(Doubled):
        def value_and_gradient(self, similarities, labels, weights):
            value, gradient = ProxyAnchor.value_and_gradient(self, similarities, labels, weights)
            return 2 * value, 2 * gradient

    assert ProxyAnchor.has_closed_form
    assert Faster.has_closed_form
    assert not Doubled.has_closed_form
    z, labels = torch.randn(4, 5), torch.tensor([0, 3, 3, 5])
    plain = ProxyAnchor(6, 5)
    for kind in (Doubled, Faster):
        loss = kind(6, 5)
        loss.load_state_dict(plain.state_dict())
        torch.testing.assert_close(loss(z, labels), 2 * plain(z, labels))


def test_a_loss_without_a_formula_says_what_is_missing():
    with pytest.raises(NotImplementedError, match="from_similarities"):
        ProxyLoss(6, 5)(torch.randn(4, 5), torch.tensor([0, 3, 3, 5]))


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
