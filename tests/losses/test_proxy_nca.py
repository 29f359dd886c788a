from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.losses import ProxyNCALoss

from nearkin.losses import ProxyNCA
from nearkin.losses.informative_samples import PairWeights


def squared_distance(a, b):
    return (a / a.norm() - b / b.norm()).square().sum()


def proxy_nca(z, proxies, labels, *, scale=3.0):
    terms = []
    for x, y in zip(z, labels.tolist(), strict=True):
        exps = [torch.exp(-squared_distance(x, p[0]) * scale) for p in proxies]
        terms.append(-torch.log(exps[y] / sum(e for c, e in enumerate(exps) if c != y)))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("options", [{}, {"scale": 0.7}])
def test_equals_the_formula(assert_proxy_loss_equals, options):
    assert_proxy_loss_equals(ProxyNCA(6, 5, **options), lambda *a: proxy_nca(*a, **options))


def on_axes(classes: int, **options) -> ProxyNCA:
    loss = ProxyNCA(classes, classes, **options)
    with torch.no_grad():
        loss.bank.vectors.copy_(torch.eye(classes)[:, None])
    return loss


def test_by_hand():
    # A sample on its proxy: d² = 0 there, 2 to each of the two others. With t = 0.5: −log(e^0 / 2e^−1) = log 2 − 1.
    value = on_axes(3, scale=0.5)(torch.tensor([[0.0, 4.0, 0.0]]), torch.tensor([1]))
    assert value.item() == pytest.approx(0.693147 - 1, abs=1e-6)


def test_differs_from_pytorch_metric_learning_by_the_positive_in_the_denominator():
    # Theirs has the positive in the denominator, so it is ours plus the log of (others + positive) / others; with
    # that it is Proxy-NCA++, and test_proxy_nca_pp.py holds the two equal. The paper's equation leaves it out.
    torch.manual_seed(0)
    ours, theirs = ProxyNCA(20, 16, scale=3.0), ProxyNCALoss(20, 16, softmax_scale=3.0)
    with torch.no_grad():
        theirs.proxies.copy_(ours.bank.vectors[:, 0])
    z, labels = torch.randn(1, 16), torch.tensor([4])
    value, expected = ours(z, labels), theirs(z, labels)
    torch.testing.assert_close(expected, torch.log(value.exp() + 1))
    assert expected > value


class Weighting(torch.nn.Module):
    """Gives the weights that it was made with."""

    def __init__(self, *weights):
        super().__init__()
        self.given = PairWeights(*weights)

    def weights(self, similarities, labels):
        return self.given


def test_weights_scale_the_exponents():
    # Two classes, t = 1, similarities 1 and 0.6: −2·ω⁺·1 + log e^(2·ω⁻·0.6) with ω⁺ = 1.5, ω⁻ = 0.25 is −3 + 0.3.
    s = torch.tensor([[1.0, 0.6]], requires_grad=True)
    loss = ProxyNCA(2, 2, scale=1.0, weighting=Weighting(torch.tensor([1.5]), torch.tensor([[9.0, 0.25]])))
    value = loss.from_similarities(s, torch.tensor([0]))
    value.backward()
    assert value.item() == pytest.approx(-2.7)
    # The pull is −2·ω⁺, the push 2·ω⁻ times the share of the only negative, 1.
    torch.testing.assert_close(s.grad, torch.tensor([[-3.0, 0.5]]))


def test_weighted_gradient_equals_autograd():
    torch.manual_seed(0)
    s, labels = torch.rand(4, 6, dtype=torch.float64, requires_grad=True), torch.tensor([0, 5, 5, 2])
    weights = PairWeights(torch.rand(4, dtype=torch.float64), torch.rand(4, 6, dtype=torch.float64))
    value = ProxyNCA(6, 5, scale=2.0, weighting=Weighting(*weights)).from_similarities(s, labels)
    terms = []
    for i, y in enumerate(labels.tolist()):
        others = sum(torch.exp(4.0 * weights.negative[i, c] * s[i, c]) for c in range(6) if c != y)
        terms.append(-torch.log(torch.exp(4.0 * weights.positive[i] * s[i, y]) / others))
    expected = sum(terms) / 4
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.autograd.grad(value, s), torch.autograd.grad(expected, s), rtol=1e-9, atol=1e-9)


def test_needs_two_classes():
    with pytest.raises(ValueError, match=r"num_classes must be at least 2.*got 1"):
        ProxyNCA(1, 5)
