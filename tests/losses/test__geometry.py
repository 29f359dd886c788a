from __future__ import annotations

import pytest
import torch

from nearkin.losses import _geometry


def rows(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, 4, dtype=torch.float64, generator=generator)
    lengths = torch.linspace(0.3, 2.5, count, dtype=torch.float64)
    return (x / x.norm(dim=1, keepdim=True) * lengths[:, None]).requires_grad_()


@pytest.mark.parametrize("floor", [1e-12, 1.0])
def test_unit_rows_equal_torchs_normalise_and_its_gradient(floor):
    x, weights = rows(7), rows(7).detach()
    ours, theirs = _geometry.unit_rows(x, floor), torch.nn.functional.normalize(x, eps=floor)
    torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=0)
    gradients = [torch.autograd.grad((y * weights).sum(), x)[0] for y in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)
    assert torch.autograd.gradcheck(lambda t: _geometry.unit_rows(t, floor), x)


def test_gram_has_the_gradient_of_the_product():
    assert torch.autograd.gradcheck(_geometry.gram, rows(5))
    torch.testing.assert_close(_geometry.gram(rows(5)), rows(5) @ rows(5).T)


@pytest.mark.parametrize(("ours", "power"), [(_geometry.distance, 1), (_geometry.squared_distance, 2)])
def test_distances_equal_those_of_the_vectors(ours, power):
    a, b = rows(5), rows(6)

    def between(a, b):
        return ours(a @ b.T, a.square().sum(dim=1), b.square().sum(dim=1))

    torch.testing.assert_close(between(a, b), (a[:, None] - b).norm(dim=2) ** power)
    assert torch.autograd.gradcheck(between, (a, b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [16, 128, 2048])
def test_equal_vectors_are_exactly_zero_apart_without_gradient(dtype, dim):
    torch.manual_seed(dim)
    x = torch.nn.functional.normalize(torch.randn(50, dim, dtype=dtype))
    similarity = (x @ x.T).requires_grad_()
    distance = _geometry.distance(similarity, x.square().sum(dim=1), x.square().sum(dim=1))
    assert (distance.diagonal() == 0).all()
    assert (distance + torch.eye(50) > 0.01).all()
    (gradient,) = torch.autograd.grad(
        _geometry.distance(similarity, x.square().sum(dim=1), x.square().sum(dim=1)).sum(), similarity
    )
    assert (gradient.diagonal() == 0).all()
    assert torch.isfinite(gradient).all()


def test_log_sum_exp_skips_what_is_masked_and_stands_empty_rows():
    rows = [[0.0, 1.0, 5.0], [300.0, 299.0, -300.0], [1.0, 2.0, 3.0]]
    x = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, True, True], [False, False, False]])
    value = _geometry.log_sum_exp(x, mask, dim=1)
    torch.testing.assert_close(value[0], torch.logsumexp(x[0, :2], dim=0))
    torch.testing.assert_close(value[1], torch.logsumexp(x[1], dim=0))
    assert value[2] < -1e29
    (gradient,) = torch.autograd.grad(value.sum(), x)
    torch.testing.assert_close(gradient[0, :2], torch.softmax(x[0, :2], dim=0))
    assert gradient[0, 2] == 0
    assert (gradient[2] == 0).all()


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("extra_zero", [True, False])
def test_log_sum_exp_has_the_gradient_of_torchs(dim, extra_zero):
    x, mask = 9 * rows(5), rows(5).detach() < 0.5
    mask[0], mask[:, 1], mask[1] = False, False, True
    mask[2, 1] = True
    ours = _geometry.log_sum_exp(x, mask, dim=dim, extra_zero=extra_zero)
    masked = torch.where(mask, x, -1e30)
    zero = torch.zeros_like(masked.narrow(dim, 0, 1))
    theirs = torch.logsumexp(torch.cat([masked, zero], dim=dim) if extra_zero else masked, dim=dim)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad((torch.arange(len(y)) * y).sum(), x)[0] for y in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_a_second_derivative_is_refused_rather_than_wrong():
    x = rows(4)
    (first,) = torch.autograd.grad(_geometry.unit_rows(x, 1e-12).pow(3).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
