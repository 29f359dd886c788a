from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from pytorch_metric_learning import distances as peer_distances
from pytorch_metric_learning import losses as peer
from pytorch_metric_learning import miners as peer_miners
from tests.losses.similarity_weights import similarity_weights

from nearkin.losses import Triplet


def slow(case, margin, squared, mining, *, reduction="nonzero", negatives="all"):
    queries, references = case.units()

    def distance(a, b):
        return (a - b).square().sum() if squared else torch.linalg.vector_norm(a - b)

    terms, triplets = [torch.zeros((), dtype=torch.float64)], 0
    for i, query in enumerate(queries):
        for j in case.positives(i):
            for k in case.hard_negatives(i) if negatives == "hard" else case.negatives(i):
                triplets += 1
                near, far = distance(query, references[j]), distance(query, references[k])
                wanted = {"all": True, "semihard": near < far, "hard": far <= near}[mining]
                if wanted and near - far + margin > 0:
                    terms.append(near - far + margin)
    return sum(terms) / max(1, triplets if reduction == "triplets" else len(terms) - 1)


@pytest.mark.parametrize("mining", ["all", "semihard", "hard"])
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("margin", [0.1, 0.9])
def test_equals_the_slow_reference(pair_case, margin, squared, mining):
    loss = Triplet(margin=margin, squared=squared, mining=mining, normalisation=pair_case.normalisation)
    assert pair_case.agrees(loss, lambda case: slow(case, margin, squared, mining))


@pytest.mark.parametrize("mining", ["all", "semihard"])
@pytest.mark.parametrize(("reduction", "hard"), [("triplets", False), ("nonzero", True), ("triplets", True)])
def test_means_over_all_triplets_and_hard_pairs_equal_the_slow_reference(pair_case, mining, reduction, hard):
    options = {"reduction": reduction, "negatives": "hard" if hard else "all"}
    loss = Triplet(margin=0.3, squared=True, mining=mining, **options, normalisation=pair_case.normalisation)
    assert pair_case.agrees(loss, lambda case: slow(case, 0.3, True, mining, **options))


def test_by_hand():
    # a = 0°, b = 60°, c = 90°, d = 180°; a, b of class 0. d(a,b) = 1, d(a,c) = √2, d(a,d) = 2, d(b,c) = 2 sin 15°,
    # d(b,d) = √3. With m = 0.5: (a,b,c): 1 − √2 + 0.5 > 0; (a,b,d): 1 − 2 + 0.5 < 0; (b,a,c): 1 − 2 sin 15° + 0.5 > 0;
    # (b,a,d): 1 − √3 + 0.5 < 0. c and d are alone in their classes.
    angles = torch.tensor([0.0, 60.0, 90.0, 180.0], dtype=torch.float64) * math.pi / 180
    x, y = torch.stack([angles.cos(), angles.sin()], dim=1), torch.tensor([0, 0, 1, 2])
    semihard, hard = 1.5 - math.sqrt(2), 1.5 - 2 * math.sin(math.pi / 12)
    assert Triplet(margin=0.5)(x, y).item() == pytest.approx((semihard + hard) / 2, abs=1e-12)
    assert Triplet(margin=0.5, mining="semihard")(x, y).item() == pytest.approx(semihard, abs=1e-12)
    assert Triplet(margin=0.5, mining="hard")(x, y).item() == pytest.approx(hard, abs=1e-12)


@pytest.mark.parametrize("mining", ["all", "semihard", "hard"])
@pytest.mark.parametrize("squared", [False, True])
def test_agrees_with_the_peer(pair_case, squared, mining):
    # TripletMarginLoss over all triplets, which TripletMarginMiner of the same margin narrows down.
    distance = peer_distances.LpDistance(power=2 if squared else 1)
    theirs = peer.TripletMarginLoss(margin=0.3, distance=distance)
    x, y, *others = pair_case.arguments
    references = dict(zip(("ref_emb", "ref_labels"), others, strict=False))
    miner = peer_miners.TripletMarginMiner(margin=0.3, type_of_triplets=mining, distance=distance)
    triplets = miner(x, y, **references)
    ours = Triplet(margin=0.3, squared=squared, mining=mining)
    torch.testing.assert_close(ours(x, y, *others), theirs(x, y, triplets, **references), rtol=1e-6, atol=1e-7)


def test_agrees_with_the_peer_on_a_large_batch_in_float32():
    torch.manual_seed(0)
    y = torch.randint(0, 20, (120,))
    x = torch.randn(120, 64) + torch.randn(20, 64)[y]
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    a, b = Triplet(margin=0.2)(ours, y), peer.TripletMarginLoss(margin=0.2)(theirs, y)
    a.backward()
    b.backward()
    torch.testing.assert_close(a, b, rtol=1e-5, atol=0)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-6)


def test_the_batch_as_references_adds_only_self_pairs():
    torch.manual_seed(0)
    x, y = torch.randn(20, 6), torch.arange(20) // 4
    nearest = (torch.cdist(*[torch.nn.functional.normalize(x)] * 2) + 9.0 * (y[:, None] == y)).min().item()
    # The self-pair is a positive at distance 0: its triplets are zero, and so not counted, while every negative is
    # farther than the margin ...
    loss = Triplet(margin=0.9 * nearest)
    torch.testing.assert_close(loss(x, y, x, y), loss(x, y))
    # ... and once one is nearer, they are m − d for each such negative.
    loss = Triplet(margin=2.5 * nearest)
    units = torch.nn.functional.normalize(x)
    case = SimpleNamespace(
        units=lambda: (list(units), list(units)),
        positives=lambda i: [j for j in range(20) if y[j] == y[i]],
        negatives=lambda i: [j for j in range(20) if y[j] != y[i]],
    )
    expected = slow(case, 2.5 * nearest, squared=False, mining="all")
    torch.testing.assert_close(loss(x, y, x, y), expected.float(), rtol=1e-5, atol=0)
    assert not torch.isclose(loss(x, y, x, y), loss(x, y), rtol=1e-4)


def test_ten_thousand_references_fit():
    # All triplets would be 8 · 10⁸ · 0.1: the memory of XBM at its usual size.
    torch.manual_seed(0)
    x, y = torch.randn(8, 4, requires_grad=True), torch.arange(8)
    references, labels = torch.randn(10_000, 4), torch.randint(0, 10, (10_000,))
    value = Triplet(margin=0.2)(x, y, references, labels)
    value.backward()
    # The same for the first sample alone, from the distances themselves.
    d = (torch.nn.functional.normalize(x[:1].detach()) - torch.nn.functional.normalize(references)).norm(dim=1).double()
    terms = (d[labels == 0][:, None] - d[labels != 0] + 0.2).clamp_min(0)
    one = Triplet(margin=0.2)(x[:1].detach(), y[:1], references, labels)
    assert one.item() == pytest.approx((terms.sum() / (terms > 0).sum()).item(), rel=1e-5)
    assert torch.isfinite(x.grad).all()


def test_similarity_weights_count_active_triplets():
    # The case worked by hand above: two active triplets, (a,b,c) and (b,a,c), and |∂d/∂s| = 1/d.
    angles = torch.tensor([0.0, 60.0, 90.0, 180.0], dtype=torch.float64) * math.pi / 180
    x, y = torch.stack([angles.cos(), angles.sin()], dim=1), torch.tensor([0, 0, 1, 2])
    expected = torch.zeros(4, 4, dtype=torch.float64)
    expected[0, 1] = expected[1, 0] = 1 / 2
    expected[0, 2] = 1 / math.sqrt(2) / 2
    expected[1, 2] = 1 / (2 * math.sin(math.pi / 12)) / 2
    torch.testing.assert_close(similarity_weights(Triplet(margin=0.5), x, y), expected)


def test_options_are_checked():
    with pytest.raises(ValueError, match="mining must be 'all', 'semihard' or 'hard', got 'easy'"):
        Triplet(mining="easy")
    with pytest.raises(ValueError, match="margin must be positive, got 0"):
        Triplet(margin=0)
