"""Small numerical pieces that the losses share: everything that could overflow or have an infinite slope."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Normalisation = Literal["l2", "ball"]

NORM_FLOOR = 1e-12


def at_least_float32(x: Tensor) -> Tensor:
    """``x`` itself when float32 or float64, otherwise a float32 copy."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def full_precision(device_type: str) -> AbstractContextManager[object]:
    """A context in which autocast and TF32 do nothing on ``"cpu"``, ``"cuda"``, …; free of cost where they are off.

    >>> with torch.autocast("cpu", dtype=torch.bfloat16), full_precision("cpu"):
    ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    torch.float32
    """
    contexts: list[AbstractContextManager[object]] = []
    if torch.is_autocast_enabled(device_type):
        contexts.append(torch.autocast(device_type, enabled=False))
    if device_type == "cuda" and torch.backends.cuda.matmul.fp32_precision == "tf32":
        contexts.append(tf32(False))
    if not contexts:
        return nullcontext()
    return contexts[0] if len(contexts) == 1 else _all_of(contexts)


@contextmanager
def _all_of(contexts: list[AbstractContextManager[object]]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Within, CUDA multiplies and convolves float32 with ten bits of each factor, or with all of them.

    By itself torch convolves in TF32 and multiplies matrices in float32. What is set counts when an operation runs, so
    for a backward pass it counts then.
    """
    with _precisions_kept():
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
        yield


@contextmanager
def true_float32() -> Iterator[None]:
    """Within, every device multiplies float32 matrices in float32, whatever has been allowed in its place."""
    with _precisions_kept():
        torch.set_float32_matmul_precision("highest")
        yield


@contextmanager
def _precisions_kept() -> Iterator[None]:
    """Afterwards float32 counts as it did before, by both of torch's ways to say it.

    Reading by the older way fails where the newer one was used, and setting by it changes what the newer one says.
    """
    cuda, cudnn, cpu = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    parts = (cuda, cudnn.conv, cudnn.rnn, cpu)  # type: ignore[attr-defined]
    before, older = [part.fp32_precision for part in parts], None
    with suppress(RuntimeError):
        older = torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        cudnn.allow_tf32 = before[1] == "tf32"
        if older is None:
            cuda.allow_tf32 = before[0] == "tf32"
        else:
            torch.set_float32_matmul_precision(older)
        for part, precision in zip(parts, before, strict=True):
            part.fp32_precision = precision


def l2_normalise(x: Tensor) -> Tensor:
    """``x / ‖x‖`` along the last dimension; a zero vector stays zero.

    >>> l2_normalise(torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """
    return F.normalize(x, dim=-1, eps=NORM_FLOOR)


def ball_normalise(x: Tensor) -> Tensor:
    """``x / max(1, ‖x‖)``: projects onto the unit ball and leaves short vectors alone.

    >>> ball_normalise(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    return F.normalize(x, dim=-1, eps=1.0)


def normalise(x: Tensor, kind: Normalisation) -> Tensor:
    """Normalise along the last dimension by name, ``"l2"`` or ``"ball"``."""
    if kind == "l2":
        return l2_normalise(x)
    if kind == "ball":
        return ball_normalise(x)
    raise ValueError(f"normalisation must be 'l2' or 'ball', got {kind!r}")


def log1p_sum_exp(x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """``log(1 + Σ exp x_i)`` over the entries of ``dim`` where ``mask`` holds; 0 where none does.

    >>> log1p_sum_exp(torch.tensor([[0.0, 1000.0]]), torch.tensor([[True, True]]), dim=1)
    tensor([1000.])
    >>> log1p_sum_exp(torch.tensor([[5.0]]), torch.tensor([[False]]), dim=1)
    tensor([0.])
    """
    zero = torch.zeros_like(x.narrow(dim, 0, 1))
    return torch.cat([zero, x.masked_fill(~mask, float("-inf"))], dim).logsumexp(dim)


def log1p_exp(x: Tensor) -> Tensor:
    """``log(1 + exp x)`` to the last digit: ``F.softplus`` leaves the 1 out above 20, which float64 sees.

    >>> log1p_exp(torch.tensor([0.0, 1000.0]))
    tensor([6.9315e-01, 1.0000e+03])
    """
    return torch.logaddexp(x, torch.zeros_like(x))


def log_sum_exp_(x: Tensor, dim: int, *, extra_zero: bool = False, factor: float | Tensor = 1.0) -> Tensor:
    """``log Σ exp x_i`` over ``dim``, or ``log(1 + Σ exp x_i)``; overwrites ``x`` with ``factor`` times its derivative.

    The derivative is the softmax of ``x`` (with the extra zero among the exponents), so value and gradient cost one
    exponential and no second array. Entries of minus infinity count for nothing.

    >>> x = torch.tensor([[0.0, 0.0, float("-inf")]])
    >>> log_sum_exp_(x, 1, extra_zero=True), x
    (tensor([1.0986]), tensor([[0.3333, 0.3333, 0.0000]]))
    """
    top = x.amax(dim, keepdim=True)
    if extra_zero:
        top.clamp_min_(0.0)
    total = x.sub_(top).exp_().sum(dim, keepdim=True)
    if extra_zero:
        total.add_((-top).exp_())
    x.div_(total / factor)
    return total.log_().add_(top).squeeze(dim)


def safe_sqrt(x: Tensor) -> Tensor:
    """``sqrt(max(x, 0))`` with gradient 0, not infinity, where ``x <= 0``.

    >>> x = torch.tensor([0.0, 4.0], requires_grad=True)
    >>> safe_sqrt(x).sum().backward(); x.grad
    tensor([0.0000, 0.2500])
    """
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)
