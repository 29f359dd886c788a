from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses as peer
from tests.losses.similarity_weights import similarity_weights

from nearkin.losses import Angular


def slow(case, alpha):
    queries, references = case.units()
    tan2 = math.tan(math.radians(alpha)) ** 2
    terms = []
    for i, query in enumerate(queries):
        for j in case.positives(i):
            f = [
                4 * tan2 * (query + references[j]) @ references[n] - 2 * (1 + tan2) * query @ references[j]
                for n in case.negatives(i)
            ]
            terms.append(torch.log(1 + sum(torch.exp(value) for value in f)))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("alpha", [45.0, 36.0, 60.0])
def test_equals_the_slow_reference(pair_case, alpha):
    loss = Angular(alpha=alpha, normalisation=pair_case.normalisation)
    assert pair_case.agrees(loss, lambda case: slow(case, alpha))


def test_by_hand():
    # a, b at a right angle are one class, c halfway between: x_a·x_b = 0, (x_a + x_b)·x_c = √2, tan² 45° = 1.
    # log(1 + e^(4√2)) for both orders of the pair.
    r = math.sqrt(0.5)
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [r, r]], dtype=torch.float64)
    expected = math.log(1 + math.exp(4 * math.sqrt(2)))
    assert Angular()(x, torch.tensor([0, 0, 1])).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("alpha", [45.0, 40.0])
def test_agrees_with_the_peer_on_vectors_of_length_one(pair_case, alpha):
    x, y, *others = pair_case.arguments
    x = torch.nn.functional.normalize(x)
    others = [torch.nn.functional.normalize(t) if t.is_floating_point() else t for t in others]
    references = dict(zip(("ref_emb", "ref_labels"), others, strict=False))
    # The peer's angle is a float32.
    torch.testing.assert_close(
        Angular(alpha=alpha)(x, y, *others), peer.AngularLoss(alpha=alpha)(x, y, **references), rtol=1e-6, atol=1e-6
    )


def test_differs_from_the_peer_on_other_lengths():
    # The peer normalises anchor and positive but not the negative. Wang et al. normalise all three (their section 4.1).
    torch.manual_seed(0)
    x, y = torch.randn(6, 4), torch.arange(6) // 2
    ours, theirs = Angular(), peer.AngularLoss(alpha=45)
    torch.testing.assert_close(ours(3 * x, y), ours(x, y))
    assert not torch.isclose(theirs(3 * x, y), theirs(x, y), rtol=0.01)


def test_the_batch_as_references_adds_only_self_pairs():
    torch.manual_seed(0)
    x, y = torch.randn(12, 6, dtype=torch.float64), torch.arange(12) // 3
    s = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(x).T
    # A self-pair is a positive with x_a = x_p: exponents 8 s_an − 4.
    own = torch.log(1 + (torch.exp(8 * s - 4) * (y[:, None] != y)).sum(dim=1))
    loss = Angular()
    torch.testing.assert_close(loss(x, y, x, y) * 36, loss(x, y) * 24 + own.sum())


def test_similarity_weights_reach_the_pair_of_positive_and_negative():
    r = math.sqrt(0.5)
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [r, r]], dtype=torch.float64)
    weights = similarity_weights(Angular(), x, torch.tensor([0, 0, 1]))
    share = torch.sigmoid(torch.tensor(4 * math.sqrt(2), dtype=torch.float64)).item()
    # Mean over two pairs: the exponent falls by 4 per unit of s_ap and rises by 4 per unit of s_an and of s_pn, and
    # (a,c) is s_an in one of the pairs and s_pn in the other.
    expected = torch.tensor([[0, 2, 4], [2, 0, 4], [0, 0, 0]], dtype=torch.float64) * share
    torch.testing.assert_close(weights, expected)


@pytest.mark.parametrize("alpha", [0.0, 61.0])
def test_the_angle_is_checked(alpha):
    with pytest.raises(ValueError, match=f"alpha must be above 0 and at most 60 degrees, got {alpha}"):
        Angular(alpha=alpha)


def test_the_widest_angle_does_not_overflow_in_float32():
    # A positive pair exactly opposite, which pulls hardest, and 2998 negatives on top of one of the two.
    x = torch.tensor([[1.0, 0.0]]).repeat(3000, 1)
    x[0] = -x[0]
    y = torch.arange(3000)
    y[1] = 0
    x.requires_grad_()
    value = Angular(alpha=60)(x, y)
    value.backward()
    # tan² 60° = 3: 12 (x_a + x_p)·x_n = 0 and −8 x_a·x_p = 8.
    assert value.item() == pytest.approx(math.log(1 + 2998 * math.exp(8)), rel=1e-5)
    assert torch.isfinite(x.grad).all()
