"""What every backbone is: a network from images to features that says how to feed it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearkin.encoders.preprocessing import Preprocessing


class Backbone(nn.Module):
    """``backbone(images [B, 3, H, W]) -> [B, C, h, w]``, or ``[B, C]`` when the network pools by itself.

    Args:
        out_channels: C.
        input_size: side in pixels of the square crops for which the network was designed; other sizes work.
        preprocessing: how uint8 pixels become its input.
    """

    def __init__(self, *, out_channels: int, input_size: int, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.input_size = input_size
        self.preprocessing = preprocessing

    def forward(self, images: Tensor) -> Tensor:
        raise NotImplementedError

    def imagenet_weights(self) -> Path | None:
        """The weight file that comes with an installed package, or None when the user has to bring one."""
        return None


def normalised_convolution(x: Tensor, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> Tensor:
    """``norm(convolution(x))``, as one convolution while the norm's statistics stand still.

    With a fixed mean and variance batch-norm is a factor and an offset for every channel, and both go into the
    convolution: the same values and the same gradients, its own weight and bias included, without the passes over the
    feature map that frozen batch-norm takes forward and, above all, backward.
    """
    if norm.training or norm.running_mean is None or norm.running_var is None:
        return norm(convolution(x))  # type: ignore[no-any-return]
    factor = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    mean = norm.running_mean if convolution.bias is None else norm.running_mean - convolution.bias
    return F.conv2d(
        x,
        convolution.weight * factor.view(-1, 1, 1, 1),
        torch.addcmul(norm.bias, mean, factor, value=-1),
        convolution.stride,
        convolution.padding,
        convolution.dilation,
        convolution.groups,
    )


def initialise_convolutions(network: nn.Module) -> None:
    """Kaiming-normal by fan-out, which keeps the gradients' scale through convolution, batch-norm and ReLU."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
