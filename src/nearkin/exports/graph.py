"""The whole way from raw pixels of any size to embeddings as one module, which exporters can trace."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearkin.data.transforms import Transform
from nearkin.encoders import Encoder
from nearkin.encoders.preprocessing import gain_and_shift
from nearkin.numerics import normalise


class PixelsToEmbeddings(nn.Module):
    """uint8 ``[N, H, W, 3]`` in RGB, N, H and W whatever they are → float32 ``[N, dim]``.

    The evaluation crop is made as :meth:`~nearkin.data.transforms.Transform.evaluate` makes it with Pillow: bilinear,
    with the filter widened by the reduction. Pillow rounds to whole levels after columns and after rows and here
    nothing is rounded, so that single values are up to one level of 256 apart. No branch depends on a size, since a
    traced graph would keep only the one that was taken.

    >>> from nearkin.encoders import build_encoder
    >>> module = PixelsToEmbeddings(build_encoder("small", dim=8), Transform(name="tiny", size=32, resize=40))
    >>> module(torch.zeros(2, 50, 70, 3, dtype=torch.uint8)).shape
    torch.Size([2, 8])
    """

    gain: Tensor
    shift: Tensor

    def __init__(self, encoder: Encoder, transform: Transform, *, flip: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        self.size, self.resize, self.squash, self.flip = transform.size, transform.resize, transform.squash, flip
        gain, shift = gain_and_shift(encoder.preprocessing, torch.device("cpu"))
        self.register_buffer("gain", gain.clone())
        self.register_buffer("shift", shift.clone())
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        crops = self.crops(images)
        embeddings = self._embed(crops)
        if self.flip:
            embeddings = normalise((embeddings + self._embed(crops.flip(3))) / 2, self.encoder.normalisation)
        return embeddings

    def crops(self, images: Tensor) -> Tensor:
        """The evaluation crops, float32 ``[N, 3, size, size]`` of 0 … 255."""
        height, width = images.shape[1], images.shape[2]
        shorter = torch.sym_min(height, width)  # type: ignore[no-untyped-call]
        frame = (self.resize * height // shorter, self.resize * width // shorter)
        if self.squash:
            frame = (self.resize, self.resize)
        x = images.permute(0, 3, 1, 2).to(torch.float32)
        x = F.interpolate(x, size=frame, mode="bilinear", antialias=True, align_corners=False)
        places = torch.arange(self.size, device=x.device)
        for dim, side in zip((2, 3), frame, strict=True):
            x = x.index_select(dim, places + _half(side - self.size))
        return x

    def _embed(self, crops: Tensor) -> Tensor:
        x = crops.flip(1) if self.encoder.preprocessing.bgr else crops
        found: Tensor = self.encoder(x * self.gain + self.shift)
        return found


def _half(number: int) -> int:
    """``round(number / 2)``, which goes to the even one of two, in whole numbers.

    >>> [_half(number) for number in range(8)] == [round(number / 2) for number in range(8)]
    True
    """
    return (number + number % 4 // 3) // 2
