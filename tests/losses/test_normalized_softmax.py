from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning.losses import NormalizedSoftmaxLoss

from nearkin.losses import NormalizedSoftmax


def cosine(a, b):
    return (a * b).sum() / (a.norm() * b.norm())


def normalised_softmax(z, proxies, labels, *, temperature):
    terms = []
    for x, y in zip(z, labels.tolist(), strict=True):
        exps = [torch.exp(cosine(x, p[0]) / temperature) for p in proxies]
        terms.append(-torch.log(exps[y] / sum(exps)))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("temperature", [0.05, 0.4])
def test_equals_the_formula(assert_proxy_loss_equals, temperature):
    loss = NormalizedSoftmax(6, 5, temperature=temperature)
    assert_proxy_loss_equals(loss, lambda *a: normalised_softmax(*a, temperature=temperature))


def test_default_temperature():
    assert NormalizedSoftmax(6, 5).temperature == 0.05


def test_by_hand():
    # Similarities of (1, 1) to the axes are both 1/√2: whatever the temperature, log 2.
    # Of (1, 0): 1 and 0, at T = 0.5: log(e^2 + e^0) − 2 = log(1 + e^−2) = 0.126928.
    loss = NormalizedSoftmax(2, 2, temperature=0.5)
    with torch.no_grad():
        loss.bank.vectors.copy_(torch.tensor([[[2.0, 0.0]], [[0.0, 0.1]]]))
    value = loss(torch.tensor([[1.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 0]))
    assert value.item() == pytest.approx((math.log(2) + 0.126928) / 2, abs=1e-6)


def test_agrees_with_pytorch_metric_learning():
    # With the same temperature; their weights are [dim, classes].
    torch.manual_seed(0)
    ours, theirs = NormalizedSoftmax(20, 16), NormalizedSoftmaxLoss(20, 16)
    with torch.no_grad():
        theirs.W.copy_(ours.bank.vectors[:, 0].T)
    z, labels = torch.randn(12, 16, requires_grad=True), torch.randint(9, (12,))
    value, expected = ours(z, labels), theirs(z, labels)
    torch.testing.assert_close(value, expected)
    of_z, of_vectors = torch.autograd.grad(value, [z, ours.bank.vectors])
    expected_of_z, of_w = torch.autograd.grad(expected, [z, theirs.W])
    torch.testing.assert_close(of_z, expected_of_z, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(of_vectors[:, 0], of_w.T, rtol=1e-4, atol=1e-5)


def test_temperature_must_be_positive():
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        NormalizedSoftmax(6, 5, temperature=0)
