"""The base class of backbones, and the layers that they share: convolution, batch-norm, shortcut and ReLU.

PyTorch takes separate passes for a convolution's bias, the shortcut and ReLU, almost half the time of a ResNet-50's
step. On a GPU they are one pass here, forward and backward.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nearkin.encoders.preprocessing import Preprocessing
from nearkin.errors import RecipeError, load_kernels


class Backbone(nn.Module):
    """``backbone(images [B, 3, H, W]) -> [B, C, h, w]``, or ``[B, C]`` when the network pools by itself.

    Args:
        out_channels: C.
        input_size: side in pixels of the crops for which the network was designed; other sizes work.
        preprocessing: how uint8 pixels become its input.
    """

    folds_batch_norm = False
    """Whether its batch-norms go through ``conv_bn`` or ``conv_bn_relu``."""

    last_stage: tuple[str, ...] = ()
    """Names of the modules that halve the map for the last time; empty where that cannot be changed."""

    def __init__(self, *, out_channels: int, input_size: int, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.input_size = input_size
        self.preprocessing = preprocessing

    def set_last_stride(self, stride: int) -> None:
        """Give the last stage ``stride`` 1 instead of 2: a feature map twice as fine, with the same weights."""
        if not self.last_stage:
            raise RecipeError(
                f"encoder.last_stride={stride} does not work with {type(self).__name__}, whose last stage has none: "
                "leave it out, or use another backbone, such as resnet50"
            )
        if stride not in (1, 2):
            raise RecipeError(f"encoder.last_stride must be 1, or 2 as networks have it, got {stride}")
        for module in [part for name in self.last_stage for part in self.get_submodule(name).modules()]:
            if isinstance(module, nn.Conv2d) and module.stride == (2, 2):
                module.stride = (stride, stride)
            elif isinstance(module, nn.MaxPool2d) and module.stride == 2:
                module.stride = stride

    def freeze_blocks(self, count: int) -> None:
        """Do not train the first ``count`` blocks and what comes before them, nor compute their backward pass."""
        if count:
            raise RecipeError(
                f"encoder.frozen_blocks={count} does not work with {type(self).__name__}: leave it out, or use a "
                "vision transformer, such as vit_tiny"
            )

    def parameter_layers(self) -> list[list[nn.Parameter]]:
        """All parameters by layer, the one next to the image first, for ``training.layer_decay``."""
        return [list(self.parameters())]

    def imagenet_weights(self) -> Path | None:
        """The ImageNet weight file of an installed package, or None where the user has to bring one."""
        return None


@contextmanager
def explain_size_error(size: int, images: Tensor) -> Iterator[None]:
    """Turn another library's error about images of the wrong size into a :class:`RecipeError`."""
    try:
        yield
    except (AssertionError, RuntimeError, ValueError) as error:
        height, width = images.shape[-2:]
        if (height, width) == (size, size) or isinstance(error, torch.OutOfMemoryError):
            raise
        raise RecipeError(
            f"the backbone was made for images of {size} × {size} pixels and cannot take {height} × {width} "
            f"({' '.join(str(error).split())[:200]}): set data.image_size={size} and "
            f"protocol.eval_scale=1, and leave out protocol.eval_size"
        ) from error


Affine = tuple[Tensor, Tensor]
"""What batch-norm with fixed statistics does to every channel: a factor and an offset."""

_FOLDED: ContextVar[Mapping[nn.Module, Affine]] = ContextVar("folded", default=MappingProxyType({}))


def conv_bn(x: Tensor, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> Tensor:
    """``norm(convolution(x))``, as one convolution while the norm's statistics are frozen.

    Frozen batch-norm is a factor and an offset for every channel. Both go into the convolution, with the same values
    and gradients (also of the norm's weight and bias).
    """
    if not _is_frozen(norm):
        return norm(convolution(x))  # type: ignore[no-any-return]
    return convolution._conv_forward(x, *_folded(convolution, norm))  # type: ignore[no-any-return]


def conv_bn_relu(x: Tensor, convolution: nn.Conv2d, norm: nn.BatchNorm2d, shortcut: Tensor | None = None) -> Tensor:
    """``relu(norm(convolution(x)) + shortcut)``: :func:`conv_bn` and what follows it in most networks.

    While the norm's statistics are frozen, a GPU adds the offset and the shortcut and applies ReLU in one pass.
    """
    if _is_frozen(norm) and is_fused(x):
        weight, offset = _folded(convolution, norm)
        return offset_relu(convolution._conv_forward(x, weight, None), offset, shortcut)
    x = conv_bn(x, convolution, norm)
    return torch.relu_(x if shortcut is None else x.add_(shortcut))


@contextmanager
def fold_batch_norms(norms: Sequence[nn.BatchNorm2d]) -> Iterator[None]:
    """Compute the factors and offsets of all frozen ``norms`` at once, for :func:`conv_bn` inside the context.

    One layer at a time takes six kernel launches forward and six backward, which dominate a step on small batches.
    """
    token = _FOLDED.set(_affines([norm for norm in norms if _is_frozen(norm)]))
    try:
        yield
    finally:
        _FOLDED.reset(token)


def _is_frozen(norm: nn.BatchNorm2d) -> bool:
    # An exported graph keeps both layers, since the runtime folds them once, not in every call.
    is_fixed = not norm.training and norm.running_var is not None and norm.affine
    return is_fixed and not torch.compiler.is_exporting()


def _folded(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Weight and bias of the convolution that replaces both."""
    computed = _FOLDED.get()
    factor, offset = computed[norm] if norm in computed else _affines([norm])[norm]
    if convolution.bias is not None:
        offset = offset + convolution.bias * factor
    return convolution.weight * factor.view(-1, 1, 1, 1), offset


def _affines(norms: Sequence[nn.BatchNorm2d]) -> dict[nn.Module, Affine]:
    """The factor and the offset of each norm; of norms with the same eps in one computation."""
    if len({norm.eps for norm in norms}) != 1:
        return {norm: _affines([norm])[norm] for norm in norms}
    gain, shift, mean, variance = (
        torch.cat([getattr(norm, name) for norm in norms]) for name in ("weight", "bias", "running_mean", "running_var")
    )
    factor = gain * torch.rsqrt(variance + norms[0].eps)
    offset = torch.addcmul(shift, mean, factor, value=-1)
    device = offset.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        offset = offset.to(torch.get_autocast_dtype(device))
    sizes = [norm.num_features for norm in norms]
    return dict(zip(norms, zip(torch.split(factor, sizes), torch.split(offset, sizes), strict=True), strict=True))


def initialise_convolutions(network: nn.Module) -> None:
    """Kaiming-normal by fan-out, which keeps the gradients' scale through convolution, batch-norm and ReLU."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


LARGE = 1 << 22
"""Elements from which a feature map is worth the fused pass without gradients: launching a Triton kernel takes longer
than launching two of PyTorch's. Training launches all kernels as one graph."""


def is_fused(x: Tensor) -> bool:
    """Whether feature maps like ``x`` go through the fused pass: on a GPU, channels last, with Triton, and large."""
    if not x.is_cuda or x.dtype == torch.float64 or not x.is_contiguous(memory_format=torch.channels_last):
        return False
    return (torch.is_grad_enabled() or x.numel() >= LARGE) and _kernels() is not None


def offset_relu(x: Tensor, offset: Tensor, shortcut: Tensor | None = None) -> Tensor:
    """``relu(x + offset [C] + shortcut)`` in one pass, in place of ``x [B, C, h, w]``, which nothing else may need."""
    return _OffsetReLU.apply(x, offset, shortcut)  # type: ignore[no-untyped-call, no-any-return]


class _OffsetReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, offset: Tensor, shortcut: Tensor | None) -> Tensor:
        kernels = _kernels()
        assert kernels is not None
        ctx.mark_dirty(x)
        ctx.save_for_backward(x, offset)
        kernels.offset_relu_(x, offset, None if shortcut is None else _channels_last(shortcut))
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        y, offset = ctx.saved_tensors
        _, needs_offset, needs_shortcut = ctx.needs_input_grad
        gradient, offset_gradient = _channels_last(gradient), None
        if needs_offset:
            kernels = _kernels()
            assert kernels is not None
            gradient, offset_gradient = kernels.gradients(gradient, y)
            offset_gradient = offset_gradient.to(offset.dtype)
        else:
            gradient = torch.ops.aten.threshold_backward(gradient, y, 0)
        return gradient, offset_gradient, gradient if needs_shortcut else None


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


@functools.cache
def _kernels() -> ModuleType | None:
    """The kernels of the fused pass, or None where Triton cannot build them."""

    def try_out(kernels: ModuleType) -> None:
        x = torch.zeros(1, 8, 2, 2, dtype=torch.bfloat16, device="cuda").contiguous(memory_format=torch.channels_last)
        kernels.offset_relu_(x, torch.zeros(8, device="cuda"), x.clone())
        kernels.gradients(x, x)

    otherwise = "convolution, offset and ReLU take a pass each, as Triton cannot build their kernel"
    return load_kernels("nearkin.encoders._offset_relu_kernel", try_out, otherwise)
