from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses as peer
from tests.losses.similarity_weights import similarity_weights

from nearkin.losses import LiftedStructure


def slow(case, neg_margin=1.0, pos_margin=0.0):
    queries, references = case.units()

    def distance(i, j):
        return torch.linalg.vector_norm(queries[i] - references[j])

    terms = [torch.zeros((), dtype=torch.float64)]
    for i in range(len(queries)):
        for j in case.positives(i):
            exponents = [neg_margin - distance(i, k) for k in case.negatives(i)]
            exponents += [neg_margin - distance(q, j) for q in range(len(queries)) if j in case.negatives(q)]
            if exponents:
                j_ij = torch.log(sum(torch.exp(e) for e in exponents)) + distance(i, j) - pos_margin
                terms.append(j_ij.clamp_min(0).square() / 2)
            else:
                terms.append(terms[0])
    return sum(terms) / max(1, len(terms) - 1)


@pytest.mark.parametrize(("neg_margin", "pos_margin"), [(1.0, 0.0), (0.1, 0.8)])
def test_equals_the_slow_reference(pair_case, neg_margin, pos_margin):
    loss = LiftedStructure(neg_margin=neg_margin, pos_margin=pos_margin, normalisation=pair_case.normalisation)
    assert pair_case.agrees(loss, lambda case: slow(case, neg_margin, pos_margin))


def test_by_hand():
    # a, b at a right angle are one class, c is opposite a. J_ab = log(e^(1−2) + e^(1−√2)) + √2; half its square, and
    # both orders of the pair are the same.
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    j = math.log(math.exp(-1) + math.exp(1 - math.sqrt(2))) + math.sqrt(2)
    assert LiftedStructure()(x, torch.tensor([0, 0, 1])).item() == pytest.approx(j * j / 2, abs=1e-12)


@pytest.mark.parametrize(("neg_margin", "pos_margin"), [(1.0, 0.0), (0.5, 0.3)])
@pytest.mark.parametrize("pair_case", ["batch"], indirect=True)
def test_agrees_with_the_peer_within_a_batch(pair_case, neg_margin, pos_margin):
    x, y = pair_case.arguments
    ours = LiftedStructure(neg_margin=neg_margin, pos_margin=pos_margin)
    theirs = peer.LiftedStructureLoss(neg_margin=neg_margin, pos_margin=pos_margin)
    torch.testing.assert_close(ours(x, y), theirs(x, y), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("pair_case", ["references"], indirect=True)
def test_differs_from_the_peer_with_references(pair_case):
    # The peer looks up the negatives of the reference j among those of the sample that happens to have the same number
    # as j. Here they are the samples of other classes, so every distance has a reference at one end.
    x, y, references, labels = pair_case.arguments
    theirs = peer.LiftedStructureLoss()
    changed = torch.tensor([1, 0, 2, 3, 4, 5])
    before = theirs(x, y, ref_emb=references, ref_labels=labels)
    after = theirs(x, y, ref_emb=references[changed], ref_labels=labels[changed])
    assert not torch.isclose(before, after, rtol=1e-4)
    ours = LiftedStructure()
    torch.testing.assert_close(ours(x, y, references, labels), ours(x, y, references[changed], labels[changed]))


def test_the_batch_as_references_adds_only_self_pairs():
    torch.manual_seed(0)
    x, y = torch.randn(12, 6, dtype=torch.float64), torch.arange(12) // 3
    units = torch.nn.functional.normalize(x)
    # J of a self-pair: each negative of the sample twice, and a distance of 0.
    d = (units[:, None] - units).norm(dim=2)
    own = torch.log(2 * (torch.exp(1 - d) * (y[:, None] != y)).sum(dim=1)).clamp_min(0).square() / 2
    loss = LiftedStructure()
    # 12 · 2 pairs and 12 self-pairs.
    torch.testing.assert_close(loss(x, y, x, y) * 36, loss(x, y) * 24 + own.sum())


def test_without_negatives_it_costs_nothing():
    x = torch.randn(4, 3, requires_grad=True)
    value = LiftedStructure()(x, torch.zeros(4, dtype=torch.int64))
    value.backward()
    assert value.item() == 0
    assert x.grad.abs().sum() == 0


def test_similarity_weights_of_the_pair_worked_by_hand():
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    r = math.sqrt(2)
    a_c, b_c = math.exp(-1), math.exp(1 - r)
    j = math.log(a_c + b_c) + r
    # ∂L/∂d is J/2 for each order of the pair, and −J times the softmax share for its negatives: both orders use the
    # row of a, (a,c), and the column of b, (c,b), or the reverse. |∂d/∂s| = 1/d.
    share_a, share_b = a_c / (a_c + b_c), b_c / (a_c + b_c)
    expected = torch.tensor(
        [
            [0, j / 2 / r, j / 2 * share_a / 2],
            [j / 2 / r, 0, j / 2 * share_b / r],
            [j / 2 * share_a / 2, j / 2 * share_b / r, 0],
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(similarity_weights(LiftedStructure(), x, torch.tensor([0, 0, 1])), expected)
