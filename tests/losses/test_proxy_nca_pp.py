from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.losses import ProxyNCALoss

from nearkin.losses import NormalizedSoftmax, ProxyNCAPlusPlus


def squared_distance(a, b):
    return (a / a.norm() - b / b.norm()).square().sum()


def proxy_nca_pp(z, proxies, labels, *, temperature=0.1):
    terms = []
    for x, y in zip(z, labels.tolist(), strict=True):
        exps = [torch.exp(-squared_distance(x, p[0]) / temperature) for p in proxies]
        terms.append(-torch.log(exps[y] / sum(exps)))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9}])
def test_equals_the_formula(assert_proxy_loss_equals, options):
    assert_proxy_loss_equals(ProxyNCAPlusPlus(6, 5, **options), lambda *a: proxy_nca_pp(*a, **options))


def test_by_hand():
    # A sample on its proxy: d² = 0 there, 2 to each of the two others. With T = 2: log(1 + 2e^−1) = 0.551445.
    loss = ProxyNCAPlusPlus(3, 3, temperature=2.0)
    with torch.no_grad():
        loss.bank.vectors.copy_(torch.eye(3)[:, None])
    assert loss(torch.tensor([[0.0, 4.0, 0.0]]), torch.tensor([1])).item() == pytest.approx(0.551445, abs=1e-6)


def test_agrees_with_the_proxy_nca_of_pytorch_metric_learning():
    # Their ProxyNCALoss has the positive in the denominator; softmax_scale is one over our temperature.
    torch.manual_seed(0)
    ours, theirs = ProxyNCAPlusPlus(20, 16, temperature=0.1), ProxyNCALoss(20, 16, softmax_scale=10.0)
    with torch.no_grad():
        theirs.proxies.copy_(ours.bank.vectors[:, 0])
    z, labels = torch.randn(12, 16, requires_grad=True), torch.randint(9, (12,))
    value, expected = ours(z, labels), theirs(z, labels)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    of_z, of_vectors = torch.autograd.grad(value, [z, ours.bank.vectors])
    expected_of_z, of_proxies = torch.autograd.grad(expected, [z, theirs.proxies])
    torch.testing.assert_close(of_z, expected_of_z, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(of_vectors[:, 0], of_proxies, rtol=1e-3, atol=1e-4)


def test_is_normalised_softmax_at_half_the_temperature(proxy_batch):
    z, labels = proxy_batch
    nca, softmax = ProxyNCAPlusPlus(6, 5).double(), NormalizedSoftmax(6, 5).double()
    softmax.load_state_dict(nca.state_dict())
    torch.testing.assert_close(nca(z, labels), softmax(z, labels), rtol=1e-12, atol=1e-12)


def test_temperature_must_be_positive():
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        ProxyNCAPlusPlus(6, 5, temperature=0)
