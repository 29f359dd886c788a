"""How uint8 pixels become the input of a backbone."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.errors import RecipeError, did_you_mean
from nearkin.recipe import coerce_fields

Channels = tuple[float, float, float]


@dataclass(frozen=True)
class Preprocessing:
    """``(x / 255 · scale − mean) / std`` per channel, in BGR order when ``bgr``.

    ``mean`` and ``std`` are in scaled units and in the order of the backbone's channels.
    Shapes: uint8 ``[B, H, W, 3]`` in RGB → float32 ``[B, 3, H, W]`` on the same device.

    >>> white = torch.full((1, 2, 2, 3), 255, dtype=torch.uint8)
    >>> HALF(white).shape, HALF(white).unique()
    (torch.Size([1, 3, 2, 2]), tensor([1.]))
    """

    mean: Channels
    std: Channels
    bgr: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        if min(*self.std, self.scale) <= 0.0:
            raise RecipeError(f"preprocessing std and scale must be positive, got {self.std} and {self.scale}")

    @property
    def mean_pixel(self) -> tuple[int, int, int]:
        """The RGB colour in 0 … 255 that becomes nearly zero.

        >>> IMAGENET.mean_pixel, CAFFE_BGR.mean_pixel
        ((124, 116, 104), (128, 117, 104))
        """
        red, green, blue = (min(255, max(0, round(255.0 / self.scale * mean))) for mean in self.mean)
        return (blue, green, red) if self.bgr else (red, green, blue)

    def __call__(self, images: Tensor) -> Tensor:
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[-1] != 3:
            raise ValueError(f"images must be uint8 [B, H, W, 3], got {images.dtype} {list(images.shape)}")
        gain, shift = gain_and_shift(self, images.device)
        x = images.permute(0, 3, 1, 2)
        x = x.flip(1) if self.bgr else x
        return x.to(torch.float32, memory_format=torch.contiguous_format).mul_(gain).add_(shift)


@functools.lru_cache(maxsize=64)
def gain_and_shift(preprocessing: Preprocessing, device: torch.device) -> tuple[Tensor, Tensor]:
    """The factor and the offset of pixel values in 0 … 255, float32 ``[3, 1, 1]``."""
    # Cached per device, so that a batch does not wait for a copy; so never tensors of inference mode.
    with torch.inference_mode(False):
        mean = torch.tensor(preprocessing.mean, dtype=torch.float64).view(3, 1, 1)
        std = torch.tensor(preprocessing.std, dtype=torch.float64).view(3, 1, 1)
        gain, shift = preprocessing.scale / 255.0 / std, -mean / std
        return gain.float().to(device), shift.float().to(device)


IMAGENET = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""That of torchvision and of most other networks."""

HALF = Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
"""−1 … 1."""

CAFFE_BGR = Preprocessing(mean=(104.0, 117.0, 128.0), std=(1.0, 1.0, 1.0), bgr=True, scale=255.0)
"""BN-Inception's: blue, green, red in 0 … 255, minus the mean pixel."""

NAMED: Mapping[str, Preprocessing] = {"imagenet": IMAGENET, "half": HALF, "caffe_bgr": CAFFE_BGR}


def as_preprocessing(value: object) -> Preprocessing:
    """A preprocessing from its name or its fields in a recipe.

    >>> as_preprocessing("half") is as_preprocessing(HALF) is HALF
    True
    >>> as_preprocessing({"mean": [0, 0, 0], "std": [1, 1, 1]})
    Preprocessing(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), bgr=False, scale=1.0)
    """
    if isinstance(value, Preprocessing):
        return value
    if isinstance(value, str):
        if value not in NAMED:
            raise RecipeError(f"unknown preprocessing {value!r}; {did_you_mean(value, NAMED)}")
        return NAMED[value]
    if isinstance(value, Mapping):
        fields = coerce_fields(value, Preprocessing, "encoder.options.preprocessing")
        if "mean" not in fields or "std" not in fields:
            raise RecipeError(f"preprocessing needs mean and std, got {sorted(fields)}")
        return Preprocessing(**fields)
    raise RecipeError(f"preprocessing must be a name ({', '.join(sorted(NAMED))}) or its fields, got {value!r}")
