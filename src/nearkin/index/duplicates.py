"""Images that an index holds more than once, by two questions.

*The same picture*, stored again: encoded again, made smaller, a little brighter. A perceptual hash of the thumbnail
finds it, without the encoder. *Near* to the encoder: it sees no difference, which may be another photo of the same
thing.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
import scipy.fft
from numpy.typing import NDArray
from PIL import Image
from scipy.cluster.hierarchy import DisjointSet

from nearkin.data.cache import threaded_map, usable_cores
from nearkin.errors import RecipeError
from nearkin.index.adding import Progress
from nearkin.index.index import Index
from nearkin.index.where import Where

MOST_BITS = 10
"""A pair is compared more closely where at most so many of the 64 bits of its perceptual hashes differ."""
LEAST_CORRELATION = 0.8
"""Of the brightness of the same picture at 32 × 32 points; both chosen on photos, docs/search.md has the figures."""
MIN_CONFIDENCE = 0.99
_SIDE = 32
_LEAST_CONTRAST = 2.0
_HASHES_AT_ONCE = 256
# The 64 lowest frequencies but for the mean, by u + v.
_LOWEST = np.array(sorted(((u, v) for u in range(12) for v in range(12) if u + v), key=lambda at: (sum(at), at))[:64]).T


@dataclass(frozen=True)
class Duplicates:
    """Groups of items, the largest first; an item is in one group at most."""

    question: Literal["same picture", "near"]
    groups: tuple[tuple[int, ...], ...]
    blank: tuple[int, ...] = ()
    """Items of one colour throughout, which cannot be told apart."""


def same_picture(
    index: Index, *, most_bits: int = MOST_BITS, where: Where | None = None, progress: Progress | None = None
) -> Duplicates:
    """Groups of items that show the same picture, without the encoder.

    Two items match if the perceptual hashes of their thumbnails differ in at most ``most_bits`` of 64 bits and their
    brightness, point by point, has a correlation of at least 0.8. Grouping is transitive: if A matches B and B matches
    C, all three form one group. A mirror image is another picture.
    """
    if not 0 <= most_bits <= 16:
        raise RecipeError(f"at most 0 to 16 of 64 bits may differ, got {most_bits}")
    ids = index.ids(where)
    hashes = np.zeros(len(ids), dtype=np.uint64)
    hashed = np.zeros(len(ids), dtype=bool)
    thumbnails = (index.thumbnail(id) for id in ids.tolist())
    for i, digest in enumerate(
        threaded_map(lambda image: perceptual_hash(brightness(image)), thumbnails, usable_cores())
    ):
        if digest is not None:
            hashes[i], hashed[i] = digest, True
        if progress is not None:
            progress(i + 1, len(ids))
    compared = ids[hashed]
    distinct, number = np.unique(hashes[hashed], return_inverse=True)
    first = np.zeros(len(distinct), dtype=np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    equal = np.stack([first[number], np.arange(len(number))], axis=1)
    similar = (first[pairs] for pairs in pairs_within(distinct, most_bits))
    greys: dict[int, NDArray[np.float32]] = {}

    def grey(i: int) -> NDArray[np.float32]:
        if i not in greys:
            greys[i] = brightness(index.thumbnail(int(compared[i])))
        return greys[i]

    groups = _groups(compared, chain([equal], similar), lambda one, other: are_alike(grey(one), grey(other)))
    return Duplicates("same picture", groups, tuple(ids[~hashed].tolist()))


def near(
    index: Index,
    *,
    min_confidence: float | None = None,
    min_score: float | None = None,
    where: Where | None = None,
    progress: Progress | None = None,
) -> Duplicates:
    """Groups of items that are near each other to the encoder, by a least confidence or a least score.

    Every pair that is near enough counts, and grouping is transitive.
    """
    if min_confidence is not None and min_score is not None:
        raise RecipeError("give a least confidence or a least score, not both")
    if min_score is None and index.status().calibration is None:
        raise RecipeError(
            f"{index.path} has no confidences, as it has too few labels: give a least score (--min-score)"
        )
    ids = index.ids(where)
    number_of = {id: i for i, id in enumerate(ids.tolist())}
    least = MIN_CONFIDENCE if min_confidence is None else min_confidence
    pairs: list[NDArray[np.int64]] = []
    for start in range(0, len(ids), 64):
        queries, k = ids[start : start + 64].tolist(), 16
        while queries:
            unfinished = []
            for id, hits in zip(queries, index.search(queries, k, where=where), strict=True):
                matches = [
                    hit
                    for hit in hits
                    if (hit.score >= min_score if min_score is not None else (hit.confidence or 0.0) >= least)
                ]
                if len(matches) == k:
                    unfinished.append(id)
                else:
                    found = [(number_of[id], number_of[hit.id]) for hit in matches if hit.id in number_of]
                    pairs.append(np.array(found, dtype=np.int64).reshape(-1, 2))
            queries, k = unfinished, 4 * k
        if progress is not None:
            progress(min(start + 64, len(ids)), len(ids))
    return Duplicates("near", _groups(ids, pairs))


def brightness(image: bytes) -> NDArray[np.float32]:
    """The brightness of an image file at 32 × 32 points, less its mean."""
    with Image.open(io.BytesIO(image)) as opened:
        opened.draft("L", (2 * _SIDE, 2 * _SIDE))
        small = opened.convert("L").resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
    grey = np.array(small, dtype=np.float32)
    grey -= grey.mean()
    return grey


def perceptual_hash(grey: NDArray[np.float32]) -> int | None:
    """64 bits of an image's coarse appearance, or None where it is of one colour throughout.

    Each bit is the sign of one of the 64 lowest frequencies of its brightness (Zauner 2010). They hardly change when a
    picture is encoded again, made smaller or brighter; half of them change their sign in a mirror image.
    """
    if grey.std() < _LEAST_CONTRAST:
        return None
    frequencies = scipy.fft.dctn(grey.astype(np.float64))
    return int.from_bytes(np.packbits(frequencies[_LOWEST[0], _LOWEST[1]] > 0).tobytes(), "big")


def are_alike(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Whether the brightness of two images is correlated as that of the same picture is."""
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return lengths > 0 and float(np.vdot(one, other)) >= LEAST_CORRELATION * lengths


def pairs_within(hashes: NDArray[np.uint64], most: int) -> Iterator[NDArray[np.int64]]:
    """Every pair ``[P, 2]`` of hashes that differ in at most ``most`` bits, in parts.

    >>> np.concatenate(list(pairs_within(np.array([0b1, 0b111, 1 << 40], dtype=np.uint64), 2))).tolist()
    [[0, 1], [0, 2]]
    """
    # With bits as −1 and 1, the product of two hashes is 64 less twice the number of bits that differ.
    signs = np.unpackbits(hashes.view(np.uint8).reshape(-1, 8), axis=1).astype(np.float32) * 2 - 1
    for start in range(0, len(hashes), _HASHES_AT_ONCE):
        products = signs[start : start + _HASHES_AT_ONCE] @ signs[start:].T
        pairs = np.argwhere(np.triu(products >= 64 - 2 * most, k=1))
        yield pairs + start


def _groups(
    ids: NDArray[np.int64],
    pairs: Iterable[NDArray[np.int64]],
    matches: Callable[[int, int], bool] = lambda one, other: True,
) -> tuple[tuple[int, ...], ...]:
    """The items that matching pairs join, the largest group first; single items are left out."""
    sets = DisjointSet(range(len(ids)))
    for some in pairs:
        for one, other in some.tolist():
            if not sets.connected(one, other) and matches(one, other):
                sets.merge(one, other)
    groups = [tuple(sorted(ids[list(members)].tolist())) for members in sets.subsets() if len(members) > 1]
    return tuple(sorted(groups, key=lambda group: (-len(group), group)))
