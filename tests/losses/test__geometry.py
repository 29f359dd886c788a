from __future__ import annotations

import itertools

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


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_products_have_a_gradient_where_it_is_wanted(wanted):
    x, y = (each.detach().requires_grad_(on) for each, on in zip((rows(5), rows(4)), wanted, strict=True))
    assert torch.autograd.gradcheck(_geometry.products, (x, y))
    torch.testing.assert_close(_geometry.products(x, y), x @ y.T)


@pytest.mark.parametrize("power", [1, 2])
def test_distances_equal_those_of_the_vectors(power):
    a, b = rows(5), rows(6)

    def between(a, b):
        lengths = a.square().sum(dim=1), b.square().sum(dim=1)
        return _geometry.distance(a @ b.T, *lengths, dim=4, squared=power == 2)

    torch.testing.assert_close(between(a, b), (a[:, None] - b).norm(dim=2) ** power)
    assert torch.autograd.gradcheck(between, (a, b))


def sums_in_other_orders(x):
    """Inner products of rows as other processors may add them up: in order, backwards, halves first, in blocks of 8."""
    products = x[:, None] * x
    dim = x.shape[1]
    in_order = products.cumsum(dim=2)[:, :, -1]
    backwards = products.flip(2).cumsum(dim=2)[:, :, -1]
    halves = products
    while halves.shape[2] > 1:
        halves = halves[:, :, ::2] + halves[:, :, 1::2]
    blocks = products.unflatten(2, (dim // 8, 8)).cumsum(dim=2)[:, :, -1].cumsum(dim=2)[:, :, -1]
    return {"in order": in_order, "backwards": backwards, "halves": halves[:, :, 0], "blocks": blocks, "torch": x @ x.T}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [16, 128, 2048])
def test_equal_vectors_are_exactly_zero_apart_without_gradient_however_sums_are_added_up(dtype, dim):
    torch.manual_seed(dim)
    x = torch.nn.functional.normalize(torch.randn(20, dim, dtype=dtype))
    sums = sums_in_other_orders(x)
    for (name, similarity), lengths in itertools.product(sums.items(), [s.diagonal() for s in sums.values()]):
        similarity = similarity.clone().requires_grad_()
        distance = _geometry.distance(similarity, lengths, lengths, dim=dim)
        assert (distance.diagonal() == 0).all(), name
        assert (distance + torch.eye(20) > 0.01).all(), name
        (gradient,) = torch.autograd.grad(distance.sum(), similarity)
        assert (gradient.diagonal() == 0).all(), name
        assert torch.isfinite(gradient).all(), name


@pytest.mark.parametrize("dim", [16, 512, 8192])
def test_the_floor_holds_in_the_worst_case_and_is_no_larger_than_it_must_be(dim):
    """Terms that are all rounded down, one after another: the sum that numerical analysis bounds."""
    x = torch.full((1, dim), 1 + 2**-11 + 2**-12)  # its square is not a float32, nor are the partial sums
    added = torch.zeros(1)
    for term in (x * x)[0]:
        added = added + term
    exact = x.double().square().sum()
    error = float(2 * abs(exact - added) / (2 * exact))
    floor = _geometry.rounding_floor(dim, torch.float32)
    assert error < floor
    apart = torch.zeros(1, dim)
    apart[0, 0] = 2 * (2 * floor) ** 0.5  # twice the floor's distance, for unit vectors
    unit = torch.nn.functional.normalize(torch.ones(1, dim))
    pair = torch.cat([unit, torch.nn.functional.normalize(unit + apart)])
    distance = _geometry.distance(pair @ pair.T, pair.square().sum(1), pair.square().sum(1), dim=dim)
    assert distance[0, 1] > 0, "vectors that are apart stay apart"


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
