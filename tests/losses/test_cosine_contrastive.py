from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning import distances as peer_distances
from pytorch_metric_learning import losses as peer
from pytorch_metric_learning import reducers as peer_reducers
from tests.losses.similarity_weights import similarity_weights

from nearkin.losses import CosineContrastive


def slow(case, margin=0.5):
    queries, references = case.units()
    total = 0.0
    for i, query in enumerate(queries):
        total = total + sum(1 - query @ references[j] for j in case.positives(i))
        total = total + sum(query @ references[j] for j in case.negatives(i) if query @ references[j] > margin)
    return total / len(queries)


@pytest.mark.parametrize("margin", [0.5, 0.1])
def test_equals_the_slow_reference(pair_case, margin):
    loss = CosineContrastive(margin=margin, normalisation=pair_case.normalisation)
    assert pair_case.agrees(loss, lambda case: slow(case, margin))


def slow_means(case, margin=0.5):
    queries, references = case.units()
    pulls, pushes = [], []
    for i, query in enumerate(queries):
        pulls += [1 - query @ references[j] for j in case.positives(i)]
        pushes += [query @ references[j] for j in case.negatives(i) if query @ references[j] > margin]
    return sum(sum(terms) / len(terms) for terms in (pulls, pushes) if terms)


@pytest.mark.parametrize("margin", [0.5, 0.1])
def test_means_of_each_kind_of_pair_equal_the_slow_reference(pair_case, margin):
    loss = CosineContrastive(margin=margin, reduction="nonzero", normalisation=pair_case.normalisation)
    assert pair_case.agrees(loss, lambda case: slow_means(case, margin))


def test_with_means_more_references_weigh_no_more():
    torch.manual_seed(0)
    x, y = torch.randn(8, 5), torch.arange(8) // 2
    references, labels = torch.randn(20, 5), torch.arange(20) % 4
    for reduction, factor in (("queries", 3.0), ("nonzero", 1.0)):
        loss = CosineContrastive(margin=0.2, reduction=reduction)
        once, thrice = loss(x, y, references, labels), loss(x, y, references.repeat(3, 1), labels.repeat(3))
        torch.testing.assert_close(thrice, factor * once)


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ValueError, match="reduction must be 'queries' or 'nonzero', got 'mean'"):
        CosineContrastive(reduction="mean")


def test_by_hand():
    # s(a,b) = 0.6, s(a,c) = 0.8, s(b,c) = 0.96; a and b are one class. Positive pairs: 0.4 for each order.
    # Negative pairs: 0.8 for (a,c), (c,a) and 0.96 for (b,c), (c,b), all above 0.5.
    x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]], dtype=torch.float64)
    value = CosineContrastive()(x, torch.tensor([0, 0, 1]))
    assert value.item() == pytest.approx((2 * 0.4 + 2 * 0.8 + 2 * 0.96) / 3, abs=1e-12)
    # With the margin above 0.8 only the last two negative pairs are left.
    value = CosineContrastive(margin=0.9)(x, torch.tensor([0, 0, 1]))
    assert value.item() == pytest.approx((2 * 0.4 + 2 * 0.96) / 3, abs=1e-12)


def test_relation_to_the_peers_contrastive_on_cosines(pair_case):
    # The peer has the hinge [s − m]+ on negative pairs, summed here by its SumReducer; C1 has s itself where s > m. So
    # ours is the peer's sum plus m for every active negative pair, over N.
    margin = 0.2
    x, y, *others = pair_case.arguments
    theirs = peer.ContrastiveLoss(
        pos_margin=1.0,
        neg_margin=margin,
        distance=peer_distances.CosineSimilarity(),
        reducer=peer_reducers.SumReducer(),
    )
    loss = CosineContrastive(margin=margin)
    pairs = loss.pairs(x, y, *others)
    active = (pairs.negative & (pairs.similarity > margin)).sum()
    references = dict(zip(("ref_emb", "ref_labels"), others, strict=False))
    expected = (theirs(x, y, **references) + margin * active) / len(x)
    assert active > 0
    torch.testing.assert_close(loss(x, y, *others), expected, rtol=1e-6, atol=1e-7)


def test_the_batch_as_references_adds_only_self_pairs():
    torch.manual_seed(0)
    x, y = torch.randn(12, 6, dtype=torch.float64), torch.arange(12) // 3
    loss = CosineContrastive()
    torch.testing.assert_close(loss(x, y, x, y), loss(x, y))
    # A vector inside the ball is not at similarity 1 with itself: its self-pair costs 1 − ‖x‖².
    short = 0.3 * x / x.norm(dim=1, keepdim=True)
    ball = CosineContrastive(normalisation="ball")
    torch.testing.assert_close(ball(short, y, short, y), ball(short, y) + (1 - 0.3**2))


def test_similarity_weights_are_one_over_n_for_every_active_pair():
    x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    # s(a,c) = 0 is below the margin, s(b,c) = 0.8 above it.
    expected = torch.tensor([[0, 1, 0], [1, 0, 1], [0, 1, 0]]) / 3
    torch.testing.assert_close(similarity_weights(CosineContrastive(), x, torch.tensor([0, 0, 1])), expected)


@pytest.mark.parametrize("reduction", ["queries", "nonzero"])
def test_a_negative_pair_at_the_margin_costs_nothing(reduction):
    # Their product is exactly one half: inside the ball lengths stay as they are.
    x = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    loss = CosineContrastive(margin=0.5, reduction=reduction, normalisation="ball")
    assert loss(x, torch.tensor([0, 1])).item() == 0
