"""ProxyGML against its formulas written out edge by edge, and its terms in the paper's own words."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from nearkin.losses import ProxyGML, class_similarities
from nearkin.losses.proxy_gml import classification_of_proxies


def cosine(a, b):
    return (a * b).sum() / (a.norm() * b.norm())


def sub_graph(similarities, label, edges):
    """The (class, proxy) pairs that a sample has edges to: its own class's first, and then the most similar."""
    pairs = [(c, k) for c in range(len(similarities)) for k in range(len(similarities[c]))]
    ranking = sorted(pairs, key=lambda pair: (pair[0] != label, -similarities[pair[0]][pair[1]].item()))
    return ranking[:edges]


def proxy_gml(z, proxies, labels, *, edges, weight):
    classes, per_class, _ = proxies.shape
    terms = []
    for x, y in zip(z, labels.tolist(), strict=True):
        similarities = [[cosine(x, p) for p in own] for own in proxies]
        logits = {}
        for c, k in sub_graph(similarities, y, edges):
            logits[c] = logits.get(c, 0.0) + similarities[c][k]
        terms.append(-torch.log(torch.exp(logits[y]) / sum(torch.exp(logit) for logit in logits.values())))
    value = sum(terms) / len(terms)
    if weight == 0:
        return value
    terms = []
    for c in range(classes):
        for k in range(per_class):
            logits = [sum(cosine(proxies[c, k], p) for p in others) for others in proxies]
            terms.append(-torch.log(torch.exp(logits[c]) / sum(torch.exp(logit) for logit in logits)))
    return value + weight * sum(terms) / len(terms)


@pytest.mark.parametrize(
    ("per_class", "share", "edges"),
    [
        (1, 0.05, 2),  # of six proxies a share of 0.3, and at least one more than the own
        (1, 0.5, 3),
        (1, 1.0, 6),
        (3, 0.05, 4),
        (3, 0.31, 6),  # 5.58 proxies
        (3, 0.7, 13),  # 12.6
        (2, 0.75, 9),
    ],
)
@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_equals_the_formula(assert_proxy_loss_equals, per_class, share, edges, weight):
    loss = ProxyGML(6, 5, proxies_per_class=per_class, edge_share=share, proxy_weight=weight)
    assert loss.edges == edges
    assert_proxy_loss_equals(loss, lambda *a: proxy_gml(*a, edges=edges, weight=weight))


def test_by_hand():
    """Three classes of two proxies in the plane and x = e1, with four edges.

    Similarities: class 0 has 0 and −1, class 1 has 1 and 0.6, class 2 has 0.8 and −0.6. The own class is 0, so both of
    its proxies are in, and then 1 and 0.8: Z = −1 for class 0, 1 for class 1, and 0.8 for class 2.
    """
    loss = ProxyGML(3, 2, proxies_per_class=2, edge_share=0.6, proxy_weight=0.0)
    assert loss.edges == 4
    proxies = [[[0.0, 2.0], [-1.0, 0.0]], [[1.0, 0.0], [0.6, 0.8]], [[0.8, -0.6], [-0.6, 0.8]]]
    loss.bank.restart(torch.tensor(proxies))
    value = loss(torch.tensor([[3.0, 0.0]]), torch.tensor([0]))
    assert value.item() == pytest.approx(math.log(1 + math.exp(2) + math.exp(1.8)), abs=1e-6)
    # Of class 1 only the own two and 0.8 of class 2 with three edges: class 0 is masked, and would add e^0 otherwise.
    loss = ProxyGML(3, 2, proxies_per_class=2, edge_share=0.5, proxy_weight=0.0)
    loss.bank.restart(torch.tensor(proxies))
    value = loss(torch.tensor([[3.0, 0.0]]), torch.tensor([1]))
    assert value.item() == pytest.approx(math.log(1 + math.exp(0.8 - 1.6)), abs=1e-6)


def test_the_proxies_of_the_papers_data_sets():
    # ⌈0.05 · 100 · 12⌉ = 60 on CUB, ⌈58.8⌉ on Cars196, ⌈565.9⌉ on SOP.
    assert ProxyGML(100, 2).edges == 60
    assert ProxyGML(98, 2).edges == 59
    assert ProxyGML(11318, 2, proxies_per_class=1).edges == 566
    assert ProxyGML(2, 2).edges == 13
    assert ProxyGML(1, 2).edges == 12


def test_with_every_proxy_and_one_per_class_it_is_the_normalised_softmax_of_temperature_1():
    torch.manual_seed(0)
    loss = ProxyGML(7, 4, proxies_per_class=1, edge_share=1.0, proxy_weight=0.0).double()
    x, y = torch.randn(9, 4, dtype=torch.float64), torch.arange(9) % 7
    cosines = F.normalize(x) @ F.normalize(loss.bank.vectors[:, 0]).T
    torch.testing.assert_close(loss(x, y), F.cross_entropy(cosines, y))


def test_proxies_outside_of_every_sub_graph_take_no_gradient():
    loss = ProxyGML(4, 2, proxies_per_class=1, edge_share=0.5, proxy_weight=0.0)
    loss.bank.restart(torch.tensor([[[1.0, 0.0]], [[0.9, 0.1]], [[0.0, 1.0]], [[-1.0, 0.0]]]))
    loss(torch.tensor([[1.0, -0.1]]), torch.tensor([0])).backward()
    reached = loss.bank.vectors.grad.abs().sum(dim=(1, 2)) > 0
    assert reached.tolist() == [True, True, False, False]


@pytest.mark.parametrize("rows", [1, 4, 15])
def test_the_classification_of_the_proxies_is_the_same_in_blocks(monkeypatch, rows):
    torch.manual_seed(0)
    vectors = torch.randn(5, 3, 4, dtype=torch.float64, requires_grad=True)
    value = classification_of_proxies(vectors)
    whole = torch.autograd.grad(value, vectors, create_graph=True)[0]
    curvature = torch.autograd.grad(whole.square().sum(), vectors)[0]
    monkeypatch.setitem(class_similarities.BLOCK_BYTES, "cpu", rows * 5 * 8)
    blocks = classification_of_proxies(vectors)
    torch.testing.assert_close(blocks, value)
    slope = torch.autograd.grad(blocks, vectors, create_graph=True)[0]
    torch.testing.assert_close(slope, whole)
    torch.testing.assert_close(torch.autograd.grad(slope.square().sum(), vectors)[0], curvature)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edge_share": 0.0}, "edge_share must be above 0 and at most 1, got 0.0"),
        ({"edge_share": 1.5}, "edge_share must be above 0 and at most 1, got 1.5"),
        ({"proxy_weight": -1.0}, "proxy_weight must be at least 0"),
        ({"proxies_per_class": 0}, "proxies_per_class must be at least 1"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ProxyGML(4, 2, **options)
