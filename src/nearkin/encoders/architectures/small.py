"""A small convolutional network for images of 28 to 64 pixels that trains in minutes without an accelerator."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from nearkin.encoders.backbone import Backbone, initialise_convolutions
from nearkin.encoders.preprocessing import HALF


class ConvBlock(nn.Module):
    """Convolution, batch-norm, ReLU; where the shape stays the same, the input is added before the ReLU."""

    def __init__(self, inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs)
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        branch = self.bn(self.conv(x))
        return F.relu(branch + x if self.has_shortcut else branch)


class Small(Backbone):
    """Six convolutions, 0.4 million parameters, 192 channels on a map of an eighth of the side.

    Large maps near the input are slow on a CPU, so the first convolution steps by four at once. The map is not halved
    once more at the end: on Glyphs-like images that cost more R@1 on unseen classes than the time was worth.

    Example:
        >>> import torch
        >>> Small()(torch.zeros(1, 3, 48, 48)).shape
        torch.Size([1, 192, 6, 6])
    """

    def __init__(self) -> None:
        super().__init__(out_channels=192, input_size=48, preprocessing=HALF)
        self.blocks = nn.Sequential(
            ConvBlock(3, 48, kernel=7, stride=4),
            ConvBlock(48, 48),
            ConvBlock(48, 96, stride=2),
            ConvBlock(96, 96),
            ConvBlock(96, 96),
            ConvBlock(96, 192),
        )
        initialise_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.blocks(images)  # type: ignore[no-any-return]


BACKBONES = {"small": Small}
