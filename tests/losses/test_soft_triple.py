from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning.losses import SoftTripleLoss
from tests.losses.similarity_weights import similarity_weights

from nearkin.losses import CosFace, SoftTriple


def cosine(a, b):
    return (a * b).sum() / (a.norm() * b.norm())


def class_similarity(x, proxies, gamma):
    s = [cosine(x, p) for p in proxies]
    exps = [torch.exp(v / gamma) for v in s]
    return sum(e * v for e, v in zip(exps, s, strict=True)) / sum(exps)


def regulariser(proxies):
    classes, per_class, _ = proxies.shape
    total = torch.zeros((), dtype=proxies.dtype)
    for own in proxies:
        for t in range(per_class):
            for s in range(t + 1, per_class):
                total = total + torch.sqrt(2 - 2 * cosine(own[s], own[t]))
    return total / (classes * per_class * (per_class - 1)) if per_class > 1 else total


def soft_triple(z, proxies, labels, *, scale=20.0, gamma=0.1, tau=0.2, margin=0.01):
    terms = []
    for x, y in zip(z, labels.tolist(), strict=True):
        logits = [scale * (class_similarity(x, p, gamma) - (margin if c == y else 0)) for c, p in enumerate(proxies)]
        terms.append(-torch.log(torch.exp(logits[y]) / sum(torch.exp(v) for v in logits)))
    return sum(terms) / len(terms) + tau * regulariser(proxies)


@pytest.mark.parametrize("per_class", [1, 2, 4])
@pytest.mark.parametrize("options", [{}, {"scale": 7.0, "gamma": 0.03, "tau": 1.5, "margin": 0.3}, {"tau": 0.0}])
def test_equals_the_formula(assert_proxy_loss_equals, per_class, options):
    loss = SoftTriple(6, 5, proxies_per_class=per_class, **options)
    assert_proxy_loss_equals(loss, lambda *a: soft_triple(*a, **options))


def test_by_hand():
    # Class 0 has proxies e1 and e2, class 1 has −e1 and −e2; γ = 1, λ = 1, δ = 0, τ = 1. For x = e1:
    # S(x, 0) = (e·1 + 1·0)/(e + 1) = 0.731059; S(x, 1) = (e^−1·(−1) + 1·0)/(e^−1 + 1) = −0.268941.
    # Cross-entropy: log(1 + e^−1) = 0.313262. Reg: √2 in each class, over C K (K−1) = 4: 2√2/4 = 0.707107.
    loss = SoftTriple(2, 2, proxies_per_class=2, scale=1.0, gamma=1.0, tau=1.0, margin=0.0)
    with torch.no_grad():
        loss.bank.vectors.copy_(torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[-1.0, 0.0], [0.0, -3.0]]]))
    value = loss(torch.tensor([[0.5, 0.0]]), torch.tensor([0]))
    assert value.item() == pytest.approx(0.313262 + 0.707107, abs=2e-6)


def test_agrees_with_pytorch_metric_learning():
    # With tau=0: theirs has no term on the spread of the proxies (only a weight_regularizer of one's own).
    torch.manual_seed(0)
    ours, theirs = SoftTriple(20, 16, proxies_per_class=3, tau=0.0), SoftTripleLoss(20, 16, centers_per_class=3)
    with torch.no_grad():
        theirs.fc.copy_(ours.bank.vectors.flatten(0, 1).T)
    z, labels = torch.randn(12, 16, requires_grad=True), torch.randint(9, (12,))
    value, expected = ours(z, labels), theirs(z, labels)
    torch.testing.assert_close(value, expected)
    of_z, of_vectors = torch.autograd.grad(value, [z, ours.bank.vectors])
    expected_of_z, of_fc = torch.autograd.grad(expected, [z, theirs.fc])
    torch.testing.assert_close(of_z, expected_of_z, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(of_vectors.flatten(0, 1), of_fc.T, rtol=1e-4, atol=1e-5)


def test_pair_weights_of_the_mpa_paper(proxy_batch):
    """Equation (5) of the MPA paper, whose signs are swapped in print, divided by N as the loss is a mean here."""
    z, labels = proxy_batch
    loss = SoftTriple(6, 5, proxies_per_class=3).double()
    weights = similarity_weights(loss, z, labels)
    scale, margin = 20.0, 0.01
    for i, y in enumerate(labels.tolist()):
        s = [class_similarity(z[i], p, 0.1).item() for p in loss.bank.vectors]
        for c in range(6):
            if c == y:
                # The paper prints λ / (1 + Σ l_R⁺), which holds for two classes; for more, the l_R⁺ add up as
                # resistances in parallel do.
                ratios = [math.exp(scale * (s[y] - s[o] - margin)) for o in range(6) if o != y]
                expected = scale / (1 + 1 / sum(1 / r for r in ratios))
            else:
                total = math.exp(scale * (s[y] - s[c] - margin))
                total += sum(math.exp(scale * (s[o] - s[c])) for o in range(6) if o != y)
                expected = scale / total
            assert weights[i, c].item() == pytest.approx(expected / len(z), rel=1e-9)


def test_one_proxy_per_class_is_cosface(proxy_batch):
    z, labels = proxy_batch
    one = SoftTriple(6, 5, proxies_per_class=1).double()
    cosface = CosFace(6, 5, scale=20.0, margin=0.01).double()
    cosface.load_state_dict(one.state_dict())
    torch.testing.assert_close(one(z, labels), cosface(z, labels), rtol=1e-12, atol=1e-12)


def test_equal_proxies_have_a_finite_gradient():
    loss = SoftTriple(3, 4, proxies_per_class=5)
    with torch.no_grad():
        loss.bank.vectors.copy_(torch.randn(3, 1, 4).expand(3, 5, 4))
    value = loss(torch.randn(2, 4), torch.tensor([0, 2]))
    value.backward()
    assert value.isfinite()
    assert loss.bank.vectors.grad.isfinite().all()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"scale": 0}, "scale must be positive, got 0"),
        ({"gamma": 0}, "gamma must be positive, got 0"),
        ({"proxies_per_class": 0}, "proxies_per_class must be at least 1"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        SoftTriple(6, 5, **options)
