from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from nearkin.losses import ArcFace, CosFace
from nearkin.losses._blocks import Parts
from nearkin.losses._cross_entropy import SoftmaxLoss


def test_equals_torch():
    torch.manual_seed(0)
    s, labels = torch.randn(5, 7, dtype=torch.float64, requires_grad=True), torch.tensor([0, 6, 2, 2, 1])
    value, slope = SoftmaxLoss(7, 2, scale=3.0).value_and_gradient(s.detach(), labels)
    expected = F.cross_entropy(3.0 * s, labels)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slope, torch.autograd.grad(expected, s)[0], rtol=1e-12, atol=1e-12)


def test_margin_on_the_angle():
    torch.manual_seed(0)
    angle = torch.tensor([0.3, 1.0, 2.9], dtype=torch.float64)  # the last is beyond π − m
    s = torch.rand(3, 7, dtype=torch.float64)
    labels, rows = torch.tensor([0, 6, 2]), torch.arange(3)
    s[rows, labels] = angle.cos()
    s.requires_grad_()
    own = s[rows, labels]
    target = torch.where(angle < math.pi - 0.5, (own.arccos() + 0.5).cos(), own - 0.5 * math.sin(0.5))
    logits = s.scatter(1, labels[:, None], target[:, None])
    expected = F.cross_entropy(2.0 * logits, labels)
    value, slope = ArcFace(7, 2, scale=2.0, margin=0.5).value_and_gradient(s.detach(), labels)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slope, torch.autograd.grad(expected, s)[0], rtol=1e-12, atol=1e-12)


def test_margin_is_taken_off_the_own_similarity():
    torch.manual_seed(0)
    s, labels = torch.randn(5, 7, dtype=torch.float64, requires_grad=True), torch.tensor([0, 6, 2, 2, 1])
    value, slope = SoftmaxLoss(7, 2, scale=2.0, margin=0.3).value_and_gradient(s.detach(), labels)
    expected = F.cross_entropy(2.0 * (s - 0.3 * F.one_hot(labels, 7).double()), labels)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slope, torch.autograd.grad(expected, s)[0], rtol=1e-12, atol=1e-12)


def test_far_apart_logits_do_not_overflow():
    value, slope = SoftmaxLoss(2, 2, scale=1e5).value_and_gradient(torch.tensor([[-1.0, 1.0]]), torch.tensor([0]))
    assert value.item() == 2e5
    assert slope.tolist() == [[-1e5, 1e5]]


def test_at_the_angle_where_it_would_turn_round_the_margin_still_holds():
    # θ = π − m exactly: cos(θ + m) = −1, and not cos θ − m sin m as beyond it.
    loss = ArcFace(2, 2, scale=2.0, margin=0.5)
    similarities = torch.tensor([[-math.cos(0.5), 0.0]], dtype=torch.float64)
    expected = math.log(1 + math.exp(2.0))  # logits −2 and 0
    labels = torch.tensor([0])
    assert loss.from_similarities(similarities, labels).item() == pytest.approx(expected)
    value, gradient = loss.value_and_gradient(similarities, labels)
    assert value.item() == pytest.approx(expected)
    # d cos(θ + m) / d cos θ is sin(θ + m) / sin θ, which is 0 here; beyond it would be 1.
    assert gradient[0, 0].item() == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("loss", [ArcFace(2, 2, scale=2.0), CosFace(2, 2, scale=2.0)])
def test_by_blocks_a_similarity_beyond_one_counts_as_one(loss, sign):
    own = torch.tensor([sign * 1.25, sign * 1.0])  # what rounding might do, and much more
    values = [loss.from_parts(Parts(each, torch.zeros(1), torch.tensor([0]), 2, None, 2.0)) for each in own.split(1)]
    assert values[0].item() == pytest.approx(values[1].item())


@pytest.mark.parametrize("kind", [CosFace, ArcFace])
def test_from_parts_it_is_the_same(kind):
    torch.manual_seed(0)
    s, labels = torch.randn(5, 7, dtype=torch.float64).tanh().mul(0.9).requires_grad_(), torch.tensor([0, 6, 2, 2, 1])
    loss = kind(7, 2, scale=2.0, margin=0.3)
    own = s.gather(1, labels[:, None]).squeeze(1)
    others = (2.0 * s).masked_fill(F.one_hot(labels, 7).bool(), -math.inf).logsumexp(1)
    value = loss.from_parts(Parts(own, others, labels, 7, None, 7.0))
    harder = own - 0.3 if kind is CosFace else (own.arccos() + 0.3).cos()
    expected = F.cross_entropy(2.0 * s.scatter(1, labels[:, None], harder[:, None]), labels)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    gradient = torch.autograd.grad(value, s, retain_graph=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, s), rtol=1e-9, atol=1e-12)
