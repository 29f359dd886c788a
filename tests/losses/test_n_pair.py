from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import distances as peer_distances
from pytorch_metric_learning import losses as peer
from pytorch_metric_learning import regularizers as peer_regularizers
from tests.losses.similarity_weights import similarity_weights

from nearkin.losses import NPair, n_pair


def slow(case):
    queries, references = case.units()
    if case.references is None:
        first, second = {}, {}
        for i, label in enumerate(case.labels.tolist()):
            if label not in first:
                first[label] = i
            elif label not in second:
                second[label] = i
        pairs = [(first[c], second[c], [second[o] for o in second if o != c]) for c in second]
    else:
        pairs = [(i, j, case.negatives(i)) for i in range(len(queries)) for j in case.positives(i)]
    terms = []
    for anchor, positive, negatives in pairs:
        s = queries[anchor] @ references[positive]
        terms.append(torch.log(1 + sum(torch.exp(queries[anchor] @ references[n] - s) for n in negatives)))
    return sum(terms) / len(terms)


def test_equals_the_slow_reference(pair_case):
    assert pair_case.agrees(NPair(normalisation=pair_case.normalisation), slow)


def test_by_hand():
    # Anchors e1, e2; positives (0.8, 0.6) and (0, 1): log(1 + e^(0 − 0.8)) and log(1 + e^(0.6 − 1)).
    x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    expected = (math.log(1 + math.exp(-0.8)) + math.log(1 + math.exp(-0.4))) / 2
    assert NPair()(x, torch.tensor([5, 5, 2, 2])).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6])
def test_as_sohn_has_it_equals_loops_over_vectors_of_any_length(length_penalty):
    """Labels 4, 1, 9 have a pair; 7 has one sample, and the third of 4 takes no part: neither is penalised."""
    torch.manual_seed(0)
    x = (2 * torch.randn(9, 3, dtype=torch.float64)).requires_grad_()
    labels = torch.tensor([4, 1, 4, 9, 1, 4, 7, 9, 9])
    anchors, positives = [0, 1, 3], [2, 4, 7]
    expected = 0.0
    for i in range(3):
        others = [x[anchors[i]] @ x[p] - x[anchors[i]] @ x[positives[i]] for p in positives if p != positives[i]]
        expected = expected + torch.log(1 + sum(term.exp() for term in others)) / 3
    for row in anchors + positives:
        expected = expected + length_penalty / 2 * sum(number**2 for number in x[row]) / 6
    value = NPair(length_penalty=length_penalty)(x, labels)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(part, x)[0] for part in (value, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)
    references = (x[positives], labels[positives])
    torch.testing.assert_close(NPair(length_penalty=length_penalty)(x[anchors], labels[anchors], *references), value)


def test_as_sohn_has_it_agrees_with_the_peer():
    torch.manual_seed(0)
    x, y = 3 * torch.randn(8, 4, dtype=torch.float64), torch.arange(8) // 2
    theirs = peer.NPairsLoss(
        distance=peer_distances.DotProductSimilarity(normalize_embeddings=False),
        embedding_regularizer=peer_regularizers.LpRegularizer(p=2, power=2),
        embedding_reg_weight=0.3,
    )
    torch.testing.assert_close(NPair(length_penalty=0.6)(x, y), theirs(x, y))


def test_the_length_penalty_shortens_vectors_that_the_loss_would_lengthen():
    x, y = torch.eye(2).repeat_interleave(2, dim=0).double(), torch.tensor([0, 0, 1, 1])
    slopes = []
    for length_penalty in (0.0, 10.0):
        x.grad = None
        NPair(length_penalty=length_penalty)(x.requires_grad_(), y).backward()
        slopes.append((x.grad * x).sum(1))
    assert (slopes[0] < 0).all()
    assert (slopes[1] > 0).all()


def test_a_negative_penalty_is_refused():
    with pytest.raises(ValueError, match="length_penalty must be at least 0"):
        NPair(length_penalty=-1.0)


@pytest.mark.parametrize(
    "labels",
    [
        [0, 0, 1, 1, 2, 2],
        [3, 1, 2, 1, 3, 2],
        [7, 7, 7, 4, 4, 9],
        [1, 5, 1, 5, 1, 5, 5],
    ],
)
def test_agrees_with_the_peer(labels):
    torch.manual_seed(0)
    x, y = torch.randn(len(labels), 4, dtype=torch.float64), torch.tensor(labels)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    a, b = NPair()(ours, y), peer.NPairsLoss()(theirs, y)
    torch.testing.assert_close(a, b)
    a.backward()
    b.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_inside_the_ball_it_agrees_with_the_peer_on_raw_inner_products():
    torch.manual_seed(0)
    x, y = 0.1 * torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2])
    theirs = peer.NPairsLoss(distance=peer_distances.DotProductSimilarity(normalize_embeddings=False))
    torch.testing.assert_close(NPair(normalisation="ball")(x, y), theirs(x, y))


def test_differs_from_the_peer_in_that_it_takes_references():
    # PROFS hands over class representatives as the positives; the peer refuses references.
    x, y = torch.eye(2), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="ref_emb"):
        peer.NPairsLoss()(x, y, ref_emb=x.clone(), ref_labels=y.clone())
    assert NPair()(x, y, x, y).item() == pytest.approx(math.log(1 + math.exp(-1)), abs=1e-6)


def test_which_sample_of_a_class_comes_first_matters():
    torch.manual_seed(0)
    x, y = torch.randn(4, 4), torch.tensor([0, 0, 1, 1])
    assert not torch.isclose(NPair()(x[[1, 0, 2, 3]], y), NPair()(x, y), rtol=1e-3)
    torch.testing.assert_close(NPair()(x[[2, 0, 1, 3]], y[[2, 0, 1, 3]]), NPair()(x, y))


def test_the_plain_call_is_the_second_samples_as_references_of_the_first():
    torch.manual_seed(0)
    x, y = torch.randn(10, 4, dtype=torch.float64), torch.arange(10) // 2
    loss = NPair()
    torch.testing.assert_close(loss(x, y), loss(x[::2], y[::2], x[1::2], y[1::2]))


def test_the_batch_as_references_adds_the_self_pairs_as_positives_at_similarity_one():
    torch.manual_seed(0)
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) // 2
    s = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(x).T
    same, self_pair = y[:, None] == y, torch.eye(6, dtype=torch.bool)
    negatives = (s.exp() * ~same).sum(dim=1, keepdim=True)
    terms = torch.log(1 + negatives * torch.exp(-s))
    own = torch.log(1 + negatives.squeeze() * math.exp(-1))
    torch.testing.assert_close(NPair()(x, y, x, y) * 12, terms[same & ~self_pair].sum() + own.sum())


def test_similarity_weights_are_softmax_shares_and_zero_for_samples_that_take_no_part():
    torch.manual_seed(0)
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.tensor([8, 3, 3, 8, 8, 5])
    weights = torch.zeros(6, 6, dtype=torch.float64)
    anchors, positives, _ = n_pair._first_two(y)
    weights.index_put_((anchors[:, None], positives), similarity_weights(NPair(), x, y), accumulate=True)
    # Anchors 1 and 0, positives 2 and 3. The gradient of −log softmax is softmax − 1 and softmax, over two anchors.
    units = torch.nn.functional.normalize(x)
    expected = torch.zeros(6, 6, dtype=torch.float64)
    for anchor, positive, negative in ((1, 2, 3), (0, 3, 2)):
        share = torch.sigmoid(units[anchor] @ units[negative] - units[anchor] @ units[positive])
        expected[anchor, positive] = expected[anchor, negative] = share / 2
    torch.testing.assert_close(weights, expected)


def test_a_batch_without_a_pair_costs_nothing():
    x = torch.randn(3, 4, requires_grad=True)
    value = NPair()(x, torch.tensor([0, 1, 2]))
    value.backward()
    assert value.item() == 0
    assert x.grad.abs().sum() == 0


@pytest.mark.parametrize("labels", [[8, 3, 3, 8, 8, 5], [1, 1], [0, 0, 1, 1, 2], [4, 4, 4, 4], [0, 1, 2], [5]])
def test_the_first_two_of_each_class_among_half_as_many_entries_as_samples(labels):
    first, second, exists = n_pair._first_two(torch.tensor(labels))
    places = [[place for place, label in enumerate(labels) if label == each] for each in sorted(set(labels))]
    assert len(first) == len(second) == len(exists) == max(1, len(labels) // 2)
    found = list(zip(first[exists].tolist(), second[exists].tolist(), strict=True))
    assert found == [tuple(each[:2]) for each in places if len(each) > 1]
