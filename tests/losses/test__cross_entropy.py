from __future__ import annotations

import torch
from torch.nn import functional as F

from nearkin.losses._cross_entropy import cross_entropy_slope


def test_equals_torch():
    torch.manual_seed(0)
    s, labels = torch.randn(5, 7, dtype=torch.float64, requires_grad=True), torch.tensor([0, 6, 2, 2, 1])
    value, slope = cross_entropy_slope(s.detach(), labels, scale=3.0)
    expected = F.cross_entropy(3.0 * s, labels)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slope, torch.autograd.grad(expected, s)[0], rtol=1e-12, atol=1e-12)


def test_target_takes_the_place_of_the_own_similarity():
    torch.manual_seed(0)
    s, labels = torch.randn(5, 7, dtype=torch.float64, requires_grad=True), torch.tensor([0, 6, 2, 2, 1])
    rows = torch.arange(5)
    logits = s.clone()
    logits[rows, labels] = s[rows, labels] ** 3
    expected = F.cross_entropy(2.0 * logits, labels)
    own = s.detach()[rows, labels]
    value, slope = cross_entropy_slope(s.detach(), labels, scale=2.0, target=own**3, target_slope=3 * own**2)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slope, torch.autograd.grad(expected, s)[0], rtol=1e-12, atol=1e-12)


def test_margin_is_taken_off_the_own_similarity():
    torch.manual_seed(0)
    s, labels = torch.randn(5, 7, dtype=torch.float64, requires_grad=True), torch.tensor([0, 6, 2, 2, 1])
    value, slope = cross_entropy_slope(s.detach(), labels, scale=2.0, margin=0.3)
    expected = F.cross_entropy(2.0 * (s - 0.3 * F.one_hot(labels, 7).double()), labels)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slope, torch.autograd.grad(expected, s)[0], rtol=1e-12, atol=1e-12)


def test_far_apart_logits_do_not_overflow():
    value, slope = cross_entropy_slope(torch.tensor([[-1.0, 1.0]]), torch.tensor([0]), scale=1e5)
    assert value.item() == 2e5
    assert slope.tolist() == [[-1e5, 1e5]]
