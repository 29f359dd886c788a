"""Pictures that occur more than once in a data set: the same file, or the same photo saved anew or at another size.

Every image is shrunk to a small grey thumbnail. Two are the same picture if their difference hashes (which of two
neighbouring cells is brighter, 64 bits) are within 10 bits and their thumbnails correlate by 0.97 or more. Of the 69
million pairs of CUB's 11,788 photos these are nine, each the same photo twice, and the next pair correlates by 0.90; of
photos saved at JPEG quality 30, or at a third of their size, 99 in a hundred are found. Crops are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nearkin.data.cache import Images

MOST_BITS = 10
LEAST_CORRELATION = 0.97
MOST_IMAGES = 100_000
"""Above this many, images are not compared: all with all would take minutes."""
MOST_PAIRS = 500_000
"""Pairs with similar hashes that are looked at before the search gives up."""

# Nine columns of cells give eight differences in each of eight rows; a cell is 4 by 4 pixels.
_HEIGHT, _WIDTH, _CELL = 32, 36, 4
_ROWS, _COLUMNS = 512, 2048
_MIXED = -1


@dataclass(frozen=True)
class Duplicates:
    """``groups`` of rows that show the same picture, each ascending; ``complete`` unless the search gave up."""

    groups: tuple[tuple[int, ...], ...]
    complete: bool = True


def find_duplicates(images: Images, apart: NDArray[np.int64]) -> Duplicates:
    """Rows that show the same picture: identical ones anywhere, nearly identical ones where ``apart`` differs.

    ``apart`` numbers what a picture should not occur in twice, such as classes. Within one of them photos may well look
    nearly the same, as those of a burst do.

    >>> pixels = np.random.default_rng(0).integers(0, 256, (4, 40, 40, 3), dtype=np.uint8)
    >>> pixels[3] = pixels[0] // 2
    >>> find_duplicates(pixels, np.array([0, 0, 1, 1])).groups
    ((0, 3),)
    """
    thumbnails = np.empty((len(images), _HEIGHT, _WIDTH), dtype=np.uint8)
    for row in range(len(images)):
        thumbnails[row] = _thumbnail(images[row])
    first: dict[bytes, int] = {}
    same = np.array([first.setdefault(each.tobytes(), row) for row, each in enumerate(thumbnails)], dtype=np.int64)
    leaders = np.unique(same)
    where = apart.copy()
    where[same[apart != apart[same]]] = _MIXED
    thumbnails, where = thumbnails[leaders], where[leaders]
    hashes = _difference_hashes(thumbnails)
    joined = np.arange(len(leaders))
    seen = 0
    complete = True
    for one, other in _similar_hashes(hashes):
        seen += len(one)
        if seen > MOST_PAIRS:
            complete = False
            break
        elsewhere = (where[one] != where[other]) | (where[one] == _MIXED) | (where[other] == _MIXED)
        for left, right in zip(one[elsewhere].tolist(), other[elsewhere].tolist(), strict=True):
            if _correlation(thumbnails[left], thumbnails[right]) >= LEAST_CORRELATION:
                _join(joined, left, right)
    group_of = np.array([_root(joined, place) for place in np.searchsorted(leaders, same).tolist()], dtype=np.int64)
    order = np.argsort(group_of, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(group_of[order])) + 1)
    groups = sorted(tuple(each.tolist()) for each in members if len(each) > 1)
    return Duplicates(tuple(groups), complete)


def _thumbnail(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    grey = Image.fromarray(np.ascontiguousarray(image)).convert("L")
    return np.asarray(grey.resize((_WIDTH, _HEIGHT), Image.Resampling.BOX))


def _difference_hashes(thumbnails: NDArray[np.uint8]) -> NDArray[np.uint64]:
    rows, columns = _HEIGHT // _CELL, _WIDTH // _CELL
    cells = thumbnails.reshape(-1, rows, _CELL, columns, _CELL).sum(axis=(2, 4), dtype=np.int32)
    brighter = (cells[:, :, 1:] > cells[:, :, :-1]).reshape(len(cells), rows * (columns - 1))
    return np.packbits(brighter, axis=1).view(np.uint64)[:, 0]


def _similar_hashes(hashes: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Places of hashes that differ in at most ``MOST_BITS``, each pair once, in tiles that stay in a core's cache."""
    for top in range(0, len(hashes), _ROWS):
        rows = hashes[top : top + _ROWS, None]
        for left in range(top, len(hashes), _COLUMNS):
            one, other = np.nonzero(_bit_count(rows ^ hashes[None, left : left + _COLUMNS]) <= MOST_BITS)
            one, other = one + top, other + left
            yield one[one < other], other[one < other]


def _bit_count(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    if hasattr(np, "bitwise_count"):
        counts: NDArray[np.uint8] = np.bitwise_count(words)
    else:  # numpy before 2.0
        counts = np.unpackbits(words[..., None].view(np.uint8), axis=-1).sum(axis=-1, dtype=np.uint8)
    return counts


def _correlation(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """Of a flat image with anything else the correlation is 0."""
    a, b = one - one.mean(dtype=np.float32), other - other.mean(dtype=np.float32)
    return float((a * b).sum() / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-6))


def _root(joined: NDArray[np.int64], place: int) -> int:
    while joined[place] != place:
        joined[place] = joined[joined[place]]
        place = int(joined[place])
    return place


def _join(joined: NDArray[np.int64], one: int, other: int) -> None:
    low, high = sorted((_root(joined, one), _root(joined, other)))
    joined[high] = low
