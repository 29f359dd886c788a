"""MoCo-PA against a slow Proxy-Anchor over the batch and a list of past embeddings."""

import math
from collections import deque

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from nearkin.losses import MomentumProxyAnchor, ProxyAnchor
from nearkin.losses.momentum_proxy_anchor import update_ema


def slow_proxy_anchor(unit, labels, proxies, *, alpha=32.0, margin=0.1):
    similarities = unit @ normalize(proxies).T
    pull = push = 0.0
    for c in range(len(proxies)):
        own = [i for i, y in enumerate(labels) if y == c]
        other = [i for i, y in enumerate(labels) if y != c]
        pull = pull + torch.log(1 + sum(torch.exp(alpha * (margin - similarities[i, c])) for i in own)) if own else pull
        push = push + torch.log(1 + sum(torch.exp(alpha * (similarities[i, c] + margin)) for i in other))
    return pull / len(set(labels)) + push / len(proxies)


@pytest.mark.parametrize("queue_size", [3, 11])
@pytest.mark.parametrize("with_keys", [True, False])
def test_every_step_equals_the_slow_reference(queue_size, with_keys):
    torch.manual_seed(0)
    loss = MomentumProxyAnchor(4, 5, queue_size=queue_size).double()
    queue = deque(maxlen=queue_size)
    for _ in range(6):
        embeddings = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
        labels = torch.randint(4, (4,))
        keys = torch.randn(4, 5, dtype=torch.float64) if with_keys else None
        value = loss(embeddings, labels, keys=keys)
        rows = torch.stack([*normalize(embeddings), *(row for row, _ in queue)])
        owners = labels.tolist() + [label for _, label in queue]
        expected = slow_proxy_anchor(rows, owners, loss.bank.vectors.squeeze(1))
        assert value.item() == pytest.approx(expected.item(), abs=1e-9)
        inputs = (embeddings, loss.bank.vectors)
        pairs = zip(torch.autograd.grad(value, inputs), torch.autograd.grad(expected, inputs), strict=True)
        for gradient, expected_gradient in pairs:
            torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-9)
        queue.extend(zip(normalize(embeddings.detach() if keys is None else keys), labels.tolist(), strict=True))
        assert loss.queue.fill == len(queue)


def test_hand_worked_value():
    loss = MomentumProxyAnchor(2, 2, alpha=1.0, margin=0.0, queue_size=4).double()
    with torch.no_grad():
        loss.bank.vectors.copy_(torch.eye(2)[:, None])
    e1, e2 = torch.eye(2, dtype=torch.float64)[:, None]
    loss(e1, torch.tensor([0]), keys=e2)
    # The batch e₁ of class 0, in the queue e₂ of class 0. Class 0: positives s = 1 and 0, no negatives. Class 1: no
    # positives, negatives s = 0 and 1. ln(1 + e⁻¹ + 1)/1 + (0 + ln(1 + 1 + e))/2 = 0.861995 + 0.775722.
    value = loss(e1, torch.tensor([0]))
    assert value.item() == pytest.approx(0.861995 + 0.775722, abs=2e-6)
    assert value.item() == pytest.approx(math.log(2 + math.exp(-1)) + math.log(2 + math.e) / 2, abs=1e-12)


def test_with_an_empty_queue_it_is_proxy_anchor_and_eval_mode_stores_nothing():
    torch.manual_seed(0)
    loss, plain = MomentumProxyAnchor(4, 5).eval(), ProxyAnchor(4, 5)
    with torch.no_grad():
        plain.bank.vectors.copy_(loss.bank.vectors)
    embeddings, labels = torch.randn(6, 5), torch.arange(6) % 4
    for _ in range(2):
        assert torch.equal(loss(embeddings, labels), plain(embeddings, labels))
    assert loss.queue.fill == 0


def test_resuming_continues_bit_for_bit(tmp_path):
    torch.manual_seed(0)
    loss, resumed = (MomentumProxyAnchor(4, 5, queue_size=7) for _ in range(2))
    embeddings, labels = torch.randn(4, 5), torch.arange(4)
    for _ in range(3):
        loss(embeddings, labels, keys=torch.randn(4, 5))
    torch.save(loss.state_dict(), tmp_path / "state.pt")
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for _ in range(3):
        assert torch.equal(loss(embeddings, labels), resumed(embeddings, labels))
        embeddings = embeddings.roll(1, 0)
    assert torch.equal(loss.queue.embeddings, resumed.queue.embeddings)


def test_half_precision_keys_are_kept_in_float32():
    loss = MomentumProxyAnchor(4, 5, queue_size=7)
    embeddings, labels = torch.randn(4, 5, requires_grad=True), torch.arange(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(2):
            value = loss(embeddings.bfloat16(), labels, keys=1e4 * torch.randn(4, 5).bfloat16())
    value.backward()
    assert value.dtype == loss.queue.embeddings.dtype == loss.bank.vectors.grad.dtype == torch.float32
    assert torch.isfinite(embeddings.grad).all()
    assert loss.queue.embeddings.norm(dim=1).tolist() == pytest.approx([1.0] * 7, abs=1e-5)


def test_the_momentum_network_is_an_exponential_moving_average_of_weights():
    torch.manual_seed(0)
    leader, follower = (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)) for _ in range(2))
    leader(torch.randn(4, 3))
    before = [p.clone() for p in follower.parameters()]
    update_ema(follower, leader, momentum=0.9)
    for p, old, target in zip(follower.parameters(), before, leader.parameters(), strict=True):
        torch.testing.assert_close(p, 0.9 * old + 0.1 * target)
    assert torch.equal(follower[1].running_mean, leader[1].running_mean)


def test_the_loop_can_see_what_it_must_supply():
    loss = MomentumProxyAnchor(4, 5)
    assert (loss.wants_momentum_encoder, loss.momentum, loss.queue_size) == (True, 0.999, 900)


def test_wrong_arguments_are_refused_by_name():
    loss = MomentumProxyAnchor(4, 5)
    with pytest.raises(ValueError, match=r"keys must be .* \[2, 5\], got \[3, 5\]"):
        loss(torch.randn(2, 5), torch.tensor([0, 1]), keys=torch.randn(3, 5))
    with pytest.raises(ValueError, match="labels must have shape"):
        loss(torch.randn(2, 5), torch.tensor([0]))
    with pytest.raises(ValueError, match="momentum must lie"):
        MomentumProxyAnchor(4, 5, momentum=1.5)
    with pytest.raises(ValueError, match="queue_size must be"):
        MomentumProxyAnchor(4, 5, queue_size=0)
