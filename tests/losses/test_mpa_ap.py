from __future__ import annotations

import math

import pytest
import torch
from tests.losses.similarity_weights import similarity_weights

from nearkin.losses import AllPairsMultiProxyAnchor


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


def mpa_ap(z, proxies, labels, *, alpha=32.0, margin=0.1, gamma=0.1, tau=0.2):
    total = torch.zeros((), dtype=z.dtype)
    for x, y in zip(z, labels.tolist(), strict=True):
        s = [class_similarity(x, own, gamma) for own in proxies]
        with_margin = [margin - v if c == y else v + margin for c, v in enumerate(s)]
        total = total + torch.log(1 + sum(torch.exp(alpha * v) for v in with_margin))
    return total / len(z) + tau * regulariser(proxies)


@pytest.mark.parametrize("per_class", [1, 3])
@pytest.mark.parametrize("options", [{}, {"alpha": 9.0, "margin": 0.2, "gamma": 0.4, "tau": 1.0}])
def test_equals_the_formula(assert_proxy_loss_equals, per_class, options):
    loss = AllPairsMultiProxyAnchor(6, 5, proxies_per_class=per_class, **options)
    assert_proxy_loss_equals(loss, lambda *a: mpa_ap(*a, **options))


def test_by_hand():
    # Proxies e1, e2, one per class; x = e1 of class 0, α = 2, δ = 0.5: S' = −½ and ½.
    # log(1 + e^−1 + e) = log 4.086161 = 1.407606.
    loss = AllPairsMultiProxyAnchor(2, 2, proxies_per_class=1, alpha=2.0, margin=0.5)
    with torch.no_grad():
        loss.bank.vectors.copy_(torch.eye(2)[:, None])
    value = loss(torch.tensor([[3.0, 0.0]]), torch.tensor([0]))
    assert value.item() == pytest.approx(1.407606, abs=2e-6)


def test_pair_weights_of_the_paper(proxy_batch):
    """Equation (18): |∂L/∂S| is |∂L/∂S'|, as S' is S or −S plus a constant."""
    z, labels = proxy_batch
    loss = AllPairsMultiProxyAnchor(6, 5, proxies_per_class=3).double()
    weights = similarity_weights(loss, z, labels)
    alpha, margin, n = 32.0, 0.1, len(z)
    for i, y in enumerate(labels.tolist()):
        s = [class_similarity(z[i], p).item() for p in loss.bank.vectors]
        with_margin = [margin - v if c == y else v + margin for c, v in enumerate(s)]
        for c in range(6):
            relative = sum(math.exp(alpha * (v - with_margin[c])) for v in with_margin)
            expected = alpha / (math.exp(-alpha * with_margin[c]) + relative) / n
            assert weights[i, c].item() == pytest.approx(expected, rel=1e-9)


def test_the_rest_of_the_batch_has_no_say_in_a_samples_gradient():
    torch.manual_seed(0)
    loss = AllPairsMultiProxyAnchor(6, 5, proxies_per_class=2)
    z, labels = torch.randn(4, 5), torch.tensor([0, 1, 1, 3])
    together = similarity_weights(loss, z, labels)
    alone = similarity_weights(loss, z[:1], labels[:1])
    torch.testing.assert_close(together[:1] * 4, alone)
