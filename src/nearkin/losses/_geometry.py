"""What the pair losses compute on all pairs: inner products, distances and log-sum-exps, in a few operations each.

Autograd would give the same gradients, but makes and keeps half a dozen arrays of the size of all pairs on the way.
These can be differentiated once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from nearkin.numerics import full_precision

# Stands in for -inf where a row may have no entry at all: exp() of it is 0, yet differences of two of them are finite.
_NOTHING = -1e30


def unit_rows(x: Tensor, floor: float) -> Tensor:
    """``x / max(‖x‖, floor)`` for every row of ``x [N, D]``.

    >>> unit_rows(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), floor=1.0)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    return _apply(_UnitRows, x, floor)


def gram(x: Tensor) -> Tensor:
    """Inner products ``x xᵀ`` of the rows of ``x [N, D]``, as :func:`products`."""
    return _apply(_Gram, x)


def products(x: Tensor, y: Tensor) -> Tensor:
    """Inner products ``x yᵀ`` of the rows of ``x [N, D]`` and ``y [M, D]``; in full precision, and so is the gradient.

    >>> products(torch.eye(2), torch.tensor([[3.0, 4.0]]))
    tensor([[3.],
            [4.]])
    """
    return _apply(_Products, x, y)


def distance(
    similarity: Tensor, query_lengths: Tensor, reference_lengths: Tensor, *, dim: int, squared: bool = False
) -> Tensor:
    """``‖q − r‖`` or its square, with 0 and no gradient where it is less than rounding may make of two equal vectors.

    Without that floor a sample would lie a random 1e-4 away from its own copy among the references, and a loss that
    averages non-zero terms would count it or not by chance; see :func:`rounding_floor`.

    Args:
        similarity: inner products ``[N, M]``.
        query_lengths: squared lengths ``[N]``.
        reference_lengths: squared lengths ``[M]``.
        dim: D, the number of terms in each of those sums.
        squared: ``‖q‖² + ‖r‖² − 2 q·r`` itself, not its root.

    >>> distance(torch.tensor([[0.0, 1.0]]), torch.ones(1), torch.ones(2), dim=2)
    tensor([[1.4142, 0.0000]])
    """
    return _apply(_Distance, similarity, query_lengths, reference_lengths, dim, squared)


def rounding_floor(dim: int, dtype: torch.dtype) -> float:
    """What rounding may make of the squared distance of two equal vectors, as a share of ``‖q‖² + ‖r‖²``.

    A sum of D products, added up in any order, is off by at most ``γ_D Σ|x_i y_i|`` with ``γ_n = n u / (1 − n u)`` and
    the unit roundoff u = ε/2 (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). For equal vectors
    that is ``γ_D ‖q‖²`` for the inner product and for each squared length, so that ``‖q‖² + ‖r‖² − 2 q·r`` is off by
    ``2 γ_D (‖q‖² + ‖r‖²)``; two further roundings are those of the sum and the difference. The order in which a
    processor adds depends on its instructions and the number of threads, and the bound holds for all of them.

    >>> rounding_floor(512, torch.float32) ** 0.5  # the distance of unit vectors, over √2
    0.00782...
    """
    unit = torch.finfo(dtype).eps / 2
    terms = dim + 2
    return 2 * terms * unit / (1 - terms * unit)


def log_sum_exp(x: Tensor, mask: Tensor, *, dim: int, extra_zero: bool = False) -> Tensor:
    """``log Σ exp x_i`` over the entries of ``dim`` where ``mask`` holds, or ``log(1 + Σ exp x_i)``.

    Where the mask holds nowhere, that is about -1e30 (not -inf, which has no gradient), or 0.

    >>> log_sum_exp(torch.tensor([[0.0, 0.0, 9.0]]), torch.tensor([[True, True, False]]), dim=1)
    tensor([0.6931])
    """
    return _apply(_LogSumExp, x, mask, dim, extra_zero)


def _apply(function: type[Function], *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


class _UnitRows(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, floor: float) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        scaled = length >= floor
        length = length.clamp_min(floor)
        unit: Tensor = x / length
        ctx.save_for_backward(unit, length, scaled)
        return unit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        unit, length, scaled = ctx.saved_tensors
        outward = (gradient * unit).sum(dim=1, keepdim=True) * scaled
        return torch.addcmul(gradient, unit, outward, value=-1.0) / length, None


class _Gram(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        with full_precision(x.device.type):
            return x @ x.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        with full_precision(x.device.type):
            return torch.mm(gradient + gradient.T, x)


class _Products(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        with full_precision(x.device.type):
            return x @ y.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        into_x, into_y = ctx.needs_input_grad
        with full_precision(x.device.type):
            return gradient @ y if into_x else None, gradient.T @ x if into_y else None


class _Distance(Function):
    @staticmethod
    def forward(
        ctx: Any, similarity: Tensor, query_lengths: Tensor, reference_lengths: Tensor, dim: int, squared: bool
    ) -> Tensor:
        lengths = query_lengths[:, None] + reference_lengths
        result = torch.sub(lengths, similarity, alpha=2)
        result.mul_(result > lengths.mul_(rounding_floor(dim, result.dtype)))
        if not squared:
            result.sqrt_()
        ctx.save_for_backward(result)
        ctx.squared = squared
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        (result,) = ctx.saved_tensors
        zero = result == 0
        along = (gradient * 2.0 if ctx.squared else gradient / (result + zero)).masked_fill_(zero, 0.0)
        return -along, along.sum(dim=1) * 0.5, along.sum(dim=0) * 0.5, None, None


class _LogSumExp(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, dim: int, extra_zero: bool) -> Tensor:
        share = x.masked_fill(~mask, _NOTHING)
        top = share.amax(dim=dim, keepdim=True)
        if extra_zero:
            top = top.clamp_min_(0.0)
        # Nothing below e^-80 is seen in the sum, and on a CPU an exponential that underflows costs fifty times as much.
        share = share.sub_(top).clamp_min_(-80.0).exp_().mul_(mask)
        total = share.sum(dim=dim, keepdim=True)
        if extra_zero:
            total = total.add_((-top).exp_())
        total = total.clamp_min_(torch.finfo(x.dtype).tiny)
        ctx.save_for_backward(share.div_(total))
        ctx.dim = dim
        return total.log_().add_(top).squeeze(dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (share,) = ctx.saved_tensors
        return gradient.unsqueeze(ctx.dim) * share, None, None, None
