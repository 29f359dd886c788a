"""Numerics that losses and encoders share, and checks of their inputs.

Values (label range, NaN) are checked only on the CPU, as reading them would make the host wait for an accelerator.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

Normalisation = Literal["l2", "ball"]

NORM_FLOOR = 1e-12


def at_least_float32(x: Tensor) -> Tensor:
    """``x`` itself when float32 or float64, otherwise a float32 copy."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


@contextmanager
def full_precision(device_type: str) -> Iterator[None]:
    """A context without autocast and TF32 on devices of type ``"cpu"``, ``"cuda"``, ….

    >>> with torch.autocast("cpu", dtype=torch.bfloat16), full_precision("cpu"):
    ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    torch.float32
    """
    with ExitStack() as stack:
        if torch.is_autocast_enabled(device_type):
            stack.enter_context(torch.autocast(device_type, enabled=False))
        if device_type == "cuda" and torch.backends.cuda.matmul.fp32_precision == "tf32":
            stack.enter_context(tf32(False))
        yield


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """A context that allows TF32 on CUDA, or enforces full float32 precision on every device.

    The setting counts when an operation runs, also in a backward pass. Both of torch's interfaces are restored: the
    older one cannot be read where the newer was used, and setting it changes the newer.
    """
    cuda, cudnn, cpu = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    parts = (cuda, cudnn.conv, cudnn.rnn, cpu)  # type: ignore[attr-defined]
    before, older = [part.fp32_precision for part in parts], None
    with suppress(RuntimeError):
        older = torch.get_float32_matmul_precision()
    try:
        if not allowed:
            torch.set_float32_matmul_precision("highest")
        cuda.allow_tf32 = cudnn.allow_tf32 = allowed
        yield
    finally:
        cudnn.allow_tf32 = before[1] == "tf32"
        if older is None:
            cuda.allow_tf32 = before[0] == "tf32"
        else:
            torch.set_float32_matmul_precision(older)
        for part, precision in zip(parts, before, strict=True):
            part.fp32_precision = precision


_ONEDNN_LINEAR = None
if platform.machine() in ("x86_64", "AMD64") and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
    _ONEDNN_LINEAR = torch.ops.mkldnn._linear_pointwise.default


def fast_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias`` without gradients; on AMD's processors oneDNN takes half the time of torch's product."""
    if _ONEDNN_LINEAR is not None and x.dtype == torch.float32 and x.device.type == "cpu":
        product: Tensor = _ONEDNN_LINEAR(x, weight, bias, "none", [], "")
        return product
    return F.linear(x, weight, bias)


def l2_normalise(x: Tensor) -> Tensor:
    """``x / ‖x‖`` along the last dimension; a zero vector stays zero."""
    return F.normalize(x, dim=-1, eps=NORM_FLOOR)


def normalise(x: Tensor, kind: Normalisation) -> Tensor:
    """``x / ‖x‖`` along the last dimension (``"l2"``), or ``x / max(1, ‖x‖)`` (``"ball"``), which keeps short ones."""
    check_choice("l2", "ball", normalisation=kind)
    return l2_normalise(x) if kind == "l2" else F.normalize(x, dim=-1, eps=1.0)


EXCLUDED = -1e30
"""Replaces minus infinity in a log-sum-exp: its exponential is 0, and the difference of two of them is finite."""


def log1p_exp(x: Tensor) -> Tensor:
    """``log(1 + exp x)`` to the last digit of float64, for which torch's threshold of 20 is too low.

    >>> log1p_exp(torch.tensor([0.0, 1000.0]))
    tensor([6.9315e-01, 1.0000e+03])
    """
    return F.softplus(x, threshold=40.0)


def log1p_sum_exp_by_label(x: Tensor, labels: Tensor, count: int) -> Tensor:
    """``log(1 + Σ exp x_i)`` over the entries of ``x [N]`` with each of the labels ``0 .. count - 1``."""
    top = x.new_zeros(count).scatter_reduce(0, labels, x.detach(), "amax")
    return (-top).exp().index_add(0, labels, (x - top[labels]).exp()).log() + top


def log_sum_exp_where(x: Tensor, mask: Tensor, dim: int, *, extra_zero: bool = False) -> Tensor:
    """``log Σ exp x_i`` along ``dim`` over the entries in ``mask``, or with ``extra_zero`` ``log(1 + Σ exp x_i)``.

    An empty sum gives about :data:`EXCLUDED`, or 0 with ``extra_zero``.

    >>> log_sum_exp_where(torch.tensor([[0.0, 0.0, 9.0]]), torch.tensor([[True, True, False]]), dim=1)
    tensor([0.6931])
    """
    top = x.detach().masked_fill(~mask, EXCLUDED).amax(dim, keepdim=True)
    if extra_zero:
        top = top.clamp_min(0.0)
    # Terms below e^-80 do not change the sum, and on a CPU an exponential that underflows costs fifty times as much.
    total = ((x - top).clamp(-80.0, 0.0).exp() * mask).sum(dim, keepdim=True)
    if extra_zero:
        total = total + (-top).exp()
    return (total.clamp_min(torch.finfo(x.dtype).tiny).log() + top).squeeze(dim)


def rounding_floor(dim: int, dtype: torch.dtype) -> float:
    """The largest squared distance of two equal vectors after rounding, as a share of ``‖q‖² + ‖r‖²``.

    A sum of D products, added up in any order, is off by at most ``γ_D Σ|x_i y_i|`` with ``γ_n = n u / (1 − n u)`` and
    the unit roundoff u = ε/2 (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). So ``‖q‖² + ‖r‖² −
    2 q·r`` is off by ``2 γ_D (‖q‖² + ‖r‖²)``, and by the roundings of the sum and of the difference.

    >>> rounding_floor(512, torch.float32) ** 0.5  # the distance of unit vectors, over √2
    0.00782...
    """
    unit = torch.finfo(dtype).eps / 2
    terms = dim + 2
    return 2 * terms * unit / (1 - terms * unit)


def safe_sqrt(x: Tensor) -> Tensor:
    """``sqrt(max(x, 0))`` with gradient 0, not infinity, where ``x <= 0``.

    >>> x = torch.tensor([0.0, 4.0], requires_grad=True)
    >>> safe_sqrt(x).sum().backward(); x.grad
    tensor([0.0000, 0.2500])
    """
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)


Labels = Tensor | NDArray[np.integer[Any]] | Sequence[int]
"""What a loss takes as labels."""


def check_embeddings(embeddings: Tensor, *, dim: int | None = None, name: str = "embeddings") -> None:
    if isinstance(embeddings, np.ndarray):
        raise ValueError(f"{name} must be a torch tensor, got a numpy array: convert it with torch.from_numpy({name})")
    if not isinstance(embeddings, Tensor):
        raise ValueError(f"{name} must be a torch tensor of shape [N, D], got {type(embeddings).__name__}")
    if embeddings.ndim != 2:
        raise ValueError(f"{name} must have shape [N, D], got {list(embeddings.shape)}")
    if embeddings.shape[0] == 0:
        raise ValueError(f"{name} must hold at least one row, got shape {list(embeddings.shape)}")
    if not embeddings.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {embeddings.dtype}")
    if dim is not None and embeddings.shape[1] != dim:
        raise ValueError(f"{name} must have {dim} columns, as the loss has dim={dim}, got {embeddings.shape[1]}")
    # A sum is far cheaper than checking every value. It may overflow, so the values decide.
    if embeddings.device.type == "cpu" and not math.isfinite(embeddings.detach().sum()):
        bad = (~torch.isfinite(embeddings)).any(dim=1).nonzero()
        if len(bad):
            raise ValueError(f"{name} must be finite, got NaN or infinity in row {int(bad[0])}")


def checked_labels(
    labels: Labels, embeddings: Tensor, *, num_classes: int | None = None, name: str = "labels"
) -> Tensor:
    """The labels of checked ``embeddings`` as a tensor of integers on their device.

    >>> checked_labels([3, 1], torch.zeros(2, 4))
    tensor([3, 1])
    """
    if not isinstance(labels, Tensor):
        array = np.asarray(labels)
        if array.dtype.kind not in "iu":
            raise ValueError(f"{name} must be integers, got {array.dtype} ({type(labels).__name__})")
        labels = torch.as_tensor(array.astype(np.int64), device=embeddings.device)
    rows = len(embeddings)
    if labels.ndim != 1 or labels.shape[0] != rows:
        raise ValueError(f"{name} must have shape [{rows}], one per embedding, got {list(labels.shape)}")
    if labels.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8):
        raise ValueError(f"{name} must be integers, got {labels.dtype}")
    if num_classes is not None and labels.device.type == "cpu":
        low, high = (int(v) for v in torch.aminmax(labels))
        if low < 0 or high >= num_classes:
            wrong = low if low < 0 else high
            raise ValueError(f"{name} must lie in 0..{num_classes - 1}, the loss's num_classes, got {wrong}")
    return labels


def check_positive(**options: float) -> None:
    """Refuse options that are not above 0, by name."""
    for name, value in options.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")


def check_at_least(least: float, **options: float | None) -> None:
    """Refuse options below ``least``, by name; None is allowed."""
    for name, value in options.items():
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def check_choice(*choices: str, **options: str) -> None:
    """Refuse options that are not among the ``choices``, by name."""
    for name, value in options.items():
        if value not in choices:
            first, last = ", ".join(map(repr, choices[:-1])), choices[-1]
            raise ValueError(f"{name} must be {first} or {last!r}, got {value!r}")
