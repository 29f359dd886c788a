from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss

from nearkin.losses import ArcFace


def cosine(a, b):
    return (a * b).sum() / (a.norm() * b.norm())


def arcface(z, proxies, labels, *, scale=64.0, margin=0.5):
    terms = []
    for x, y in zip(z, labels.tolist(), strict=True):
        logits = []
        for c, p in enumerate(proxies):
            angle = torch.acos(cosine(x, p[0]))
            if c != y:
                logits.append(scale * torch.cos(angle))
            elif angle <= math.pi - margin:
                logits.append(scale * torch.cos(angle + margin))
            else:
                logits.append(scale * (torch.cos(angle) - margin * math.sin(margin)))
        terms.append(-torch.log(torch.exp(logits[y]) / sum(torch.exp(v) for v in logits)))
    return sum(terms) / len(terms)


@pytest.mark.parametrize("options", [{}, {"scale": 10.0, "margin": 0.2}, {"scale": 10.0, "margin": 2.5}])
def test_equals_the_formula(assert_proxy_loss_equals, options):
    assert_proxy_loss_equals(ArcFace(6, 5, **options), lambda *a: arcface(*a, **options))


def on_axes(**options) -> ArcFace:
    loss = ArcFace(2, 2, **options)
    with torch.no_grad():
        loss.bank.vectors.copy_(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
    return loss


def test_by_hand():
    # (1, 0) is at angle 0 to its proxy and at 90° to the other. With m = π/3 and a = 2: logits 2 cos 60° = 1 and 0,
    # log(1 + e^−1) = 0.313262. (√3, 1)/2 is at 30° and 60°: logits 2 cos 90° = 0 and 2 · ½ = 1: log(1 + e) = 1.313262.
    z = torch.tensor([[1.0, 0.0], [math.sqrt(3), 1.0]])
    value = on_axes(scale=2.0, margin=math.pi / 3)(z, torch.tensor([0, 0]))
    assert value.item() == pytest.approx((0.313262 + 1.313262) / 2, abs=1e-6)


@pytest.mark.parametrize("degrees", [28.6, 100.0])
def test_agrees_with_pytorch_metric_learning(degrees):
    # With their margin, which is in degrees, turned into radians; beyond π − m both go on with cos θ − m sin m.
    # Their default of 28.6° is 0.4992 rad, ours the paper's 0.5.
    torch.manual_seed(0)
    ours, theirs = ArcFace(20, 3, margin=math.radians(degrees)), ArcFaceLoss(20, 3, margin=degrees)
    with torch.no_grad():
        theirs.W.copy_(ours.bank.vectors[:, 0].T)
    z, labels = torch.randn(30, 3, requires_grad=True), torch.randint(9, (30,))
    value, expected = ours(z, labels), theirs(z, labels)
    torch.testing.assert_close(value, expected)
    of_z, of_vectors = torch.autograd.grad(value, [z, ours.bank.vectors])
    expected_of_z, of_w = torch.autograd.grad(expected, [z, theirs.W])
    torch.testing.assert_close(of_z, expected_of_z, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(of_vectors[:, 0], of_w.T, rtol=1e-3, atol=1e-4)


def test_gradient_is_finite_where_sample_and_proxy_coincide_or_are_opposite():
    z = torch.tensor([[5.0, 0.0], [-5.0, 0.0]], requires_grad=True)
    loss = on_axes()
    value = loss(z, torch.tensor([0, 0]))
    value.backward()
    assert value.isfinite()
    assert z.grad.isfinite().all()
    assert loss.bank.vectors.grad.isfinite().all()


def test_loss_falls_as_the_angle_shrinks_on_either_side_of_the_turn():
    # 170°, 160° and 155° lie beyond π − m = 151°, 145° and 90° before it. At the turn itself the replacement jumps up.
    for angles in ([170.0, 160.0, 155.0], [145.0, 90.0, 10.0]):
        z = torch.tensor([[math.cos(math.radians(a)), -math.sin(math.radians(a))] for a in angles])
        values = [on_axes()(row[None], torch.tensor([0])).item() for row in z]
        assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    "options, message",
    [({"scale": 0}, "scale must be positive"), ({"margin": 28.6}, r"margin is an angle in radians.*got 28\.6")],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        ArcFace(6, 5, **options)
