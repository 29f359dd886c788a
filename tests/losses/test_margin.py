from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses as peer
from torch import nn

from nearkin.losses import Contrastive, Margin


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
    loss = Margin(reduction=reduction, hard_pairs=True, normalisation=pair_case.normalisation).double()
    assert pair_case.agrees(loss, lambda case: slow(case, loss.beta, reduction, hard=True), parameters=(loss.beta,))


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
