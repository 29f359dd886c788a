from __future__ import annotations

import pytest
import torch

from nearkin.losses import ProxyAnchor
from nearkin.losses._blocks import Parts
from nearkin.losses._informative import SampleWeights


def weighted_anchor(s, labels, weights, *, alpha, margin, positive_norm):
    """Equation (13) of the ISA paper; a class that has no such pair in the batch counts with weight 1 if at all."""
    samples, classes = s.shape
    pull = push = pull_norm = push_norm = 0.0
    for c in range(classes):
        positives = [i for i in range(samples) if labels[i] == c]
        negatives = [i for i in range(samples) if labels[i] != c]
        if positives:
            pull = pull + torch.log(
                1 + sum(torch.exp(weights.positive[i] * alpha * (margin - s[i, c])) for i in positives)
            )
            pull_norm = pull_norm + sum(weights.positive[i] for i in positives) / len(positives)
        elif positive_norm == "all":
            pull_norm = pull_norm + 1.0
        if negatives:
            push = push + torch.log(
                1 + sum(torch.exp(weights.negative[i, c] * alpha * (margin + s[i, c])) for i in negatives)
            )
            push_norm = push_norm + sum(weights.negative[i, c] for i in negatives) / len(negatives)
        else:
            push_norm = push_norm + 1.0
    return pull / pull_norm + push / push_norm


def some_weights(samples: int, classes: int) -> SampleWeights:
    generator = torch.Generator().manual_seed(1)
    return SampleWeights(
        *(
            torch.rand(shape, dtype=torch.float64, generator=generator) * 2 + 0.01
            for shape in [(samples,), (samples, classes)]
        )
    )


@pytest.mark.parametrize("positive_norm", ["present", "all"])
def test_weighted_loss_equals_equation_13(proxy_batch, positive_norm):
    z, labels = proxy_batch
    s = torch.tanh(z @ torch.ones(5, 6, dtype=torch.float64).cumsum(1)).requires_grad_()
    weights = some_weights(len(z), 6)
    loss = ProxyAnchor(6, 5, alpha=8.0, positive_norm=positive_norm)
    value = loss.from_similarities(s, labels, weights)
    expected = weighted_anchor(s, labels, weights, alpha=8.0, margin=0.1, positive_norm=positive_norm)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    gradient = torch.autograd.grad(expected, s)
    torch.testing.assert_close(torch.autograd.grad(value, s), gradient, rtol=1e-9, atol=1e-9)
    written_out = loss.value_and_gradient(s.detach(), labels, weights)
    torch.testing.assert_close(written_out, (expected.detach(), *gradient), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("margin", [0.1, 40.0])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("positive_norm", ["present", "all"])
def test_from_parts_it_is_the_same_also_where_exponents_are_large(proxy_batch, positive_norm, weighted, margin):
    z, labels = proxy_batch
    s = torch.tanh(z @ torch.ones(5, 6, dtype=torch.float64).cumsum(1)).requires_grad_()
    ones = SampleWeights(torch.ones(len(z), dtype=torch.float64), torch.ones(len(z), 6, dtype=torch.float64))
    weights = some_weights(len(z), 6) if weighted else ones
    loss = ProxyAnchor(6, 5, alpha=8.0, margin=margin, positive_norm=positive_norm)
    expected = weighted_anchor(s, labels, weights, alpha=8.0, margin=margin, positive_norm=positive_norm)
    assert torch.isfinite(expected)
    push, push_norm = s.new_zeros(()), 0.0
    for c in range(6):
        negatives = [i for i in range(len(z)) if labels[i] != c]
        if negatives:
            push = push + torch.log1p(
                torch.exp(weights.negative[negatives, c] * 8.0 * (margin + s[negatives, c])).sum()
            )
        push_norm = push_norm + (weights.negative[negatives, c].mean() if negatives else 1.0)
    own = s.gather(1, labels[:, None]).squeeze(1)
    value = loss.from_parts(Parts(own, push, labels, 6, weights.positive if weighted else None, push_norm))
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.autograd.grad(value, s), torch.autograd.grad(expected, s), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("positive_norm", ["present", "all"])
def test_weights_of_one_change_nothing(proxy_batch, positive_norm):
    z, labels = proxy_batch
    s = torch.tanh(z @ torch.ones(5, 6, dtype=torch.float64).cumsum(1))
    ones = SampleWeights(torch.ones(len(z), dtype=torch.float64), torch.ones(len(z), 6, dtype=torch.float64))
    loss = ProxyAnchor(6, 5, positive_norm=positive_norm)
    plain, weighted = loss.value_and_gradient(s, labels), loss.value_and_gradient(s, labels, ones)
    torch.testing.assert_close(weighted, plain, rtol=1e-12, atol=1e-12)


def test_own_entry_of_the_negative_weights_is_ignored():
    weights = some_weights(3, 4)
    s, labels = torch.linspace(-0.9, 0.9, 12, dtype=torch.float64).view(3, 4), torch.tensor([2, 0, 2])
    loss = ProxyAnchor(4, 2)
    before = loss.value_and_gradient(s, labels, weights)
    weights.negative.scatter_(1, labels[:, None], 1e3)
    after = loss.value_and_gradient(s, labels, weights)
    torch.testing.assert_close(after, before)


def test_similarities_are_left_alone_and_the_loss_can_be_differentiated_again():
    s = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_()
    kept = s.detach().clone()
    loss = ProxyAnchor(4, 2).from_similarities(s, torch.tensor([0, 3]))
    (first,) = torch.autograd.grad(loss, s, retain_graph=True)
    (second,) = torch.autograd.grad(loss * 2, s)
    assert torch.equal(s, kept)
    assert torch.equal(second, first * 2)


def test_huge_exponents_stay_finite():
    similarities = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    value, slope = ProxyAnchor(2, 2, alpha=1e4).value_and_gradient(similarities, torch.tensor([1, 0]))
    # Every pull and push is 1e4 · 1.1, far beyond what exp can hold, and the slopes are ±α/2.
    assert value.item() == pytest.approx(2.2e4)
    torch.testing.assert_close(slope, torch.tensor([[5e3, -5e3], [-5e3, 5e3]]))
