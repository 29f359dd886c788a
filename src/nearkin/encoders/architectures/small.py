"""A small convolutional network for images of 28 to 64 pixels that trains in minutes without an accelerator."""

from __future__ import annotations

from torch import Tensor, nn

from nearkin.encoders.backbone import Backbone, initialise_convolutions
from nearkin.encoders.preprocessing import HALF


class Small(Backbone):
    """A 5×5 convolution that halves the map, two 3×3 ones each followed by max pooling, and a last 3×3.

    Max pooling instead of strides makes so small a network tolerant of shifts.

    Args:
        width: channels of the first stage; the others have twice and four times as many.
    """

    last_stage = ("layers.10",)

    def __init__(self, *, width: int = 32) -> None:
        super().__init__(out_channels=4 * width, input_size=48, preprocessing=HALF)
        self.layers = nn.Sequential(
            *_stage(3, width, kernel=5, stride=2),
            *_stage(width, 2 * width),
            nn.MaxPool2d(2),
            *_stage(2 * width, 4 * width),
            nn.MaxPool2d(2),
            *_stage(4 * width, 4 * width),
        )
        initialise_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)  # type: ignore[no-any-return]


def _stage(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    ]


BACKBONES = {"small": Small}
