"""ResNetV2-20: the pre-activation network for images of MNIST's and CIFAR's size."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from nearkin.encoders.backbone import Backbone, initialise_convolutions
from nearkin.encoders.preprocessing import HALF


class PreActivationBlock(nn.Module):
    """Batch-norm and ReLU before each 3×3 convolution; the shortcut carries the input untouched."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.projection: nn.Conv2d | None = None
        if inputs != outputs or stride != 1:
            self.projection = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.bn1(x))
        shortcut: Tensor = x if self.projection is None else self.projection(activated)
        branch: Tensor = self.conv2(F.relu(self.bn2(self.conv1(activated))))
        return branch + shortcut


class ResNetV2(Backbone):
    """Pre-activation residual network (He et al., ECCV 2016): three stages of 3 blocks, 16, 32 and 64 channels."""

    last_stage = ("blocks.6",)

    def __init__(self) -> None:
        super().__init__(out_channels=64, input_size=28, preprocessing=HALF)
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        blocks: list[nn.Module] = []
        channels = 16
        for stage, width in enumerate((16, 32, 64)):
            for position in range(3):
                stride = 2 if stage > 0 and position == 0 else 1
                blocks.append(PreActivationBlock(channels, width, stride))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(channels)
        initialise_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        return F.relu(self.bn(self.blocks(self.conv(images))))


BACKBONES = {"resnetv2_20": ResNetV2}
