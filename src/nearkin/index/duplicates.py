"""Images of an index that are there more than once. That is two questions.

*The same picture*, stored again: encoded anew, made smaller, a little brighter. A perceptual hash of the thumbnail
answers it, and the encoder has no say. *Near* to the encoder: it sees no difference, which may be another photo of the
same thing.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nearkin.data.threads import threaded_map, usable_cores
from nearkin.errors import RecipeError
from nearkin.index.adding import Progress
from nearkin.index.index import Index
from nearkin.index.where import Where

MOST_BITS = 10
"""Of 64 bits of a perceptual hash so many may differ, in a pair that is then looked at more closely."""
LEAST_CORRELATION = 0.8
"""Of the brightness of the same picture at 32 × 32 points; both chosen on photos, docs/search.md has the figures."""
MIN_CONFIDENCE = 0.99
_SIDE = 32
_LEAST_CONTRAST = 2.0
_BANDS, _BAND_BITS = 4, 16
_PAIRS_AT_ONCE = 1 << 21
_POSITIONS = np.arange(_SIDE)
# Rows of the discrete cosine transform, and the 64 lowest frequencies but for the mean, by u + v.
_COSINES = np.cos(np.pi * np.outer(_POSITIONS, 2 * _POSITIONS + 1) / (2 * _SIDE))
_LOWEST = np.array(sorted(((u, v) for u in range(12) for v in range(12) if u + v), key=lambda at: (sum(at), at))[:64]).T
_ONES = np.array([value.bit_count() for value in range(1 << _BAND_BITS)], dtype=np.uint8)


@dataclass(frozen=True)
class Duplicates:
    """Items that belong together, those of the largest group first; an item is in one group at most."""

    question: Literal["same picture", "near"]
    groups: tuple[tuple[int, ...], ...]
    blank: tuple[int, ...] = ()
    """Items of one colour throughout, which have nothing to be told by."""


def same_picture(
    index: Index, *, most_bits: int = MOST_BITS, where: Where | None = None, progress: Progress | None = None
) -> Duplicates:
    """Groups of items that show the same picture, whatever the encoder says of them.

    Two are the same where the perceptual hashes of their thumbnails differ in at most ``most_bits`` of 64 bits, and
    their brightness, point by point, has a correlation of at least 0.8; what is the same as the same is the same. A
    mirror image is another picture.
    """
    if not 0 <= most_bits <= 16:
        raise RecipeError(f"at most 0 to 16 of 64 bits may differ, got {most_bits}")
    ids = index.ids(where)
    hashes = np.zeros(len(ids), dtype=np.uint64)
    has_one = np.zeros(len(ids), dtype=bool)
    thumbnails = (index.thumbnail(id) for id in ids.tolist())
    for place, found in enumerate(
        threaded_map(lambda each: perceptual_hash(brightness(each)), thumbnails, usable_cores())
    ):
        if found is not None:
            hashes[place], has_one[place] = found, True
        if progress is not None:
            progress(place + 1, len(ids))
    seen = ids[has_one]
    different, of = np.unique(hashes[has_one], return_inverse=True)
    first = np.zeros(len(different), dtype=np.int64)
    first[of[::-1]] = np.arange(len(of))[::-1]
    equal = np.stack([first[of], np.arange(len(of))], axis=1)
    near_enough = (first[pairs] for pairs in pairs_within(different, most_bits))
    looked_at: dict[int, NDArray[np.float32]] = {}

    def look(place: int) -> NDArray[np.float32]:
        if place not in looked_at:
            looked_at[place] = brightness(index.thumbnail(int(seen[place])))
        return looked_at[place]

    groups = _groups(seen, chain([equal], near_enough), lambda one, other: are_alike(look(one), look(other)))
    return Duplicates("same picture", groups, tuple(ids[~has_one].tolist()))


def near(
    index: Index,
    *,
    min_confidence: float | None = None,
    min_score: float | None = None,
    where: Where | None = None,
    progress: Progress | None = None,
) -> Duplicates:
    """Groups of items that are near each other to the encoder: at least so surely of one kind, or of such a score.

    Every pair that is near enough counts, and what is near to the near belongs to the group.
    """
    if min_confidence is not None and min_score is not None:
        raise RecipeError("give a least confidence or a least score, not both")
    if min_score is None and index.status().calibration is None:
        raise RecipeError(
            f"{index.path} has no confidences, as it has too few labels: give a least score (--min-score)"
        )
    ids = index.ids(where)
    place_of = {id: place for place, id in enumerate(ids.tolist())}
    sure = MIN_CONFIDENCE if min_confidence is None else min_confidence
    pairs: list[NDArray[np.int64]] = []
    for start in range(0, len(ids), 64):
        asked, k = ids[start : start + 64].tolist(), 16
        while asked:
            unfinished = []
            for id, hits in zip(asked, index.search(asked, k, where=where), strict=True):
                enough = [
                    hit
                    for hit in hits
                    if (hit.score >= min_score if min_score is not None else (hit.confidence or 0.0) >= sure)
                ]
                if len(enough) == k:
                    unfinished.append(id)
                else:
                    own = [(place_of[id], place_of[hit.id]) for hit in enough if hit.id in place_of]
                    pairs.append(np.array(own, dtype=np.int64).reshape(-1, 2))
            asked, k = unfinished, 4 * k
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
    """64 bits of what an image looks like from afar, or None where it is of one colour throughout.

    Each bit is the sign of one of the 64 lowest frequencies of its brightness (Zauner 2010): they hardly change when a
    picture is encoded anew, made smaller or brighter; half of them turn round in a mirror.
    """
    if grey.std() < _LEAST_CONTRAST:
        return None
    frequencies = _COSINES @ grey.astype(np.float64) @ _COSINES.T
    return int.from_bytes(np.packbits(frequencies[_LOWEST[0], _LOWEST[1]] > 0).tobytes(), "big")


def are_alike(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Whether the brightness of two images rises and falls together, as that of the same picture does."""
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return lengths > 0 and float(np.vdot(one, other)) >= LEAST_CORRELATION * lengths


def pairs_within(hashes: NDArray[np.uint64], most: int) -> Iterator[NDArray[np.int64]]:
    """Every pair of different hashes that at most ``most`` bits tell apart, as places ``[P, 2]``, some more than once.

    Of four bands of 16 bits, one at least differs in no more than a quarter of these bits (Norouzi et al. 2012): only
    pairs that are so near in a band are looked at.

    >>> np.concatenate(list(pairs_within(np.array([0b1, 0b111, 1 << 40], dtype=np.uint64), 2))).tolist()[0]
    [0, 1]
    """
    masks = [0]
    for ones in range(1, most // _BANDS + 1):
        masks += [sum(1 << bit for bit in bits) for bits in combinations(range(_BAND_BITS), ones)]
    for band in range(_BANDS):
        keys = ((hashes >> np.uint64(_BAND_BITS * band)) & np.uint64((1 << _BAND_BITS) - 1)).astype(np.int64)
        order = np.argsort(keys, kind="stable")
        starts = np.searchsorted(keys[order], np.arange((1 << _BAND_BITS) + 1))
        for mask in masks:
            partner = keys ^ mask
            ends = np.cumsum(starts[partner + 1] - starts[partner])
            low = 0
            while low < len(keys):
                done = int(ends[low - 1]) if low else 0
                high = max(low + 1, int(np.searchsorted(ends, done + _PAIRS_AT_ONCE, side="right")))
                counts = np.diff(ends[low:high], prepend=done)
                rows = np.repeat(np.arange(low, high), counts)
                within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
                columns = order[starts[partner[rows]] + within]
                rows, columns = rows[rows < columns], columns[rows < columns]
                near_enough = _bits_between(hashes[rows], hashes[columns]) <= most
                yield np.stack([rows[near_enough], columns[near_enough]], axis=1)
                low = high


def _bits_between(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.int64]:
    words = (first ^ second).view(np.uint16).reshape(-1, _BANDS)
    counts: NDArray[np.int64] = _ONES[words].sum(axis=1, dtype=np.int64)
    return counts


def _groups(
    ids: NDArray[np.int64],
    pairs: Iterable[NDArray[np.int64]],
    joins: Callable[[int, int], bool] = lambda one, other: True,
) -> tuple[tuple[int, ...], ...]:
    """The items that pairs of places join, those of the largest group first; single ones are left out."""
    root = list(range(len(ids)))

    def find(place: int) -> int:
        while root[place] != place:
            root[place] = root[root[place]]
            place = root[place]
        return place

    for some in pairs:
        for one, other in some.tolist():
            low, high = sorted((find(one), find(other)))
            if low != high and joins(one, other):
                root[high] = low
    members: dict[int, list[int]] = {}
    for place, id in enumerate(ids.tolist()):
        members.setdefault(find(place), []).append(id)
    groups = [tuple(group) for group in members.values() if len(group) > 1]
    return tuple(sorted(groups, key=lambda group: (-len(group), group)))
