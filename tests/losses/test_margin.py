from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses as peer
from pytorch_metric_learning import miners as peer_miners
from tests.losses.conftest import PairCase
from torch import nn

from nearkin.losses import Contrastive, Margin, margin


def slow(case, beta, reduction, margin=0.2, hard=False):
    queries, references = case.units()
    total, counted, pairs = 0.0, 0, 0
    for i, query in enumerate(queries):
        positives, negatives = case.positives(i), case.hard_negatives(i) if hard else case.negatives(i)
        pulls = [(torch.linalg.vector_norm(query - references[j]) - beta + margin).clamp_min(0) for j in positives]
        pushes = [(beta + margin - torch.linalg.vector_norm(query - references[j])).clamp_min(0) for j in negatives]
        pairs += len(pulls) + len(pushes)
        if reduction == "pairs":
            total = total + sum(pulls) + sum(pushes)
            continue
        for pull in pulls:
            for push in pushes:
                total = total + pull + push
                counted += int(pull > 0) + int(push > 0)
    return total / (pairs if reduction == "pairs" else max(1, counted))


@pytest.mark.parametrize("reduction", ["nonzero", "pairs"])
@pytest.mark.parametrize("beta", [1.2, 0.7])
def test_equals_the_slow_reference(pair_case, reduction, beta):
    loss = Margin(beta=beta, reduction=reduction, normalisation=pair_case.normalisation).double()
    assert pair_case.agrees(loss, lambda case: slow(case, loss.beta, reduction), parameters=(loss.beta,))


@pytest.mark.parametrize("reduction", ["nonzero", "pairs"])
def test_hard_pairs_equal_the_slow_reference(pair_case, reduction):
    loss = Margin(reduction=reduction, negatives="hard", normalisation=pair_case.normalisation).double()
    assert pair_case.agrees(loss, lambda case: slow(case, loss.beta, reduction, hard=True), parameters=(loss.beta,))


def slow_weights(case, dim):
    """Section 4 of Wu et al., pair by pair: 1/q(d), no larger than at 0.5, for negatives nearer than 1.4."""
    queries, references = case.units()
    rows = []
    for i, query in enumerate(queries):
        row, negatives = [0.0] * len(references), case.negatives(i)
        distances = {j: (query - references[j]).norm().item() for j in negatives}
        near = [j for j in negatives if distances[j] < 1.4]
        for j in near or negatives:
            d = max(0.5, distances[j])
            row[j] = 1 / (d ** (dim - 2) * (1 - d**2 / 4) ** ((dim - 3) / 2)) if near else 1.0
        rows.append([weight / (sum(row) or 1.0) for weight in row])
    return torch.tensor(rows, dtype=torch.float64)


def sphere(rows, dim, spread, seed=0):
    """Unit vectors, the nearer to each other the smaller the spread, and labels of twos and threes."""
    x = torch.randn(rows, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x[:, 0] += dim**0.5 / spread
    return torch.nn.functional.normalize(x), torch.tensor([0, 1, 1, 2, 3, 3, 3, 4, 4, 4, 5, 5])[:rows]


@pytest.mark.parametrize("normalisation", ["l2"])
def test_weights_of_distances_are_those_of_the_paper(pair_case):
    pairs = Margin().pairs(*pair_case.arguments)
    torch.testing.assert_close(margin.sampling_weights(pairs), slow_weights(pair_case, 3))


@pytest.mark.parametrize(("dim", "spread"), [(2, 1.0), (16, 2.0), (64, 0.5), (64, 1.0), (64, 4.0)])
def test_weights_agree_with_the_peer_and_the_paper_in_any_dimension(dim, spread, monkeypatch):
    x, y = sphere(12, dim, spread)
    ours = margin.sampling_weights(Margin().pairs(x, y))
    torch.testing.assert_close(ours, slow_weights(PairCase("l2", x, y), dim))
    drawn_by = []
    monkeypatch.setattr(
        peer_miners.distance_weighted_miner.lmu,
        "get_random_triplet_indices",
        lambda labels, ref_labels, weights: drawn_by.append(weights),
    )
    peer_miners.DistanceWeightedMiner(cutoff=margin.NEAREST, nonzero_loss_cutoff=margin.FARTHEST).mine(x, y, x, y)
    # It has no weights, or NaN, where a sample has no negative nearer than 1.4: there ours are alike.
    far = drawn_by[0].isnan().any(dim=1)
    torch.testing.assert_close(ours[~far], drawn_by[0][~far])
    alike = (ours > 0).sum(dim=1, keepdim=True).double().reciprocal() * (ours > 0)
    torch.testing.assert_close(ours[far], alike[far])


def test_near_negatives_are_drawn_far_more_often_than_chance_would():
    """In 64 dimensions nearly all random pairs are √2 apart; by hand, 1/q(0.7) over 1/q(1.3) is 9e7."""
    angles = 2 * torch.tensor([0.0, 0.0, 0.35, 0.65], dtype=torch.float64).asin()
    x = torch.zeros(4, 64, dtype=torch.float64)
    x[:, 0], x[:, 1] = angles.cos(), angles.sin()
    weights = margin.sampling_weights(Margin().pairs(x, torch.tensor([0, 0, 1, 2])))
    assert weights[0, 2] / weights[0, 3] == pytest.approx((13 / 7) ** 62 * ((1 - 0.4225) / (1 - 0.1225)) ** 30.5)


def test_as_many_negatives_are_drawn_as_there_are_positives_and_as_often_as_they_weigh():
    torch.manual_seed(0)
    x, y = sphere(12, 4, 1.0)
    loss = Margin(negatives="distance_weighted")
    pairs = loss.pairs(x, y)
    draws = torch.stack([loss._draw(pairs) for _ in range(2000)])
    assert (draws.sum(dim=2) == pairs.positive.sum(dim=1)).all()
    assert not (draws * ~pairs.negative).any()
    weights, number = margin.sampling_weights(pairs), 2000 * pairs.positive.sum(dim=1, keepdim=True).clamp_min(1)
    expected = weights * (pairs.positive.sum(dim=1, keepdim=True) > 0)
    spread = (expected * (1 - expected) / number).sqrt()
    assert ((draws.sum(dim=0) / number - expected).abs() <= 4.5 * spread).all()
    assert (expected > 0.3).any(), "they weigh differently"
    assert ((expected > 0) & (expected < 0.1)).any()


@pytest.mark.parametrize("reduction", ["nonzero", "pairs"])
def test_the_loss_of_drawn_negatives_equals_the_slow_reference(reduction, monkeypatch):
    x, y = sphere(12, 4, 0.5, seed=2)
    case = PairCase("l2", x.requires_grad_(), y)
    loss = Margin(beta=0.6, reduction=reduction, negatives="distance_weighted").double()
    pairs = loss.pairs(x, y)
    # One of them is drawn twice.
    drawn = next(draws for draws in (loss._draw(pairs) for _ in range(50)) if draws.max() > 1).tolist()
    monkeypatch.setattr(loss, "_draw", lambda pairs: torch.tensor(drawn))

    def of_draws(case):
        queries, references = case.units()
        total, counted = 0.0, 0
        for i, query in enumerate(queries):
            for j in case.positives(i):
                term = ((query - references[j]).norm() - loss.beta + 0.2).clamp_min(0)
                total, counted = total + term, counted + int(reduction == "pairs" or term > 0)
            for j in case.negatives(i):
                for _ in range(drawn[i][j]):
                    term = (loss.beta + 0.2 - (query - references[j]).norm()).clamp_min(0)
                    total, counted = total + term, counted + int(reduction == "pairs" or term > 0)
        return total / counted

    assert case.agrees(loss, of_draws, parameters=(loss.beta,))


def test_draws_are_numbered_so_that_a_resumed_run_draws_the_same():
    x, y = sphere(12, 4, 1.0)
    loss, resumed = (Margin(negatives="distance_weighted") for _ in range(2))
    pairs = loss.pairs(x, y)
    torch.manual_seed(5)
    first, second = loss._draw(pairs), loss._draw(pairs)
    resumed.load_state_dict({**loss.state_dict(), "_extra_state": torch.tensor(1)})
    torch.randn(3)  # what others draw does not matter
    assert torch.equal(resumed.eval()._draw(pairs), second)
    assert torch.equal(resumed._draw(pairs), second), "only training counts"
    assert not torch.equal(first, second)
    assert loss.state_dict()["_extra_state"].item() == 2
    torch.manual_seed(6)
    assert not torch.equal(resumed._draw(pairs), second), "another seed draws others"


def test_samples_without_a_positive_or_without_a_negative_draw_nothing():
    x = torch.eye(3, dtype=torch.float64)
    loss = Margin(negatives="distance_weighted").double()
    assert loss._draw(loss.pairs(x, torch.tensor([0, 1, 2]))).sum() == 0
    assert loss._draw(loss.pairs(x, torch.tensor([4, 4, 4]))).sum() == 0
    assert loss(x, torch.tensor([0, 1, 2])).item() == 0.0
    assert loss(x, torch.tensor([4, 4, 4])).item() == pytest.approx(2**0.5 - 1.0)


def test_distance_weighted_sampling_is_for_the_sphere():
    with pytest.raises(ValueError, match="needs normalisation 'l2'"):
        Margin(negatives="distance_weighted", normalisation="ball")


def test_by_hand():
    # a, b at a right angle are one class, c is opposite a: d(a,b) = d(b,c) = √2, d(a,c) = 2. β = 1.3, δ = 0.2.
    # Pulls: √2 − 1.1 for (a,b) and (b,a), each once for the single negative. Pushes: (b,c): 1.5 − √2 > 0; (a,c): 0.
    # c has no positive and takes no part.
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    loss = Margin(beta=1.3).double()
    value = loss(x, torch.tensor([0, 0, 1]))
    beta = loss.beta.item()
    expected = (2 * (math.sqrt(2) - beta + 0.2) + (beta + 0.2 - math.sqrt(2))) / 3
    assert value.item() == pytest.approx(expected, abs=1e-12)
    # Two active pulls push β up, one active push draws it down: −(2 − 1)/3.
    value.backward()
    assert loss.beta.grad.item() == pytest.approx(-1 / 3, abs=1e-12)


@pytest.mark.parametrize("beta", [1.2, 0.8])
def test_agrees_with_the_peer(pair_case, beta):
    # MarginLoss with all triplets per anchor, its default; learn_beta changes its gradient, not its value.
    x, y, *others = pair_case.arguments
    references = dict(zip(("ref_emb", "ref_labels"), others, strict=False))
    theirs = peer.MarginLoss(margin=0.2, beta=beta, learn_beta=True)
    ours = Margin(margin=0.2, beta=beta)
    a, b = ours(x, y, *others), theirs(x, y, None, **references)
    torch.testing.assert_close(a, b.squeeze(), rtol=1e-6, atol=1e-7)
    a.backward(retain_graph=True)
    b.backward()
    torch.testing.assert_close(ours.beta.grad, theirs.beta.grad.squeeze(), rtol=1e-5, atol=1e-6)


def test_differs_from_the_peer_in_that_the_boundary_is_trained_by_default():
    # Wu et al. learn β; the peer fixes it unless told otherwise.
    assert isinstance(Margin().beta, nn.Parameter)
    assert not list(peer.MarginLoss().parameters())


def test_reduction_over_pairs_is_contrastive_with_margins_around_the_boundary(pair_case):
    options = {"reduction": "pairs", "normalisation": pair_case.normalisation}
    ours = Margin(margin=0.25, beta=1.0, **options)
    same = Contrastive(pos_margin=0.75, neg_margin=1.25, **options)
    torch.testing.assert_close(ours(*pair_case.arguments), same(*pair_case.arguments))


def test_the_batch_as_references_adds_only_self_pairs():
    torch.manual_seed(0)
    x, y = torch.randn(24, 6, dtype=torch.float64), torch.arange(24) // 4
    # A self-pair is 0 apart, inside the boundary: it costs nothing, but is one more pair ...
    pairs = Margin(reduction="pairs")
    torch.testing.assert_close(pairs(x, y, x, y) * 24, pairs(x, y) * 23)
    # ... or one more positive that each negative pair of its sample is counted for: 4 instead of 3.
    loss = Margin()
    d = (torch.nn.functional.normalize(x)[:, None] - torch.nn.functional.normalize(x)).norm(dim=2)
    same = y[:, None] == y
    pull = ((d - loss.beta.item() + 0.2) * (same & ~torch.eye(24, dtype=torch.bool))).clamp_min(0)
    push = ((loss.beta.item() + 0.2 - d) * ~same).clamp_min(0)
    for call, positives in (((x, y), 3), ((x, y, x, y), 4)):
        expected = (20 * pull.sum() + positives * push.sum()) / (20 * (pull > 0).sum() + positives * (push > 0).sum())
        torch.testing.assert_close(loss(*call).detach(), expected)


def test_a_step_moves_the_boundary():
    loss = Margin()
    optimiser = torch.optim.SGD(loss.parameters(), lr=0.1)
    torch.manual_seed(0)
    loss(torch.randn(8, 4), torch.arange(8) // 2).backward()
    optimiser.step()
    assert loss.beta.item() != pytest.approx(1.2)


def test_options_are_checked():
    with pytest.raises(ValueError, match="reduction must be 'nonzero' or 'pairs', got 'mean'"):
        Margin(reduction="mean")
