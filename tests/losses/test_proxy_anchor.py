from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning.losses import ProxyAnchorLoss
from tests.losses.similarity_weights import similarity_weights

import nearkin.losses
from nearkin.losses import ProxyAnchor


def cosine(a, b):
    return (a * b).sum() / (a.norm() * b.norm())


def proxy_anchor(z, proxies, labels, *, alpha=32.0, margin=0.1, positive_norm="present"):
    """The formula of the methods page, one sample and class at a time."""
    classes = len(proxies)
    pull = push = torch.zeros((), dtype=z.dtype)
    for c in range(classes):
        s = [cosine(x, proxies[c, 0]) for x in z]
        positives = [torch.exp(alpha * (margin - s[i])) for i in range(len(z)) if labels[i] == c]
        negatives = [torch.exp(alpha * (s[i] + margin)) for i in range(len(z)) if labels[i] != c]
        pull = pull + torch.log(1 + sum(positives, torch.zeros_like(pull)))
        push = push + torch.log(1 + sum(negatives, torch.zeros_like(push)))
    present = len(set(labels.tolist())) if positive_norm == "present" else classes
    return pull / present + push / classes


@pytest.mark.parametrize("positive_norm", ["present", "all"])
def test_equals_the_formula(assert_proxy_loss_equals, positive_norm):
    loss = ProxyAnchor(6, 5, alpha=9.0, margin=0.2, positive_norm=positive_norm)
    assert_proxy_loss_equals(loss, lambda *a: proxy_anchor(*a, alpha=9.0, margin=0.2, positive_norm=positive_norm))


def test_defaults_equal_the_formula(assert_proxy_loss_equals):
    assert_proxy_loss_equals(ProxyAnchor(6, 5), proxy_anchor)


def test_by_hand():
    # Proxies e1, e2; samples e1 (class 0) and (e1+e2)/√2 (class 1), α = 2, δ = 0.
    # Similarities: [[1, 0], [r, r]] with r = 1/√2.
    # Pull: class 0 log(1+e^−2) = 0.126928, class 1 log(1+e^−2r) = 0.217622; mean 0.172275.
    # Push: class 0 log(1+e^2r) = 1.631835, class 1 log(1+e^0) = 0.693147; mean 1.162491.
    loss = ProxyAnchor(2, 2, alpha=2.0, margin=0.0)
    with torch.no_grad():
        loss.bank.vectors.copy_(torch.tensor([[[3.0, 0.0]], [[0.0, 0.5]]]))
    value = loss(torch.tensor([[2.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 1]))
    assert value.item() == pytest.approx(0.172275 + 1.162491, abs=2e-6)


@pytest.mark.parametrize("alpha, margin", [(32.0, 0.1), (8.0, 0.3)])
def test_agrees_with_pytorch_metric_learning(alpha, margin):
    # With the same alpha and margin, and positive_norm="present"; float32, as their log-sum-exp masks with the smallest
    # finite number.
    torch.manual_seed(0)
    ours, theirs = ProxyAnchor(20, 16, alpha=alpha, margin=margin), ProxyAnchorLoss(20, 16, alpha=alpha, margin=margin)
    with torch.no_grad():
        theirs.proxies.copy_(ours.bank.vectors[:, 0])
    z, labels = torch.randn(12, 16, requires_grad=True), torch.randint(9, (12,))
    value, expected = ours(z, labels), theirs(z, labels)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(
        torch.autograd.grad(value, [z, ours.bank.vectors])[0], torch.autograd.grad(expected, z)[0], rtol=1e-4, atol=1e-5
    )


def test_pair_weights_of_the_isa_paper(proxy_batch):
    """Equation (5) of the ISA paper; its second case lost α e^{…} in the numerator in print."""
    z, labels = proxy_batch
    loss = ProxyAnchor(6, 5).double()
    weights = similarity_weights(loss, z, labels)
    s = torch.tensor([[cosine(x, p) for p in loss.bank.vectors[:, 0].detach()] for x in z])
    alpha, margin, present = 32.0, 0.1, len(set(labels.tolist()))
    for i, y in enumerate(labels.tolist()):
        for c in range(6):
            sign, norm = (-1, present) if c == y else (1, 6)
            others = [j for j in range(len(z)) if (labels[j].item() == c) == (c == y)]
            total = 1 + sum(math.exp(alpha * (margin + sign * s[j, c].item())) for j in others)
            expected = alpha * math.exp(alpha * (margin + sign * s[i, c].item())) / total / norm
            assert weights[i, c].item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_positive_norm_is_checked():
    with pytest.raises(ValueError, match="positive_norm must be 'present' or 'all', got 'some'"):
        ProxyAnchor(3, 2, positive_norm="some")


@pytest.mark.parametrize(
    "name", ["ProxyAnchor", "MultiProxyAnchor", "DataWiseMultiProxyAnchor", "AllPairsMultiProxyAnchor"]
)
def test_a_scale_that_is_not_positive_is_refused(name):
    for alpha in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="alpha must be positive"):
            getattr(nearkin.losses, name)(4, 3, alpha=alpha)
