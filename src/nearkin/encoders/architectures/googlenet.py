"""GoogLeNet with torchvision's parameter names, so that its weight file loads."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearkin.encoders.backbone import Backbone, conv_bn_relu, initialise_convolutions
from nearkin.encoders.preprocessing import HALF

BLOCKS = {  # channels of the four branches, reductions before their convolutions
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


class ConvBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return conv_bn_relu(x, self.conv, self.bn)


class Inception(nn.Module):
    """Four parallel branches. The third is a 3×3 convolution as in torchvision's weights, not the paper's 5×5."""

    def __init__(self, inputs: int, widths: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        one, three_reduced, three, five_reduced, five, pooled = widths
        self.branch1 = ConvBlock(inputs, one, 1)
        self.branch2 = nn.Sequential(ConvBlock(inputs, three_reduced, 1), ConvBlock(three_reduced, three, 3))
        self.branch3 = nn.Sequential(ConvBlock(inputs, five_reduced, 1), ConvBlock(five_reduced, five, 3))
        pool = nn.MaxPool2d(3, stride=1, padding=1, ceil_mode=True)
        self.branch4 = nn.Sequential(pool, ConvBlock(inputs, pooled, 1))
        self.out_channels = one + three + five + pooled

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], dim=1)


class GoogLeNet(Backbone):
    """GoogLeNet with batch-norm (Szegedy et al., CVPR 2015), 1024 channels, without classifier and auxiliary heads.

    torchvision's weights expect pixels in −1 … 1, to which its own model converts ImageNet-normalised ones.
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
