from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses as peer
from pytorch_metric_learning import miners as peer_miners
from tests.losses.similarity_weights import similarity_weights

from nearkin.losses import MultiSimilarity


def slow(case, *, alpha=2.0, beta=50.0, base=0.5, mining=True, epsilon=0.1):
    queries, references = case.units()
    total = 0.0
    for i, query in enumerate(queries):
        positives = [query @ references[j] for j in case.positives(i)]
        negatives = [query @ references[j] for j in case.negatives(i)]
        if mining:
            hardest = max(negatives, default=-math.inf), min(positives, default=math.inf)
            positives = [s for s in positives if s - epsilon < hardest[0]]
            negatives = [s for s in negatives if s + epsilon > hardest[1]]
        if positives:
            total = total + torch.log(1 + sum(torch.exp(-alpha * (s - base)) for s in positives)) / alpha
        if negatives:
            total = total + torch.log(1 + sum(torch.exp(beta * (s - base)) for s in negatives)) / beta
    return total / len(queries)


@pytest.mark.parametrize("mining", [True, False])
@pytest.mark.parametrize("options", [{}, {"alpha": 14.35, "beta": 75.83, "base": 0.66, "epsilon": 0.3}])
def test_equals_the_slow_reference(pair_case, options, mining):
    loss = MultiSimilarity(**options, mining=mining, normalisation=pair_case.normalisation)
    assert pair_case.agrees(loss, lambda case: slow(case, **options, mining=mining))


def test_by_hand():
    # s(a,b) = 0, s(a,c) = 0.6, s(b,c) = 0.8; a and b are one class, and mining keeps all their pairs:
    # positives 0 − 0.1 < 0.6 and 0.8, negatives 0.6 and 0.8 + 0.1 > 0. c has no positive, so mining leaves it nothing.
    # a: log(1 + e^1)/2 + log(1 + e^(50·0.1))/50, b: log(1 + e^1)/2 + log(1 + e^(50·0.3))/50, c: 0.
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], dtype=torch.float64)
    y = torch.tensor([0, 0, 1])
    both = math.log(1 + math.e) + (math.log(1 + math.exp(5)) + math.log(1 + math.exp(15))) / 50
    assert MultiSimilarity()(x, y).item() == pytest.approx(both / 3, abs=1e-12)
    # Without mining c pushes both others as well.
    alone = math.log(1 + math.exp(5) + math.exp(15)) / 50
    assert MultiSimilarity(mining=False)(x, y).item() == pytest.approx((both + alone) / 3, abs=1e-12)


@pytest.mark.parametrize(("alpha", "beta", "base"), [(2.0, 50.0, 0.5), (8.49, 57.38, 0.41)])
@pytest.mark.parametrize("mining", [True, False])
def test_agrees_with_the_peer(pair_case, alpha, beta, base, mining):
    # With mining: MultiSimilarityMiner of the same ε in front of MultiSimilarityLoss; without: the loss alone.
    x, y, *others = pair_case.arguments
    references = dict(zip(("ref_emb", "ref_labels"), others, strict=False))
    mined = peer_miners.MultiSimilarityMiner(epsilon=0.1)(x, y, **references) if mining else None
    theirs = peer.MultiSimilarityLoss(alpha=alpha, beta=beta, base=base)(x, y, mined, **references)
    ours = MultiSimilarity(alpha=alpha, beta=beta, base=base, mining=mining)(x, y, *others)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_the_batch_as_references_adds_only_self_pairs():
    torch.manual_seed(0)
    x, y = torch.randn(12, 6, dtype=torch.float64), torch.arange(12) // 3
    s = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(x).T
    # The self-pair is one more positive at similarity 1: e^(−2·0.5) more in the sum of each sample. Mining drops it
    # again, since no negative comes within 0.1 of it, and the least similar positive is another one.
    loss = MultiSimilarity(mining=False)
    exponents = torch.exp(-2 * (s - 0.5))
    positives = (exponents * ((y[:, None] == y) & ~torch.eye(12, dtype=torch.bool))).sum(dim=1)
    more = (torch.log(1 + positives + math.exp(-1)) - torch.log(1 + positives)).mean() / 2
    torch.testing.assert_close(loss(x, y, x, y), loss(x, y) + more)
    assert s[y[:, None] != y].max() < 0.9
    torch.testing.assert_close(MultiSimilarity()(x, y, x, y), MultiSimilarity()(x, y))


def test_similarity_weights_equal_the_papers():
    torch.manual_seed(0)
    x, y = torch.randn(9, 4, dtype=torch.float64), torch.arange(9) // 3
    weights = similarity_weights(MultiSimilarity(mining=False), x, y)
    s = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(x).T
    # Equations 7 and 8 of Wang et al.: w = 1 / (e^(∓scale(λ − s)) + Σ_k e^(∓scale(s_k − s))), over N.
    for i in range(9):
        positives = [j for j in range(9) if y[j] == y[i] and j != i]
        negatives = [j for j in range(9) if y[j] != y[i]]
        for group, scale in ((positives, -2.0), (negatives, 50.0)):
            for j in group:
                relative = sum(torch.exp(scale * (s[i, k] - s[i, j])) for k in group)
                expected = 1 / (torch.exp(scale * (0.5 - s[i, j])) + relative) / 9
                torch.testing.assert_close(weights[i, j], expected)
    assert weights.diagonal().abs().max() == 0


def test_options_are_checked():
    with pytest.raises(ValueError, match="alpha must be positive, got 0"):
        MultiSimilarity(alpha=0)
    with pytest.raises(ValueError, match="beta must be positive, got -1"):
        MultiSimilarity(beta=-1)
