"""Crops for training and evaluation, described completely by one record that a run stores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nearkin.data.images import resized_shape
from nearkin.errors import RecipeError, did_you_mean

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in an image, in pixels."""
Hole = tuple[int, int, int, int]
"""Top, left, height and width of the erased part of a crop."""

_TRIES = 10
_HOLE_AREA, _HOLE_SHAPE = (0.02, 0.33), (0.3, 3.3)


@dataclass(frozen=True, kw_only=True)
class Transform:
    """What happens to an image ``[H, W, 3]`` (uint8) before it becomes an encoder's input ``[size, size, 3]``.

    In evaluation the image is scaled so that its shorter side is ``resize``, or with ``squash`` to a square of that
    side, and the middle ``size`` × ``size`` is cut out. In training, by ``train_crop``:

    - ``random-resized``: a box of random position, area (share of the image in ``scale``) and shape (width : height in
      ``ratio``, logarithmically uniform), scaled to ``size``; after ten that do not fit, the largest centred one.
    - ``random``: scaled as in evaluation, then a window at a random position.
    - ``none``: the whole image, scaled to ``size`` × ``size``.

    Then it is mirrored with probability ``flip``, and with probability ``erase`` a box of 2 to 33 % of it, width :
    height from 0.3 to 3.3, is filled with the colour ``fill`` (Zhong et al., AAAI 2020). Scaling is bilinear.

    >>> transform = Transform(name="small", size=32, resize=40)
    >>> image = np.zeros((60, 80, 3), dtype=np.uint8)
    >>> transform.train(image, np.random.default_rng(0)).shape, transform.evaluate(image).shape
    ((32, 32, 3), (32, 32, 3))
    """

    name: str
    size: int = 224
    resize: int = 256
    train_crop: Literal["random-resized", "random", "none"] = "random-resized"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    squash: bool = False
    erase: float = 0.0
    fill: tuple[int, int, int] = (128, 128, 128)

    def __post_init__(self) -> None:
        for name, holds, rule in (
            ("size", self.size >= 1, "at least 1"),
            ("resize", self.resize >= self.size, f"at least size ({self.size})"),
            ("scale", 0.0 < self.scale[0] <= self.scale[1] <= 1.0, "two ascending shares above 0 and up to 1"),
        ):
            if not holds:
                raise RecipeError(f"transform option {name} must be {rule}, got {getattr(self, name)!r}")

    def train(self, image: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        """A training crop; everything random about it is drawn from ``rng``."""
        box, mirrored, hole = self.draw(*_check(image), rng)
        pixels = self._resample(image, box)
        crop = np.array(pixels.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else pixels)
        if hole is not None:
            top, left, height, width = hole
            crop[top : top + height, left : left + width] = self.fill
        return crop

    def evaluate(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The evaluation crop."""
        return np.array(self._resample(image, self.centre_box(*_check(image))))

    def draw(self, height: int, width: int, rng: np.random.Generator) -> tuple[Box, bool, Hole | None]:
        """The random choices for a training crop: its box, whether it is mirrored, and its erased part."""
        box = self._train_box(height, width, rng)
        mirrored = bool(self.flip and rng.random() < self.flip)
        if not self.erase or rng.random() >= self.erase:
            return box, mirrored, None
        return box, mirrored, random_box(self.size, self.size, rng, scale=_HOLE_AREA, ratio=_HOLE_SHAPE)

    def centre_box(self, height: int, width: int) -> Box:
        """The part of an image that its evaluation crop shows."""
        frame = self._frame(height, width)
        top, left = (round((side - self.size) / 2) for side in frame)
        return _in_image((top, left, self.size, self.size), frame, (height, width))

    def describe(self, scored: Transform | None = None) -> str:
        """One line for people; ``scored`` is the transform for evaluation, where that is another one.

        >>> PRESETS["ccp"].describe()
        'ccp: random-resized crop (area 0.16–1, ratio 0.75–1.33) to 227, flip 0.5; evaluation shorter side 256, \
centre 227; bilinear'
        """
        before, scored = self._before, scored or self
        area, ratio = (f"{least:.3g}–{most:.3g}" for least, most in (self.scale, self.ratio))
        crop = f"random-resized crop (area {area}, ratio {ratio}) to {self.size}"
        training = {
            "random-resized": f"{before}, {crop}" if self.squash else crop,
            "random": f"{before}, random crop {self.size}",
            "none": f"whole image at {self.size} x {self.size}",
        }[self.train_crop]
        training += f", flip {self.flip:.3g}" if self.flip else ""
        training += f", erasing {self.erase:.3g}" if self.erase else ""
        return f"{self.name}: {training}; evaluation {scored._before}, centre {scored.size}; bilinear"

    @property
    def _before(self) -> str:
        return f"squashed to {self.resize} x {self.resize}" if self.squash else f"shorter side {self.resize}"

    def _train_box(self, height: int, width: int, rng: np.random.Generator) -> Box:
        if self.train_crop == "none":
            return 0.0, 0.0, float(width), float(height)
        if self.train_crop == "random":
            frame = self._frame(height, width)
            top, left = (int(rng.integers(side - self.size + 1)) for side in frame)
            return _in_image((top, left, self.size, self.size), frame, (height, width))
        frame = (self.resize, self.resize) if self.squash else (height, width)
        return _in_image(random_box(*frame, rng, scale=self.scale, ratio=self.ratio), frame, (height, width))

    def _frame(self, height: int, width: int) -> tuple[int, int]:
        return (self.resize, self.resize) if self.squash else resized_shape(height, width, self.resize)

    def _resample(self, image: NDArray[np.uint8], box: Box) -> Image.Image:
        # Cropping and scaling are one operation, so that no large frame is made and pixels are rounded once.
        # Greyscale that is shown as three channels is scaled as one: the same bits in half the time.
        pixels = Image.fromarray(image[:, :, 0] if image.strides[2] == 0 else image)
        scaled = pixels.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        return scaled if scaled.mode == "RGB" else scaled.convert("RGB")


class ImageRandom:
    """Random numbers that depend only on an image's batch and its position there; for one thread."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.Philox(key=seed)
        self._unused = self._bits.state
        self._rng = np.random.Generator(self._bits)

    def at(self, batch: int, position: int) -> np.random.Generator:
        """The generator for the image at ``position`` of a batch: one object, which every call resets."""
        self._unused["state"]["counter"][:] = 0, position, batch, 0
        self._bits.state = self._unused
        return self._rng


def random_box(
    height: int, width: int, rng: np.random.Generator, *, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
    """``(top, left, height, width)`` of a random-resized crop in an image of the given size."""
    for _ in range(_TRIES):
        area = height * width * rng.uniform(*scale)
        shape = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        box_width, box_height = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < box_width <= width and 0 < box_height <= height:
            top, left = int(rng.integers(height - box_height + 1)), int(rng.integers(width - box_width + 1))
            return top, left, box_height, box_width
    box_height, box_width = height, width
    if width < ratio[0] * height:
        box_height = max(1, round(width / ratio[0]))
    elif width > ratio[1] * height:
        box_width = max(1, round(height * ratio[1]))
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def _in_image(box: tuple[int, int, int, int], frame: tuple[int, int], image: tuple[int, int]) -> Box:
    """``(top, left, height, width)`` in a frame as ``(left, top, right, bottom)`` in the image scaled to that frame."""
    top, left, height, width = box
    down, across = image[0] / frame[0], image[1] / frame[1]
    # Pillow refuses a box that rounding has pushed outside by a hair.
    right, bottom = min((left + width) * across, float(image[1])), min((top + height) * down, float(image[0]))
    return left * across, top * down, right, bottom


def _check(image: NDArray[np.uint8]) -> tuple[int, int]:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise ValueError(f"image must be uint8 [H, W, 3] and not empty, got {image.dtype} {list(image.shape)}")
    return image.shape[0], image.shape[1]


PRESETS: Mapping[str, Transform] = {
    preset.name: preset
    for preset in (
        Transform(name="standard"),
        Transform(name="mild", scale=(0.16, 1.0)),
        Transform(name="ccp", size=227, scale=(0.16, 1.0)),
        Transform(name="profs", train_crop="random", squash=True),
        Transform(name="glyphs", size=48, resize=48, scale=(0.8, 1.0), ratio=(0.9, 1.1), flip=0.0, squash=True),
        Transform(name="digits", size=28, resize=28, train_crop="none", flip=0.0, squash=True),
    )
}


def transform_from(name: str, /, **overrides: Any) -> Transform:
    """The preset called ``name``, with some of its fields changed.

    >>> transform_from("standard", flip=0.0).flip
    0.0
    """
    if name not in PRESETS:
        raise RecipeError(f"no transform {name!r}: {did_you_mean(name, PRESETS)}")
    return replace(PRESETS[name], **overrides)
