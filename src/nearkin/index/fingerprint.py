"""Whether two images are copies of one photo: a perceptual hash proposes pairs, and their brightness decides."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import scipy.fft
from numpy.typing import NDArray
from PIL import Image

MOST_BITS = 10
"""A pair is compared more closely if at most this many of the 64 bits of its hashes differ."""
LEAST_CORRELATION = 0.8
"""The least correlation of brightness at 32 × 32 points; like the bits chosen on photos (docs/search.md)."""
COPY_CORRELATION = 0.95
MOST_COLOUR = 10.0
"""Copies that a search shows as one: the least correlation of brightness, the largest mean difference of colours."""
SIDE = 32
"""Images are compared at 32 × 32 points; smaller ones are not compared."""
_LEAST_CONTRAST = 2.0
_HASHES_AT_ONCE = 256
# The 64 lowest frequencies but for the mean, by u + v.
_LOWEST = np.array(sorted(((u, v) for u in range(12) for v in range(12) if u + v), key=lambda at: (sum(at), at))[:64]).T


def brightness(image: bytes) -> NDArray[np.float32]:
    """The brightness of an image file at 32 × 32 points, less its mean."""
    with Image.open(io.BytesIO(image)) as opened:
        opened.draft("L", (2 * SIDE, 2 * SIDE))
        small = opened.convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    grey = np.array(small, dtype=np.float32)
    grey -= grey.mean()
    return grey


def perceptual_hash(grey: NDArray[np.float32]) -> int | None:
    """64 bits of an image's coarse appearance, or None if it is uniform.

    Each bit is the sign of one of the 64 lowest frequencies of its brightness (Zauner 2010), which hardly change if the
    image is encoded again, made smaller or brighter.
    """
    if grey.std() < _LEAST_CONTRAST:
        return None
    frequencies = scipy.fft.dctn(grey.astype(np.float64))
    return int.from_bytes(np.packbits(frequencies[_LOWEST[0], _LOWEST[1]] > 0).tobytes(), "big")


def are_alike(one: NDArray[np.float32], other: NDArray[np.float32], least: float = LEAST_CORRELATION) -> bool:
    """Whether the brightness of two images correlates by at least ``least``."""
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return lengths > 0 and float(np.vdot(one, other)) >= least * lengths


def are_copies(one: bytes, other: bytes) -> bool:
    """Whether two image files show one photo: their brightness correlates, and their colours differ little."""
    if not are_alike(brightness(one), brightness(other), COPY_CORRELATION):
        return False
    colours = []
    for image in (one, other):
        with Image.open(io.BytesIO(image)) as opened:
            small = opened.convert("YCbCr").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        colours.append(np.array(small, dtype=np.float32)[:, :, 1:])
    return float(np.abs(colours[0] - colours[1]).mean()) <= MOST_COLOUR


def pairs_within(hashes: NDArray[np.uint64], most: int) -> Iterator[NDArray[np.int64]]:
    """All pairs ``[P, 2]`` of hashes that differ in at most ``most`` bits, block by block.

    >>> np.concatenate(list(pairs_within(np.array([0b1, 0b111, 1 << 40], dtype=np.uint64), 2))).tolist()
    [[0, 1], [0, 2]]
    """
    # With bits as −1 and 1, the product of two hashes is 64 minus twice the number of differing bits.
    signs = np.unpackbits(hashes.view(np.uint8).reshape(-1, 8), axis=1).astype(np.float32) * 2 - 1
    for start in range(0, len(hashes), _HASHES_AT_ONCE):
        products = signs[start : start + _HASHES_AT_ONCE] @ signs[start:].T
        yield np.argwhere(np.triu(products >= 64 - 2 * most, k=1)) + start
