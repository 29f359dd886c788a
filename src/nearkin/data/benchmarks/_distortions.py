"""What happens to a clean glyph before it becomes an image of the Glyphs benchmark."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageFilter

# The most that happens at strength 1. Lengths are shares of the image's side; the stroke's is a share of the em.
ROTATION = math.radians(10)
SHEAR = 0.1
LOG_STRETCH = 0.1
LOG_ZOOM = 0.1
SHIFT = 0.17
STROKE = 0.025
PATCH = 0.16
PATCH_REACH = 0.25
BLUR = 0.015
NOISE = 0.2

EM_SHARE = 0.75
WIDEST_SHARE = 0.9
OVERSAMPLING = 2
CONTRAST = 4


def drawing_size(size: int) -> int:
    """The font size, in pixels per em, at which a glyph for an image of the given ``size`` is drawn."""
    return round(OVERSAMPLING * EM_SHARE * size)


def distort(glyph: Image.Image, *, size: int, strength: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """An image ``[size, size]`` from a ``glyph`` (light on dark, cropped to its ink) drawn at :func:`drawing_size`.

    In this order: thicker strokes, an affine map, a grey patch that hides a part, blur, noise. With ``strength`` 0 the
    glyph is only put in the middle.

    >>> bar = Image.new("L", (10, 60), 255)
    >>> image = distort(bar, size=48, strength=0.0, rng=np.random.default_rng(0))
    >>> image.shape, int(image[24, 24]), int(image[0, 0])
    ((48, 48), 255, 0)
    """
    angle, shear, stretch, zoom, right, down = rng.uniform(-strength, strength, size=6).tolist()
    stroke, across, along, grey, blur, noise = rng.uniform(0.0, 1.0, size=6).tolist()
    grain = rng.standard_normal((size, size), dtype=np.float32)

    thick = _thicken(glyph, radius=STROKE * drawing_size(size), amount=stroke * strength)
    fit = min(1.0, WIDEST_SHARE * size * OVERSAMPLING / max(glyph.size))
    matrix = fit * _linear_map(angle * ROTATION, shear * SHEAR, stretch * LOG_STRETCH, zoom * LOG_ZOOM)
    image = _place(thick, matrix, shift=(right * SHIFT * size, down * SHIFT * size), size=size)

    side = round(PATCH * strength * size)
    corner = tuple(round((0.5 + (2.0 * place - 1.0) * PATCH_REACH) * size - side / 2) for place in (across, along))
    image.paste(round(255 * grey), (*corner, corner[0] + side, corner[1] + side))
    image = image.filter(ImageFilter.GaussianBlur(blur * strength * BLUR * size))
    noisy = np.asarray(image, dtype=np.float32) + grain * (255.0 * NOISE * strength * noise)
    pixels: NDArray[np.uint8] = np.rint(noisy).clip(0, 255).astype(np.uint8)
    return pixels


def _thicken(glyph: Image.Image, *, radius: float, amount: float) -> Image.Image:
    """The glyph, in a margin, under its own blur raised to full contrast: ``amount`` 0 leaves it alone, 1 adds most.

    Strokes never become thinner, as the finest of the light faces would vanish.
    """
    margin = math.ceil(3 * radius) + 1
    padded = Image.new("L", (glyph.width + 2 * margin, glyph.height + 2 * margin))
    padded.paste(glyph, (margin, margin))
    if amount == 0.0:
        return padded
    blurred = padded.filter(ImageFilter.GaussianBlur(radius))
    cut = Image.new("L", padded.size, round(255 * (1.0 - 0.75 * amount)))
    return ImageChops.lighter(padded, ImageChops.subtract(blurred, cut, scale=1 / CONTRAST, offset=127))


def _linear_map(angle: float, shear: float, stretch: float, zoom: float) -> NDArray[np.float64]:
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    slant = np.array([[1.0, shear], [0.0, 1.0]])
    scale = np.diag([math.exp(zoom + stretch), math.exp(zoom - stretch)])
    return np.asarray(rotation @ slant @ scale)


def _place(glyph: Image.Image, matrix: NDArray[np.float64], *, shift: tuple[float, float], size: int) -> Image.Image:
    """``glyph`` mapped by ``matrix`` about its middle, which lands ``shift`` pixels off the middle of the image."""
    side = size * OVERSAMPLING
    inverse = np.linalg.inv(matrix)
    landing = side / 2 + np.array(shift) * OVERSAMPLING
    origin = np.array([glyph.width / 2, glyph.height / 2]) - inverse @ landing
    affine = np.column_stack([inverse, origin]).ravel().tolist()
    return glyph.transform((side, side), Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR).reduce(OVERSAMPLING)
