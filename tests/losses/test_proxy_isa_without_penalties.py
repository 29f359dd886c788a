"""Proxy-ISA without penalties against its formula written with loops, over the epochs of memory and filter."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from nearkin.losses import ProxyAnchor, ProxyISAWithoutPenalties, options
from nearkin.losses.proxy_isa import ProxyISA


def slow(similarities, labels, informative, *, alpha=32.0, delta=0.1):
    """Proxy-Anchor whose scale is twice as large for informative positives, divided by the mean weights."""
    classes, pull, push, weight_sum = len(similarities[0]), 0.0, 0.0, 0.0
    for c in range(classes):
        members = [i for i, y in enumerate(labels) if y == c]
        weights = [2.0 if informative[i] else 1.0 for i in members]
        if members:
            exponents = [w * alpha * (delta - similarities[i][c]) for w, i in zip(weights, members, strict=True)]
            pull += math.log(1 + sum(map(math.exp, exponents)))
            weight_sum += sum(weights) / len(weights)
        others = [alpha * (similarities[i][c] + delta) for i, y in enumerate(labels) if y != c]
        push += math.log(1 + sum(map(math.exp, others)))
    return pull / weight_sum + push / classes


def test_informative_positives_count_twice_and_everything_else_once():
    torch.manual_seed(0)
    loss = ProxyISAWithoutPenalties(4, 6, volume=2.0, memory_size=30).double()
    plain = ProxyAnchor(4, 6).double()
    plain.bank.load_state_dict(loss.bank.state_dict())
    proxies, met = normalize(loss.bank.vectors.detach().squeeze(1)), set()
    for epoch in range(6):
        loss.begin_epoch(epoch)
        labels = torch.arange(10) % 4
        embeddings = proxies[labels] + (1.5 if epoch % 2 else 0.2) * torch.randn(10, 6, dtype=torch.float64)
        embeddings[0] = -proxies[0]
        similarities = normalize(embeddings) @ proxies.T
        at = loss.weighting.diagnostics()
        learned, length = at["learned_similarity"][labels], at["search_length"][labels]
        own = similarities[torch.arange(10), labels]
        informative = (own <= learned) & (own >= learned - length) & (at["in_memory"][labels] > 0) & (epoch >= 2)
        value = loss(embeddings, labels).item()
        assert value == pytest.approx(slow(similarities.tolist(), labels.tolist(), informative), abs=1e-9)
        if not informative.any():
            assert value == pytest.approx(plain(embeddings, labels).item(), abs=1e-9)
        met |= {bool(mark) for mark in informative}
    assert met == {False, True}


def test_it_has_the_options_of_proxy_isa_but_those_of_the_penalties():
    missing = options(ProxyISA).keys() - options(ProxyISAWithoutPenalties).keys()
    assert missing == {"positive_penalty", "negative_penalty", "decay", "as_released"}
    assert options(ProxyISAWithoutPenalties).items() <= options(ProxyISA).items()
    with pytest.raises(TypeError, match="positive_penalty"):
        ProxyISAWithoutPenalties(3, 4, positive_penalty="sigma")
