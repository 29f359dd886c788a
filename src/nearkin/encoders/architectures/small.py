"""A small convolutional network for images of 28 to 64 pixels that trains in minutes without an accelerator."""

from __future__ import annotations

from torch import Tensor, nn

from nearkin.encoders.backbone import Backbone, initialise_convolutions
from nearkin.encoders.preprocessing import HALF


class Small(Backbone):
    """Four 3×3 convolutions, each halving the map.

    Example:
        >>> import torch
        >>> Small()(torch.zeros(1, 3, 48, 48)).shape
        torch.Size([1, 256, 3, 3])
    """

    def __init__(self) -> None:
        super().__init__(out_channels=256, input_size=48, preprocessing=HALF)
        layers: list[nn.Module] = []
        channels = 3
        for width in (32, 64, 128, 256):
            layers += [
                nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
            channels = width
        self.layers = nn.Sequential(*layers)
        initialise_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)  # type: ignore[no-any-return]


BACKBONES = {"small": Small}
