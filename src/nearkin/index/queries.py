"""From what a search is given, an image, an id, a vector or several of them, to the vectors to search with."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nearkin.data.image_inputs import ImageInputs, Tensor
from nearkin.data.images import crop_shares
from nearkin.errors import RecipeError
from nearkin.index.engine import unit_rows
from nearkin.runs.model import Model

OneQuery: TypeAlias = "int | np.integer[Any] | str | os.PathLike[str] | bytes | Image.Image"
"""The id of an item, or an image."""
Queries: TypeAlias = "list[Any] | tuple[Any, ...]"
Arrays: TypeAlias = "NDArray[Any] | Tensor"
"""The shape tells whether it is one query or several."""

UNLIKE_WEIGHT = 0.5
"""The weight of items that are not wanted, relative to those that are."""


def are_several(query: Any) -> bool:
    """Whether it is a list, rows of vectors or several images of one size.

    >>> [are_several(one) for one in ("a.jpg", ["a.jpg"], np.zeros(8), np.zeros((2, 8)), np.zeros((9, 8), np.uint8))]
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
) -> tuple[NDArray[np.float64] | None, list[set[int]]]:
    """The vectors ``[Q, dim]`` of queries, None without a query, and for each the items that it is itself."""
    if query is None:
        if crop is not None:
            raise RecipeError("crop is a part of an image: give the image to search for")
        return None, [set()]
    queries = list(query) if are_several(query) else [query]
    vectors = np.empty((len(queries), dim), dtype=np.float64)
    ids: list[set[int]] = [set() for _ in queries]
    images: dict[int, Any] = {}
    for i, one in enumerate(queries):
        if isinstance(one, (int, np.integer)) and not isinstance(one, bool):
            ids[i] = {int(one)}
            vectors[i] = stored([int(one)])[0]
        elif _is_array(one) and _is_vectors(one):
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
        vectors[list(images)] = model().encode(list(images.values()))
    return vectors, ids


def cropped(image: Any, crop: Sequence[float]) -> NDArray[np.uint8]:
    """The part of an upright image at ``x, y, width, height``, as shares of its width and height.

    >>> cropped(np.arange(24, dtype=np.uint8).reshape(4, 6), [0.5, 0.25, 0.5, 0.5])[:, :, 0].tolist()
    [[9, 10, 11], [15, 16, 17]]
    """
    numbers = [float(number) for number in crop]
    if len(numbers) != 4 or not np.isfinite(numbers).all():
        raise RecipeError(f"crop must be four numbers, x, y, width and height, got {list(crop)}")
    x, y, width, height = numbers
    if min(x, y) < 0 or min(width, height) <= 0 or max(x + width, y + height) > 1 + 1e-6:
        raise RecipeError(
            f"crop must lie within the image, as shares of it from 0 to 1: x {x:g} to {x + width:g}, "
            f"y {y:g} to {y + height:g} does not"
        )
    return crop_shares(ImageInputs([image], shorter_side=None)[0], numbers)


def combined(
    vectors: NDArray[np.float64] | None,
    like: NDArray[np.float32] | None,
    unlike: NDArray[np.float32] | None,
    distance: str,
) -> NDArray[np.float64]:
    """The mean of a query and its positive examples, less half the mean of the negative ones (Rocchio 1971).

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


def _is_array(query: Any) -> bool:
    return isinstance(query, (np.ndarray, Tensor)) and not isinstance(query, os.PathLike)


def _is_vectors(array: Any) -> bool:
    """Whether an array holds vectors: of floating point numbers, which pixels are not."""
    floating = array.is_floating_point() if isinstance(array, Tensor) else array.dtype.kind == "f"
    return bool(floating) and array.ndim in (1, 2)
