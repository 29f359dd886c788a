from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import distances as peer_distances
from pytorch_metric_learning import losses as peer
from tests.losses.similarity_weights import similarity_weights

from nearkin.losses import Contrastive

MARGINS = {"pos_margin": 0.3, "neg_margin": 1.2}


def slow_terms(case, power=1, hard=False):
    queries, references = case.units()
    pull, push, pairs = [], [], 0
    for i, query in enumerate(queries):
        for j in case.positives(i):
            pull.append((torch.linalg.vector_norm(query - references[j]) - 0.3).clamp_min(0) ** power)
        negatives = case.hard_negatives(i) if hard else case.negatives(i)
        for j in negatives:
            push.append((1.2 - torch.linalg.vector_norm(query - references[j])).clamp_min(0) ** power)
        pairs += len(case.positives(i)) + len(negatives)
    return pull, push, pairs


def slow_nonzero(case, **options):
    pull, push, _ = slow_terms(case, **options)
    return sum(sum(kind) / max(1, sum(t > 0 for t in kind)) for kind in (pull, push))


def slow_pairs(case, **options):
    pull, push, pairs = slow_terms(case, **options)
    return (sum(pull) + sum(push)) / pairs


@pytest.mark.parametrize(("reduction", "slow"), [("nonzero", slow_nonzero), ("pairs", slow_pairs)])
def test_equals_the_slow_reference(pair_case, reduction, slow):
    loss = Contrastive(**MARGINS, reduction=reduction, normalisation=pair_case.normalisation)
    assert pair_case.agrees(loss, slow)


@pytest.mark.parametrize(("reduction", "slow"), [("nonzero", slow_nonzero), ("pairs", slow_pairs)])
@pytest.mark.parametrize(("power", "hard"), [(2, False), (1, True), (2, True)])
def test_squares_and_hard_pairs_equal_the_slow_reference(pair_case, reduction, slow, power, hard):
    options = {"power": power, "negatives": "hard" if hard else "all"}
    loss = Contrastive(**MARGINS, **options, reduction=reduction, normalisation=pair_case.normalisation)
    assert pair_case.agrees(loss, lambda case: slow(case, power=power, hard=hard))


def test_the_loss_of_the_profs_paper_by_hand():
    # Equation 3.1 with ε = 1: a, b of one class at 90° (d² = 2); c at 30° from a and 60° from b: d = 2 sin 15° and 1.
    # Hard pairs: a and b have one positive each, so one negative each, c; c has no positive and so no negative.
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [math.sqrt(3) / 2, 0.5]], dtype=torch.float64)
    loss = Contrastive(neg_margin=1.0, power=2, reduction="pairs", negatives="hard")
    expected = (2 + 2 + (1 - 2 * math.sin(math.pi / 12)) ** 2 + 0) / 4
    assert loss(x, torch.tensor([0, 0, 1])).item() == pytest.approx(expected, abs=1e-12)


def test_by_hand():
    # d(a,b) = √2 for the right angle, d(a,c) = 2 sin 15° = 0.5176 and d(b,c) = 2 sin 30° = 1 at 30° and 60°.
    # a and b are one class, c another: pull √2 − 0.4 for (a,b) and (b,a); push 1.1 − 0.5176 for (a,c), (c,a) and
    # 1.1 − 1 for (b,c), (c,b).
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [math.sqrt(3) / 2, 0.5]], dtype=torch.float64)
    loss = Contrastive(pos_margin=0.4, neg_margin=1.1)
    near, far = 2 * math.sin(math.pi / 12), 1.0
    expected = (math.sqrt(2) - 0.4) + ((1.1 - near) + (1.1 - far)) / 2
    assert loss(x, torch.tensor([0, 0, 1])).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("margins", [(0.0, 1.0), (0.2652, 0.5409), (0.9, 1.9)])
def test_agrees_with_the_peer_in_its_default_reduction(pair_case, margins):
    pos_margin, neg_margin = margins
    ours = Contrastive(pos_margin=pos_margin, neg_margin=neg_margin)
    theirs = peer.ContrastiveLoss(pos_margin=pos_margin, neg_margin=neg_margin)
    x, y, *others = pair_case.arguments
    references = dict(zip(("ref_emb", "ref_labels"), others, strict=False))
    torch.testing.assert_close(ours(x, y, *others), theirs(x, y, **references), rtol=1e-6, atol=1e-7)


def test_differs_from_the_peer_on_a_batch_with_a_single_pair_of_each_kind():
    # The peer calls a batch with at most one positive and one negative pair empty; a CCP step may well be one.
    x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    references, labels = torch.tensor([[0.0, 1.0], [0.6, 0.8]]), torch.tensor([0, 1])
    assert peer.ContrastiveLoss()(x, y, ref_emb=references, ref_labels=labels) == 0
    expected = math.sqrt(2) + (1 - math.sqrt(0.16 + 0.64))
    assert Contrastive(neg_margin=1.0)(x, y, references, labels).item() == pytest.approx(expected, abs=1e-6)


def test_ball_leaves_short_vectors_alone_where_the_peer_normalises_or_does_not():
    x, y = torch.tensor([[0.2, 0.0], [0.0, 3.0]]), torch.tensor([0, 0])
    # Distance between (0.2, 0) and (0, 1): √1.04.
    assert Contrastive(normalisation="ball")(x, y).item() == pytest.approx(math.sqrt(1.04), abs=1e-6)
    raw = peer.ContrastiveLoss(distance=peer_distances.LpDistance(normalize_embeddings=False))
    assert raw(x, y).item() == pytest.approx(math.sqrt(9.04), abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_batch_as_references_adds_only_self_pairs_and_those_are_zero(dtype):
    torch.manual_seed(0)
    x, y = torch.randn(60, 32, dtype=dtype), torch.arange(60) // 4
    nonzero = Contrastive(pos_margin=0.0, neg_margin=1.4)
    torch.testing.assert_close(nonzero(x, y, x, y), nonzero(x, y))
    # Divided by 60 · 60 pairs instead of 60 · 59, the sum is the same.
    pairs = Contrastive(pos_margin=0.0, neg_margin=1.4, reduction="pairs")
    torch.testing.assert_close(pairs(x, y, x, y) * 60, pairs(x, y) * 59)


def test_similarity_weights_are_one_over_the_distance_and_the_number_of_active_pairs():
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    weights = similarity_weights(Contrastive(neg_margin=1.5), x, torch.tensor([0, 0, 1]))
    # Active: both orders of the positive pair, d = √2, and of (b, c), d = √2; (a, c) is 2 apart. |∂d/∂s| = 1/d.
    w = 1 / (2 * math.sqrt(2))
    expected = torch.tensor([[0, w, 0], [w, 0, w], [0, w, 0]], dtype=torch.float64)
    torch.testing.assert_close(weights, expected)


def test_options_are_checked():
    with pytest.raises(ValueError, match="reduction must be 'nonzero' or 'pairs', got 'sum'"):
        Contrastive(reduction="sum")
    with pytest.raises(ValueError, match="power must be 1 or 2, got 3"):
        Contrastive(power=3)
    with pytest.raises(ValueError, match="normalisation must be 'l2' or 'ball', got 'none'"):
        Contrastive(normalisation="none")
