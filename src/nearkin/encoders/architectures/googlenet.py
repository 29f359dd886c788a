"""GoogLeNet with torchvision's parameter names, so that its weight file loads."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearkin.encoders.backbone import Backbone, conv_bn_relu, initialise_convolutions
from nearkin.encoders.preprocessing import HALF


class Widths(NamedTuple):
    """Channels of an inception block's four branches, reductions before their convolutions."""

    one: int
    three_reduced: int
    three: int
    five_reduced: int
    five: int
    pooled: int


BLOCKS = {
    "3a": Widths(64, 96, 128, 16, 32, 32),
    "3b": Widths(128, 128, 192, 32, 96, 64),
    "4a": Widths(192, 96, 208, 16, 48, 64),
    "4b": Widths(160, 112, 224, 24, 64, 64),
    "4c": Widths(128, 128, 256, 24, 64, 64),
    "4d": Widths(112, 144, 288, 32, 64, 64),
    "4e": Widths(256, 160, 320, 32, 128, 128),
    "5a": Widths(256, 160, 320, 32, 128, 128),
    "5b": Widths(384, 192, 384, 48, 128, 128),
}


class ConvBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return conv_bn_relu(x, self.conv, self.bn)


class Inception(nn.Module):
    """Four parallel branches. The third is a 3×3 convolution, not the paper's 5×5: torchvision's weights were
    trained that way."""

    def __init__(self, inputs: int, widths: Widths) -> None:
        super().__init__()
        self.branch1 = ConvBlock(inputs, widths.one, 1)
        self.branch2 = nn.Sequential(
            ConvBlock(inputs, widths.three_reduced, 1), ConvBlock(widths.three_reduced, widths.three, 3)
        )
        self.branch3 = nn.Sequential(
            ConvBlock(inputs, widths.five_reduced, 1), ConvBlock(widths.five_reduced, widths.five, 3)
        )
        self.branch4 = nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True), ConvBlock(inputs, widths.pooled, 1)
        )
        self.out_channels = widths.one + widths.three + widths.five + widths.pooled

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], dim=1)


class GoogLeNet(Backbone):
    """GoogLeNet with batch-norm (Szegedy et al., CVPR 2015), 1024 channels, without classifier and auxiliary heads.

    torchvision's weights expect pixels in −1 … 1: its own model converts from the ImageNet mean and standard
    deviation to that on the way in.

    Example:
        >>> GoogLeNet()(torch.zeros(1, 3, 64, 64)).shape
        torch.Size([1, 1024, 2, 2])
    """

    folds_batch_norm = True

    def __init__(self) -> None:
        super().__init__(out_channels=1024, input_size=224, preprocessing=HALF)
        self.conv1 = ConvBlock(3, 64, 7, stride=2)
        self.conv2 = ConvBlock(64, 64, 1)
        self.conv3 = ConvBlock(64, 192, 3)
        channels = 192
        for name, widths in BLOCKS.items():
            block = Inception(channels, widths)
            self.add_module(f"inception{name}", block)
            channels = block.out_channels
        initialise_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(self.conv1(images), 3, stride=2, ceil_mode=True)
        x = F.max_pool2d(self.conv3(self.conv2(x)), 3, stride=2, ceil_mode=True)
        for name in BLOCKS:
            if name == "4a":
                x = F.max_pool2d(x, 3, stride=2, ceil_mode=True)
            elif name == "5a":
                x = F.max_pool2d(x, 2, stride=2, ceil_mode=True)
            x = self.get_submodule(f"inception{name}")(x)
        return x


BACKBONES = {"googlenet": GoogLeNet}
