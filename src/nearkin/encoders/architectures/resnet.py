"""ResNet-18 and ResNet-50 with torchvision's parameter names, so that its weight files load."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from nearkin.encoders.backbone import Backbone, conv_bn, conv_bn_relu, initialise_convolutions
from nearkin.encoders.preprocessing import IMAGENET, Preprocessing

MEAN_PIXEL = Preprocessing(mean=(0.48502, 0.45796, 0.40760), std=(1.0, 1.0, 1.0))
"""RGB in 0 … 1 minus the mean pixel: what the weights for ``resnet50_v1`` were trained with."""


class Projection(nn.Sequential):
    """The shortcut of a block that changes the number of channels or the size of the map."""

    def __init__(self, inputs: int, outputs: int, stride: int, eps: float) -> None:
        super().__init__(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs, eps=eps))

    def forward(self, x: Tensor) -> Tensor:
        return conv_bn(x, *self)


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, stride_in_1x1: bool, eps: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width, eps=eps)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, eps=eps)
        self.downsample = Projection(inputs, width, stride, eps) if stride > 1 or inputs != width else None

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = conv_bn_relu(x, self.conv1, self.bn1)
        return conv_bn_relu(x, self.conv2, self.bn2, shortcut)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, stride_in_1x1: bool, eps: float) -> None:
        super().__init__()
        first, second = (stride, 1) if stride_in_1x1 else (1, stride)
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, stride=first, bias=False)
        self.bn1 = nn.BatchNorm2d(width, eps=eps)
        self.conv2 = nn.Conv2d(width, width, 3, stride=second, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, eps=eps)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs, eps=eps)
        self.downsample = Projection(inputs, outputs, stride, eps) if stride > 1 or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = conv_bn_relu(x, self.conv1, self.bn1)
        x = conv_bn_relu(x, self.conv2, self.bn2)
        return conv_bn_relu(x, self.conv3, self.bn3, shortcut)


class ResNet(Backbone):
    """Residual network (He et al., CVPR 2016) without its classifier.

    Args:
        block: the residual block.
        depths: blocks in each of the four stages.
        stride_in_1x1: put the stride of a bottleneck on its first 1×1 convolution, like the paper and Caffe, instead of
            on its 3×3, like torchvision. Weights trained with one load into the other, but lose accuracy.
        batch_norm_eps: what batch-norm adds to the variance; 1e-3 in weights that come from Keras.
        preprocessing: what the weights were trained with.
    """

    folds_batch_norm = True
    last_stage = ("layer4",)

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        *,
        stride_in_1x1: bool = False,
        batch_norm_eps: float = 1e-5,
        preprocessing: Preprocessing = IMAGENET,
    ) -> None:
        super().__init__(out_channels=512 * block.expansion, input_size=224, preprocessing=preprocessing)
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64, eps=batch_norm_eps)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = 64
        for stage, depth in enumerate(depths):
            width = 64 * 2**stage
            blocks: list[nn.Module] = []
            for position in range(depth):
                stride = 2 if stage > 0 and position == 0 else 1
                blocks.append(block(channels, width, stride, stride_in_1x1, batch_norm_eps))
                channels = width * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        initialise_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(conv_bn_relu(images, self.conv1, self.bn1))
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        return x  # type: ignore[no-any-return]


def resnet18(*, batch_norm_eps: float = 1e-5) -> ResNet:
    """ResNet-18, 512 channels."""
    return ResNet(BasicBlock, (2, 2, 2, 2), batch_norm_eps=batch_norm_eps)


def resnet50(*, stride_in_1x1: bool = False, batch_norm_eps: float = 1e-5) -> ResNet:
    """ResNet-50, 2048 channels, as in torchvision by default."""
    return ResNet(Bottleneck, (3, 4, 6, 3), stride_in_1x1=stride_in_1x1, batch_norm_eps=batch_norm_eps)


def resnet50_v1(*, batch_norm_eps: float = 1e-3) -> ResNet:
    """The original ResNet-50 with the stride, batch-norm eps and mean pixel that its converted weights need."""
    return ResNet(Bottleneck, (3, 4, 6, 3), stride_in_1x1=True, batch_norm_eps=batch_norm_eps, preprocessing=MEAN_PIXEL)


BACKBONES = {"resnet18": resnet18, "resnet50": resnet50, "resnet50_v1": resnet50_v1}
