from __future__ import annotations

import math

import pytest
import torch
from tests.losses.similarity_weights import similarity_weights

from nearkin.losses import DataWiseMultiProxyAnchor


def cosine(a, b):
    return (a * b).sum() / (a.norm() * b.norm())


def class_similarity(x, proxies, gamma=0.1):
    s = [cosine(x, p) for p in proxies]
    exps = [torch.exp(v / gamma) for v in s]
    return sum(e * v for e, v in zip(exps, s, strict=True)) / sum(exps)


def regulariser(proxies):
    classes, per_class, _ = proxies.shape
    distances = [
        (own[s] / own[s].norm() - own[t] / own[t].norm()).norm()
        for own in proxies
        for t in range(per_class)
        for s in range(t + 1, per_class)
    ]
    return sum(distances) / (classes * per_class * (per_class - 1)) if distances else 0.0


def mpa_dw(z, proxies, labels, *, alpha=32.0, margin=0.1, gamma=0.1, tau=0.2):
    total = torch.zeros((), dtype=z.dtype)
    for x, y in zip(z, labels.tolist(), strict=True):
        s = [class_similarity(x, own, gamma) for own in proxies]
        total = total + torch.log(1 + torch.exp(-alpha * (s[y] - margin)))
        total = total + torch.log(1 + sum(torch.exp(alpha * (s[c] + margin)) for c in range(len(s)) if c != y))
    return total / len(z) + tau * regulariser(proxies)


@pytest.mark.parametrize("per_class", [1, 3])
@pytest.mark.parametrize("options", [{}, {"alpha": 9.0, "margin": 0.2, "gamma": 0.4, "tau": 1.0}])
def test_equals_the_formula(assert_proxy_loss_equals, per_class, options):
    loss = DataWiseMultiProxyAnchor(6, 5, proxies_per_class=per_class, **options)
    assert_proxy_loss_equals(loss, lambda *a: mpa_dw(*a, **options))


def test_by_hand():
    # Proxies e1, e2, one per class; x = e1 of class 0, α = 2, δ = 0.5. Pull: log(1+e^(−2·½)) = 0.313262;
    # push: log(1+e^(2·½)) = 1.313262.
    loss = DataWiseMultiProxyAnchor(2, 2, proxies_per_class=1, alpha=2.0, margin=0.5)
    with torch.no_grad():
        loss.bank.vectors.copy_(torch.eye(2)[:, None])
    value = loss(torch.tensor([[3.0, 0.0]]), torch.tensor([0]))
    assert value.item() == pytest.approx(0.313262 + 1.313262, abs=2e-6)


def test_pair_weights_of_the_paper(proxy_batch):
    """Equation (14); in its S_DR the paper prints the same class twice, the first is the c of the sum."""
    z, labels = proxy_batch
    loss = DataWiseMultiProxyAnchor(6, 5, proxies_per_class=3).double()
    weights = similarity_weights(loss, z, labels)
    alpha, margin, n = 32.0, 0.1, len(z)
    for i, y in enumerate(labels.tolist()):
        s = [class_similarity(z[i], p).item() for p in loss.bank.vectors]
        for c in range(6):
            if c == y:
                expected = alpha / (math.exp(-alpha * (margin - s[y])) + 1) / n
            else:
                relative = sum(math.exp(alpha * (s[o] - s[c])) for o in range(6) if o != y)
                expected = alpha / (math.exp(-alpha * (s[c] + margin)) + relative) / n
            assert weights[i, c].item() == pytest.approx(expected, rel=1e-9)


def test_the_rest_of_the_batch_has_no_say_in_a_samples_gradient():
    torch.manual_seed(0)
    loss = DataWiseMultiProxyAnchor(6, 5, proxies_per_class=2)
    z, labels = torch.randn(4, 5), torch.tensor([0, 1, 1, 3])
    together = similarity_weights(loss, z, labels)
    alone = similarity_weights(loss, z[:1], labels[:1])
    torch.testing.assert_close(together[:1] * 4, alone)
