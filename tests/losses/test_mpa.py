from __future__ import annotations

import math

import pytest
import torch
from tests.losses.similarity_weights import similarity_weights

from nearkin.losses import (
    AllPairsMultiProxyAnchor,
    DataWiseMultiProxyAnchor,
    InformativeSampleWeights,
    MultiProxyAnchor,
    ProxyAnchor,
)


def cosine(a, b):
    return (a * b).sum() / (a.norm() * b.norm())


def class_similarity(x, proxies, gamma, kind):
    s = torch.stack([cosine(x, p) for p in proxies])
    if kind == "max":
        return s.max()
    if kind == "mean":
        return sum(s) / len(s)
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


def mpa(z, proxies, labels, *, alpha=32.0, margin=0.1, gamma=0.1, tau=0.2, kind="softmax"):
    pull = push = torch.zeros((), dtype=z.dtype)
    for c, own in enumerate(proxies):
        s = [class_similarity(x, own, gamma, kind) for x in z]
        positives = [torch.exp(-alpha * (s[i] - margin)) for i in range(len(z)) if labels[i] == c]
        negatives = [torch.exp(alpha * (s[i] + margin)) for i in range(len(z)) if labels[i] != c]
        pull = pull + torch.log(1 + sum(positives, torch.zeros_like(pull)))
        push = push + torch.log(1 + sum(negatives, torch.zeros_like(push)))
    return pull / len(set(labels.tolist())) + push / len(proxies) + tau * regulariser(proxies)


@pytest.mark.parametrize("kind", ["softmax", "max", "mean"])
@pytest.mark.parametrize("options", [{}, {"alpha": 9.0, "margin": 0.2, "gamma": 0.02, "tau": 1.0}])
def test_equals_the_formula(assert_proxy_loss_equals, kind, options):
    loss = MultiProxyAnchor(6, 5, proxies_per_class=3, class_similarity=kind, **options)
    assert_proxy_loss_equals(loss, lambda *a: mpa(*a, kind=kind, **options))


@pytest.mark.parametrize("kind", [MultiProxyAnchor, DataWiseMultiProxyAnchor, AllPairsMultiProxyAnchor])
def test_proxies_may_start_as_long_as_proxy_anchors(kind):
    torch.manual_seed(0)
    one = ProxyAnchor(50, 64).bank.vectors.norm(dim=2).mean()
    ten, long = (kind(50, 64, start_scale=scale).bank.vectors.norm(dim=2).mean() for scale in (1.0, math.sqrt(10)))
    assert (ten / one).item() == pytest.approx(1 / math.sqrt(10), rel=0.05)
    assert (long / one).item() == pytest.approx(1, rel=0.05)
    with pytest.raises(ValueError, match="start_scale must be"):
        kind(50, 64, start_scale=0.0)


def test_by_hand():
    # Class 0 has proxies e1, e2; class 1 has −e1, −e2. x = e1 of class 0, class_similarity="mean", α = 2, δ = 0, τ = 1:
    # S = ½ and −½. Pull: log(1+e^−1) = 0.313262. Push: class 0 has no negative, class 1 log(1+e^−1), over C = 2:
    # 0.156631. Reg: √2 in each class, over C K (K−1) = 4: 0.707107.
    loss = MultiProxyAnchor(2, 2, proxies_per_class=2, alpha=2.0, margin=0.0, tau=1.0, class_similarity="mean")
    with torch.no_grad():
        loss.bank.vectors.copy_(torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[-1.0, 0.0], [0.0, -3.0]]]))
    value = loss(torch.tensor([[0.5, 0.0]]), torch.tensor([0]))
    assert value.item() == pytest.approx(0.313262 + 0.156631 + 0.707107, abs=2e-6)


def test_pair_weights_of_the_paper(proxy_batch):
    """Equation (8) of the MPA paper, and the form (9) into which it turns it."""
    z, labels = proxy_batch
    loss = MultiProxyAnchor(6, 5, proxies_per_class=3).double()
    weights = similarity_weights(loss, z, labels)
    alpha, margin, present = 32.0, 0.1, len(set(labels.tolist()))
    s = [[class_similarity(x, p, 0.1, "softmax").item() for p in loss.bank.vectors] for x in z]
    for i, y in enumerate(labels.tolist()):
        for c in range(6):
            sign, norm = (-1, present) if c == y else (1, 6)
            alike = [j for j in range(len(z)) if (labels[j].item() == c) == (c == y)]
            terms = {j: math.exp(alpha * (sign * s[j][c] + margin)) for j in alike}
            equation_8 = alpha * terms[i] / (1 + sum(terms.values())) / norm
            own = math.exp(-alpha * (sign * s[i][c] + margin))
            relative = sum(math.exp(sign * alpha * (s[j][c] - s[i][c])) for j in alike)
            equation_9 = alpha / (own + relative) / norm
            assert weights[i, c].item() == pytest.approx(equation_8, rel=1e-9)
            assert weights[i, c].item() == pytest.approx(equation_9, rel=1e-9)


@pytest.mark.parametrize("kind", ["softmax", "max", "mean"])
def test_one_proxy_and_no_regulariser_is_proxy_anchor(proxy_batch, kind):
    z, labels = proxy_batch
    mpa_loss = MultiProxyAnchor(6, 5, proxies_per_class=1, tau=0.0, class_similarity=kind).double()
    anchor = ProxyAnchor(6, 5).double()
    anchor.load_state_dict(mpa_loss.state_dict())
    z.requires_grad_()
    ours, theirs = mpa_loss(z, labels), anchor(z, labels)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(ours, [z, mpa_loss.bank.vectors]),
        torch.autograd.grad(theirs, [z, anchor.bank.vectors]),
        rtol=1e-12,
        atol=1e-12,
    )


def test_takes_informative_weights():
    torch.manual_seed(0)
    weighting = InformativeSampleWeights(6, 5, memory_size=40)
    loss = MultiProxyAnchor(6, 5, proxies_per_class=3, weighting=weighting)
    plain = MultiProxyAnchor(6, 5, proxies_per_class=3)
    plain.bank.load_state_dict(loss.bank.state_dict())
    z, labels = torch.randn(12, 5), torch.arange(12) % 6
    values = []
    for epoch in range(3):
        loss.begin_epoch(epoch)
        values.append(loss(z, labels).item())
    assert values[:2] == [plain(z, labels).item()] * 2
    assert values[2] != values[0]
    # Every class's S_avg is the mean of S over its memory, here the two samples of the first pass with the memory on.
    expected = loss.class_similarities(z)[torch.arange(12), labels].view(2, 6).mean(0)
    torch.testing.assert_close(weighting.average, expected.detach(), rtol=1e-5, atol=1e-6)


def test_class_similarity_is_checked():
    with pytest.raises(ValueError, match="class_similarity must be 'softmax', 'max' or 'mean', got 'median'"):
        MultiProxyAnchor(6, 5, class_similarity="median")
