from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.losses import CosFaceLoss

from nearkin.losses import CosFace, NormalizedSoftmax


def cosine(a, b):
    return (a * b).sum() / (a.norm() * b.norm())


def cosface(z, proxies, labels, *, scale=64.0, margin=0.35):
    terms = []
    for x, y in zip(z, labels.tolist(), strict=True):
        logits = [scale * (cosine(x, p[0]) - (margin if c == y else 0.0)) for c, p in enumerate(proxies)]
        terms.append(-torch.log(torch.exp(logits[y]) / sum(torch.exp(v) for v in logits)))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("options", [{}, {"scale": 10.0, "margin": 0.2}])
def test_equals_the_formula(assert_proxy_loss_equals, options):
    assert_proxy_loss_equals(CosFace(6, 5, **options), lambda *a: cosface(*a, **options))


def test_by_hand():
    # Similarities of (1, 0) to the axes: 1, 0. With a = 2 and m = 0.5: logits 1 and 0, log(1 + e^−1) = 0.313262.
    loss = CosFace(2, 2, scale=2.0, margin=0.5)
    with torch.no_grad():
        loss.bank.vectors.copy_(torch.tensor([[[2.0, 0.0]], [[0.0, 0.1]]]))
    assert loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item() == pytest.approx(0.313262, abs=1e-6)


def test_agrees_with_pytorch_metric_learning():
    # With the same scale and margin; their weights are [dim, classes].
    torch.manual_seed(0)
    ours, theirs = CosFace(20, 16), CosFaceLoss(20, 16)
    with torch.no_grad():
        theirs.W.copy_(ours.bank.vectors[:, 0].T)
    z, labels = torch.randn(12, 16, requires_grad=True), torch.randint(9, (12,))
    value, expected = ours(z, labels), theirs(z, labels)
    torch.testing.assert_close(value, expected)
    of_z, of_vectors = torch.autograd.grad(value, [z, ours.bank.vectors])
    expected_of_z, of_w = torch.autograd.grad(expected, [z, theirs.W])
    torch.testing.assert_close(of_z, expected_of_z, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(of_vectors[:, 0], of_w.T, rtol=1e-4, atol=1e-5)


def test_without_margin_it_is_normalised_softmax(proxy_batch):
    z, labels = proxy_batch
    margin_free, softmax = CosFace(6, 5, scale=20.0, margin=0.0).double(), NormalizedSoftmax(6, 5).double()
    softmax.load_state_dict(margin_free.state_dict())
    torch.testing.assert_close(margin_free(z, labels), softmax(z, labels), rtol=1e-12, atol=1e-12)


def test_scale_must_be_positive():
    with pytest.raises(ValueError, match="scale must be positive, got -1"):
        CosFace(6, 5, scale=-1)
