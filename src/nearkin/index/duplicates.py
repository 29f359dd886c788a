"""Images that an index holds more than once: copies of one picture, or images that the encoder finds near."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
from scipy.cluster.hierarchy import DisjointSet

from nearkin.errors import RecipeError
from nearkin.evaluation.neighbours import Singles
from nearkin.index.adding import Progress
from nearkin.index.filters import Where
from nearkin.index.fingerprint import MOST_BITS, are_alike, brightness, pairs_within
from nearkin.index.index import Index

MIN_CONFIDENCE = 0.99


@dataclass(frozen=True)
class Duplicates:
    """Groups of items, the largest first; an item is in at most one group."""

    question: Literal["same picture", "near"]
    groups: tuple[tuple[int, ...], ...]
    blank: tuple[int, ...] = ()
    """Items that cannot be compared: uniform, or smaller than 32 pixels."""


def same_picture(index: Index, *, most_bits: int = MOST_BITS, where: Where | None = None) -> Duplicates:
    """Groups of items that show the same picture, found without the encoder; a mirror image is another picture.

    Two items match if the perceptual hashes of their thumbnails differ in at most ``most_bits`` of 64 bits and their
    brightness, point by point, has a correlation of at least 0.8. Grouping is transitive.
    """
    if not 0 <= most_bits <= 16:
        raise RecipeError(f"at most 0 to 16 of 64 bits may differ, got {most_bits}")
    ids = index.ids(where)
    hash_of = index._items.fingerprints(ids)
    compared = np.array([id for id in ids.tolist() if id in hash_of], dtype=np.int64)
    hashes = np.array([hash_of[id] for id in compared.tolist()], dtype=np.uint64)
    distinct, first, number = np.unique(hashes, return_index=True, return_inverse=True)
    equal = np.stack([first[number], np.arange(len(number))], axis=1)
    similar = (first[pairs] for pairs in pairs_within(distinct, most_bits))

    @functools.cache
    def grey(id: int) -> Singles:
        return brightness(index.thumbnail(id))

    sets = DisjointSet(compared.tolist())
    for pairs in chain([equal], similar):
        for one, other in compared[pairs].tolist():
            if not sets.connected(one, other) and are_alike(grey(one), grey(other)):
                sets.merge(one, other)
    return Duplicates("same picture", _groups(sets), tuple(np.setdiff1d(ids, compared).tolist()))


def near(
    index: Index,
    *,
    min_confidence: float | None = None,
    min_score: float | None = None,
    where: Where | None = None,
    progress: Progress | None = None,
) -> Duplicates:
    """Groups of items that the encoder finds near, by a least confidence or score; grouping is transitive."""
    if min_confidence is not None and min_score is not None:
        raise RecipeError("give a least confidence or a least score, not both")
    if min_score is None and (reason := index.status().no_confidence):
        raise RecipeError(f"{index.path} has no confidences ({reason}): give a least score (--min-score)")
    ids = index.ids(where).tolist()
    least = next(value for value in (min_score, min_confidence, MIN_CONFIDENCE) if value is not None)
    sets = DisjointSet(ids)
    for start in range(0, len(ids), 64):
        queries, k = ids[start : start + 64], 16
        while queries:
            unfinished = []
            for id, hits in zip(queries, index.search(queries, k, where=where), strict=True):
                nearness = [hit.score if min_score is not None else hit.confidence or 0.0 for hit in hits]
                matches = [hit.id for hit, value in zip(hits, nearness, strict=True) if value >= least]
                for match in matches:
                    if match in sets:  # else it has just been added
                        sets.merge(id, match)
                if len(matches) == k:
                    unfinished.append(id)
            queries, k = unfinished, 4 * k
        if progress is not None:
            progress(min(start + 64, len(ids)), len(ids))
    return Duplicates("near", _groups(sets))


def _groups(sets: DisjointSet) -> tuple[tuple[int, ...], ...]:
    """The sets of two or more items, the largest first."""
    groups = [tuple(sorted(members)) for members in sets.subsets() if len(members) > 1]
    return tuple(sorted(groups, key=lambda group: (-len(group), group)))
