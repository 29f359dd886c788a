"""From a query (an image, an id or a vector) to hits and labels."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nearkin.data.image_inputs import ImageInputs, Tensor
from nearkin.data.images import crop_shares
from nearkin.errors import RecipeError
from nearkin.evaluation.confidence import MOST_MEMBERS, VOTERS, ClassProfile, Confidence, vote
from nearkin.evaluation.neighbours import Distance, Floats, Ints, Singles, unit_rows
from nearkin.index.engine import Engine, nearest
from nearkin.index.filters import Where
from nearkin.index.fingerprint import MOST_BITS, are_copies
from nearkin.index.items import Items
from nearkin.index.segments import Segments
from nearkin.runs.model import Model

SHOWN = 10
"""Hits returned with a label."""

OneQuery: TypeAlias = "int | np.integer[Any] | str | os.PathLike[str] | bytes | Image.Image"
"""The id of an item, or an image."""
Queries: TypeAlias = "list[Any] | tuple[Any, ...] | NDArray[Any] | Tensor"
"""Several queries; the shape of an array tells whether it is one or several."""
COPIES = 16
"""Extra hits that are ranked where copies are collapsed; the ranking deepens to at most this many times the hits."""
LEAST_SIDE = 8
"""The least side in pixels of an image to search for, or of its crop."""
UNLIKE_WEIGHT = 0.5
_ROUNDING = 1e-3
"""How far a crop may reach beyond the image, as its numbers may have been rounded."""


class SearchOptions(TypedDict, total=False):
    """The options of :meth:`Index.search <nearkin.Index.search>`."""

    where: Where | None
    like: Sequence[int]
    unlike: Sequence[int]
    group_by: str | None
    min_confidence: float | None
    offset: int
    crop: Sequence[float] | None
    collapse: bool


@dataclass(frozen=True)
class Hit:
    """An item that a search found."""

    id: int
    score: float
    """The cosine, or minus the distance where the encoder's vectors are compared by distance."""
    confidence: float | None
    """The probability that it is of the query's class; None where it could not be learned."""
    label: str | None
    path: str | None
    columns: Mapping[str, Any] = field(default_factory=dict)
    copies: int = 1
    """How many items show this photo, if copies are collapsed into one hit."""
    copy_ids: Sequence[int] = ()
    """The items left out as copies of this one."""


@dataclass(frozen=True)
class Classified:
    """The label of a query, or None for "none of these", and its nearest hits."""

    label: str | None
    confidence: float | None
    """The probability that the nearest class is right; None where it could not be learned."""
    hits: tuple[Hit, ...]


def are_several(query: Any) -> bool:
    """Whether a query is a list, rows of vectors or a batch of images.

    >>> [are_several(one) for one in ("a.jpg", ["a.jpg"], np.zeros(8), np.zeros((2, 8)), np.zeros((9, 8), np.uint8))]
    [False, True, False, True, False]
    """
    if isinstance(query, (list, tuple)):
        return True
    dimensions = getattr(query, "ndim", 0)
    return (dimensions == 4 and isinstance(query, (np.ndarray, Tensor))) or (dimensions == 2 and is_vectors(query))


def query_vectors(
    query: Any,
    dim: int,
    model: Callable[[], Model],
    stored: Callable[[Sequence[int]], Singles],
    crop: Sequence[float] | None = None,
) -> tuple[Floats | None, list[set[int]]]:
    """The vectors ``[Q, dim]`` of queries, None without a query, and for each the ids that it consists of."""
    if query is None:
        if crop is not None:
            raise RecipeError("crop is a part of an image: give the image to search for")
        return None, [set()]
    queries = list(query) if are_several(query) else [query]
    vectors = np.empty((len(queries), dim), dtype=np.float64)
    ids: list[set[int]] = [set() for _ in queries]
    images: dict[int, Any] = {}
    for i, one in enumerate(queries):
        if is_id(one):
            ids[i] = {int(one)}
            vectors[i] = stored([int(one)])[0]
        elif is_vectors(one):
            vector = np.asarray(one.detach().cpu() if isinstance(one, Tensor) else one, dtype=np.float64).reshape(-1)
            if vector.shape != (dim,) or not np.isfinite(vector).all():
                raise RecipeError(f"a vector to search for must have {dim} finite numbers, got {list(np.shape(one))}")
            vectors[i] = vector
        else:
            images[i] = one
    if crop is not None:
        if len(images) < len(queries):
            raise RecipeError("crop is a part of an image: an id or a vector has no parts, give the image itself")
        images = {i: cropped(image, crop) for i, image in images.items()}
    if images:
        encoder = model()
        inputs = ImageInputs(list(images.values()), shorter_side=encoder.shorter_side, least_side=LEAST_SIDE)
        vectors[list(images)] = encoder.encode(inputs)
    return vectors, ids


def cropped(image: Any, crop: Sequence[float]) -> NDArray[np.uint8]:
    """The part of an upright image at ``x, y, width, height``, as shares of its width and height.

    >>> cropped(np.arange(24, dtype=np.uint8).reshape(4, 6), [0.5, 0.25, 0.5, 0.5])[:, :, 0].tolist()
    [[9, 10, 11], [15, 16, 17]]
    """
    check_crop(crop)
    return crop_shares(ImageInputs([image], shorter_side=None)[0], [float(number) for number in crop])


def check_crop(crop: Sequence[float]) -> None:
    """Refuse a crop that is not four numbers, or reaches beyond the image by more than rounding."""
    numbers = [float(number) for number in crop]
    if len(numbers) != 4 or not np.isfinite(numbers).all():
        raise RecipeError(f"crop must be four numbers, x, y, width and height, got {list(crop)}")
    x, y, width, height = numbers
    if min(x, y) < 0 or min(width, height) <= 0 or max(x + width, y + height) > 1 + _ROUNDING:
        ends = f"x {x:g} to {x + width:g}, y {y:g} to {y + height:g}"
        raise RecipeError(f"crop must lie within the image, as shares of it from 0 to 1, got {ends}")


def combined(vectors: Floats | None, like: Singles | None, unlike: Singles | None, distance: str) -> Floats:
    """The mean of a query and its positive examples, minus half the mean of the negative ones (Rocchio 1971).

    >>> combined(np.array([[2.0, 0.0]]), None, None, "cosine")
    array([[1., 0.]])
    """
    if vectors is None and like is None:
        raise RecipeError("give an image, an id or a vector to search for, or ids in like")
    rows = np.zeros((1, like.shape[1])) if vectors is None and like is not None else np.array(vectors, dtype=np.float64)
    if distance == "cosine":
        rows = unit_rows(rows)
    if like is not None:
        queries = 0 if vectors is None else 1
        rows = (queries * rows + like.astype(np.float64).sum(axis=0)) / (queries + len(like))
    if unlike is not None:
        rows = rows - UNLIKE_WEIGHT * unlike.astype(np.float64).mean(axis=0)
    return unit_rows(rows) if distance == "cosine" else rows


def is_id(query: Any) -> bool:
    return isinstance(query, (int, np.integer)) and not isinstance(query, bool)


def is_vectors(query: Any) -> bool:
    """Whether it is an array of vectors: floating point numbers, which pixels are not."""
    if getattr(query, "ndim", 0) not in (1, 2):
        return False
    if isinstance(query, Tensor):
        return query.is_floating_point()
    return isinstance(query, np.ndarray) and query.dtype.kind == "f"


@dataclass(frozen=True)
class SearchContext:
    """What is searched: vectors, their engine and items, and what their scores mean."""

    vectors: Segments
    engine: Engine
    items: Items
    confidence: Confidence | None
    distance: Distance
    allowed: Ints | None
    """The rows to search among, ascending; None for all."""

    def hits(
        self,
        queries: Floats,
        excluded: Sequence[set[int]],
        wanted: int,
        group_by: str | None = None,
        collapse: bool = False,
    ) -> Iterator[list[Hit]]:
        """For each query ``[Q, dim]`` at least ``wanted`` hits, or all there are, without the ``excluded`` items.

        With ``group_by`` hits have different values of that field. With ``collapse`` they are different photos; there
        may be fewer than wanted if nearly all are copies.
        """
        available = self.vectors.rows if self.allowed is None else len(self.allowed)
        if not available:
            yield from ([] for _ in queries)
            return
        shown = wanted + (COPIES if collapse else 0)
        depth = max(shown, 1 if self.confidence is None else VOTERS) + max(map(len, excluded), default=0)
        rank = functools.partial(nearest, self.engine, self.vectors, self.distance, allowed=self.allowed)
        for query, without, (rows, scores) in zip(queries, excluded, rank(queries, k=depth), strict=True):
            hits, deep = self._as_hits(rows, scores, without, group_by, collapse), depth
            deepest = available if group_by is not None else min(available, COPIES * wanted) if collapse else depth
            while deep < deepest and len(hits) < wanted:
                deep *= 4
                ((rows, scores),) = rank(query[None], k=deep)
                hits = self._as_hits(rows, scores, without, group_by, collapse)
            yield hits

    def _as_hits(
        self, rows: Ints, scores: Floats, excluded: set[int], group_by: str | None, collapse: bool
    ) -> list[Hit]:
        """Hits for rows and their scores, without excluded items and those that have just been removed."""
        items = self.items.get(set(rows.tolist()) - excluded)
        scored = [(items[id], score) for id, score in zip(rows.tolist(), scores.tolist(), strict=True) if id in items]
        confidences: list[float | None] = [None] * len(scored)
        labelled = [(item.label, score) for item, score in scored if item.label is not None][:VOTERS]
        if self.confidence is not None and labelled:
            labels, label_scores = (np.array(column) for column in zip(*labelled, strict=True))
            scores = np.array([score for _, score in scored])
            confidences = self.confidence.of_hits(scores, labels, label_scores).tolist()
        hits = [
            Hit(item.id, score, confidence, item.label, item.path, item.columns)
            for (item, score), confidence in zip(scored, confidences, strict=True)
        ]
        if collapse:
            hits = self._without_copies(hits)
        if group_by is None:
            return hits
        first: dict[Any, Hit] = {}
        for hit in hits:
            first.setdefault(hit.columns[group_by] if group_by in hit.columns else getattr(hit, group_by), hit)
        return list(first.values())

    def _without_copies(self, hits: Sequence[Hit]) -> list[Hit]:
        """The nearest hit of each photo, with the number of its copies.

        Copies with different labels stay separate, as a person has to decide which label is right.
        """
        hash_of = self.items.fingerprints([hit.id for hit in hits])

        def show_one_photo(one: Hit, other: Hit) -> bool:
            if one.label != other.label or not hash_of.keys() >= {one.id, other.id}:
                return False
            if (hash_of[one.id] ^ hash_of[other.id]).bit_count() > MOST_BITS:
                return False
            images = [image for hit in (one, other) if (image := self.items.thumbnail(hit.id)) is not None]
            return len(images) == 2 and are_copies(*images)

        kept: list[Hit] = []
        for hit in hits:
            for i, nearer in enumerate(kept):
                if show_one_photo(nearer, hit):
                    kept[i] = replace(nearer, copies=nearer.copies + 1, copy_ids=(*nearer.copy_ids, hit.id))
                    break
            else:
                kept.append(hit)
        return kept

    def classified(
        self, query: Floats, hits: Sequence[Hit], profiles: dict[str, ClassProfile], min_confidence: float
    ) -> Classified:
        """The label of a query by its hits; missing classes are added to ``profiles``."""
        for label in {str(hit.label) for hit in hits} - profiles.keys():
            members = self.items.rows("SELECT id FROM items WHERE label = ? ORDER BY id LIMIT ?", [label, MOST_MEMBERS])
            ids = np.array(members, dtype=np.int64).reshape(-1)
            if len(ids := ids[ids < self.vectors.rows]):  # another process may have added or removed some
                profiles[label] = ClassProfile.of(self.vectors.take(ids), self.distance)
        hits = [hit for hit in hits if hit.label in profiles]
        if not hits:
            return Classified(None, None, ())
        labels, scores = np.array([hit.label for hit in hits]), np.array([hit.score for hit in hits])
        typical_spread = 0.0 if self.confidence is None else self.confidence.typical_spread
        winner = vote(query, labels, scores, profiles, self.distance, typical_spread)
        if self.confidence is None:
            return Classified(winner.label, None, tuple(hits[:SHOWN]))
        confidence = self.confidence.of_label(winner)
        return Classified(winner.label if confidence >= min_confidence else None, confidence, tuple(hits[:SHOWN]))
