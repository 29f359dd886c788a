"""What a search is asked with, as vectors, and the exact ranking of what an engine proposes for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nearkin.data.image_inputs import ImageInputs, Tensor
from nearkin.errors import RecipeError
from nearkin.index.engine import Engine
from nearkin.index.segments import Segments
from nearkin.runs.model import Model

OneQuery: TypeAlias = "int | np.integer[Any] | str | os.PathLike[str] | bytes | Image.Image"
"""The id of an item, or an image."""
Queries: TypeAlias = "list[Any] | tuple[Any, ...]"
Arrays: TypeAlias = "NDArray[Any] | Tensor"
"""Whether it is one query or several is in its shape."""

UNLIKE = 0.5
"""How much an item that is not wanted counts beside those that are."""
_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class Asked:
    """Vectors of queries ``[Q, dim]``, None where only examples are given, and the items that each is itself."""

    vectors: NDArray[np.float64] | None
    ids: list[set[int]]
    is_one: bool


def are_several(query: Any) -> bool:
    """Whether it is a list, rows of vectors or several images of one size.

    >>> [are_several(each) for each in ("a.jpg", ["a.jpg"], np.zeros(8), np.zeros((2, 8)), np.zeros((9, 8), np.uint8))]
    [False, True, False, True, False]
    """
    if isinstance(query, (list, tuple)):
        return True
    return _is_array(query) and (query.ndim == 4 or (_is_vectors(query) and query.ndim == 2))


def query_vectors(
    query: Any,
    dim: int,
    model: Callable[[], Model],
    stored: Callable[[Sequence[int]], NDArray[np.float32]],
    crop: Sequence[float] | None = None,
) -> Asked:
    """An id, a vector, an image or a part of it, or several of them in a list or an array."""
    if query is None:
        if crop is not None:
            raise RecipeError("crop is a part of an image: give the image to search for")
        return Asked(None, [set()], True)
    several = are_several(query)
    given = list(query) if several else [query]
    found = np.empty((len(given), dim), dtype=np.float64)
    ids: list[set[int]] = [set() for _ in given]
    images: dict[int, Any] = {}
    for place, one in enumerate(given):
        if isinstance(one, (int, np.integer)) and not isinstance(one, bool):
            ids[place] = {int(one)}
            found[place] = stored([int(one)])[0]
        elif _is_array(one) and _is_vectors(one):
            found[place] = _checked(one, dim)
        else:
            images[place] = one
    if crop is not None:
        if len(images) < len(given):
            raise RecipeError("crop is a part of an image: an id or a vector has no parts, give the image itself")
        images = {place: cropped(one, crop) for place, one in images.items()}
    if images:
        found[list(images)] = model().encode(list(images.values()))
    return Asked(found, ids, not several)


def cropped(image: Any, crop: Sequence[float]) -> NDArray[np.uint8]:
    """The part of an image, upright, that lies at ``x, y, width, height``, in shares of its width and height.

    >>> cropped(np.arange(24, dtype=np.uint8).reshape(4, 6), [0.5, 0.25, 0.5, 0.5])[:, :, 0].tolist()
    [[9, 10, 11], [15, 16, 17]]
    """
    numbers = [float(each) for each in crop]
    if len(numbers) != 4 or not np.isfinite(numbers).all():
        raise RecipeError(f"crop must be four numbers, x, y, width and height, got {list(crop)}")
    x, y, width, height = numbers
    if min(x, y) < 0 or min(width, height) <= 0 or max(x + width, y + height) > 1 + 1e-6:
        raise RecipeError(
            f"crop must lie within the image, as shares of it from 0 to 1: x {x:g} to {x + width:g}, "
            f"y {y:g} to {y + height:g} does not"
        )
    pixels = ImageInputs([image], shorter_side=None)[0]
    rows, columns = (
        _span(at, size, there) for at, size, there in zip((y, x), (height, width), pixels.shape[:2], strict=True)
    )
    return pixels[rows, columns]


def _span(at: float, size: float, there: int) -> slice:
    """From a share to a share of so many pixels, one at least."""
    first = min(round(at * there), there - 1)
    return slice(first, max(first + 1, round((at + size) * there)))


def combined(
    vectors: NDArray[np.float64] | None,
    like: NDArray[np.float32] | None,
    unlike: NDArray[np.float32] | None,
    distance: str,
) -> NDArray[np.float64]:
    """The mean of a query and what it should be like, less half the mean of what it should not be like (Rocchio 1971).

    >>> combined(np.array([[2.0, 0.0]]), None, None, "cosine")
    array([[1., 0.]])
    """
    if vectors is None and like is None:
        raise RecipeError("give an image, an id or a vector to search for, or ids in like")
    rows = np.zeros((1, like.shape[1])) if vectors is None and like is not None else np.array(vectors, dtype=np.float64)
    if distance == "cosine":
        rows = unit_rows(rows)
    if like is not None:
        examples = like.astype(np.float64)
        own = 0 if vectors is None else 1
        rows = (own * rows + examples.sum(axis=0)) / (own + len(examples))
    if unlike is not None:
        rows = rows - UNLIKE * unlike.astype(np.float64).mean(axis=0)
    return unit_rows(rows) if distance == "cosine" else rows


def nearest_of(
    engine: Engine,
    vectors: Segments,
    distance: str,
    queries: NDArray[np.float64],
    k: int,
    allowed: NDArray[np.int64] | None,
) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """For each query the ``k`` nearest of what the engine proposes, by scores in float64, equal ones by row."""
    found = []
    for query, rows in zip(queries, engine.candidates(queries, k, allowed), strict=True):
        parts = [rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE)]
        scores = np.concatenate([_scores(vectors.take(part), query, distance) for part in parts] or [np.empty(0)])
        order = np.lexsort((rows, -scores))[:k]
        found.append((rows[order], scores[order]))
    return found


def _scores(rows: NDArray[np.float32], query: NDArray[np.float64], distance: str) -> NDArray[np.float64]:
    # Row by row and not as a matrix product, whose last bits depend on where a row stands: equal rows score the same.
    if distance == "cosine":
        scores: NDArray[np.float64] = (rows * query).sum(axis=1)
        return scores
    distances: NDArray[np.float64] = np.sqrt(((rows - query) ** 2).sum(axis=1))
    return -distances


def unit_rows(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows of length 1; zeros stay zeros."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: NDArray[np.float64] = rows / np.where(lengths > 0, lengths, 1.0)
    return unit


def _is_array(one: Any) -> bool:
    return isinstance(one, (np.ndarray, Tensor)) and not isinstance(one, os.PathLike)


def _is_vectors(one: Any) -> bool:
    """Whether an array holds vectors: of floating point numbers, which pixels are not."""
    floating = one.is_floating_point() if isinstance(one, Tensor) else one.dtype.kind == "f"
    return bool(floating) and one.ndim in (1, 2)


def _checked(one: Any, dim: int) -> NDArray[np.float64]:
    vector = np.asarray(one.detach().cpu() if isinstance(one, Tensor) else one, dtype=np.float64).reshape(-1)
    if vector.shape != (dim,) or not np.isfinite(vector).all():
        raise RecipeError(f"a vector to search for must have {dim} finite numbers, got {list(np.shape(one))}")
    return vector
