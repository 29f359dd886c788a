"""What every backbone is: a network from images to features that says how to feed it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn

from nearkin.encoders.offset_relu import is_fused, offset_relu
from nearkin.encoders.preprocessing import Preprocessing
from nearkin.errors import RecipeError


class Backbone(nn.Module):
    """``backbone(images [B, 3, H, W]) -> [B, C, h, w]``, or ``[B, C]`` when the network pools by itself.

    Args:
        out_channels: C.
        input_size: side in pixels of the square crops for which the network was designed; other sizes work.
        preprocessing: how uint8 pixels become its input.
    """

    folds_batch_norm = False
    """Whether its batch-norms go through ``conv_bn`` or ``conv_bn_relu``."""

    last_stage: tuple[str, ...] = ()
    """Modules that halve the map for the last time, themselves or within; none where that cannot be changed."""

    def __init__(self, *, out_channels: int, input_size: int, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.input_size = input_size
        self.preprocessing = preprocessing

    def forward(self, images: Tensor) -> Tensor:
        raise NotImplementedError

    def set_last_stride(self, stride: int) -> None:
        """Make the last halving of the map one by ``stride``: 1 leaves it twice as fine, with the same weights."""
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

    def imagenet_weights(self) -> Path | None:
        """The weight file that comes with an installed package, or None when the user has to bring one."""
        return None


@contextmanager
def explain_size_error(size: int, images: Tensor) -> Iterator[None]:
    """Turn what a network of another library raises for images of another size into a :class:`RecipeError`."""
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

    With a fixed mean and variance, batch-norm is a factor and an offset for every channel. Both go into the
    convolution, with the same values and gradients (also of the norm's weight and bias), and without the passes over
    the feature map that frozen batch-norm takes forward and backward.
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
    """Compute the factors and offsets of all frozen ``norms`` at once, for :func:`conv_bn` within the block.

    One layer at a time they take six launches each way, and the time of a step of a deep network on small batches is
    the time that the host takes to launch it.
    """
    token = _FOLDED.set(_affines([norm for norm in norms if _is_frozen(norm)]))
    try:
        yield
    finally:
        _FOLDED.reset(token)


def _is_frozen(norm: nn.BatchNorm2d) -> bool:
    # An exported graph keeps both layers: what runs it folds them once and for all, not in every call.
    is_fixed = not norm.training and norm.running_var is not None and norm.affine
    return is_fixed and not torch.compiler.is_exporting()


def _folded(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Weight and bias of the convolution that does what both do."""
    computed = _FOLDED.get()
    factor, offset = computed[norm] if norm in computed else _affines([norm])[norm]
    if convolution.bias is not None:
        offset = offset + convolution.bias * factor
    return convolution.weight * factor.view(-1, 1, 1, 1), offset


def _affines(norms: Sequence[nn.BatchNorm2d]) -> dict[nn.Module, Affine]:
    if len({norm.eps for norm in norms}) != 1:  # one by one, or none at all
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
