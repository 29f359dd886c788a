"""A map of an index: a place in the plane for every item, near those of its nearest neighbours.

Each item is joined to its nearest ones, strongly to those that are near for it (the weights of UMAP, McInnes et al.
2018, section 3.1). What is joined attracts, all else repels, a random few at a time, from the two principal components
on. An item that is added later stands at the mean of its neighbours, so that a map people know does not change under
them.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearkin.disk import write_atomically
from nearkin.errors import DataError, RecipeError, require_torch
from nearkin.index.index import Index

NAME = "layout.npz"
MOST = 100_000
"""Items of a map; of a larger index as many are drawn at random."""
NEIGHBOURS = 15
PLACED_BY = 5
"""Neighbours that a later item is placed by."""

Progress = Callable[[int, int], None]
Ids = NDArray[np.int64]
Points = NDArray[np.float32]

_STEPS = 300
_REPELLED = 8  # random items that each item looks at in a step
_REPULSION = 5.0  # for every attraction so many repulsions, as in UMAP
_EXTENT = 10.0  # what the map's first principal component spans at the start
_NOBODY = 1e-4  # the share of its longest edge below which an edge no longer counts


@dataclass(frozen=True)
class Layout:
    """Items, ascending, and their places ``[N, 2]``; those of the run's proxies ``[P, 2]``, and their classes."""

    ids: Ids
    points: Points
    proxies: Points
    classes: tuple[str, ...]


def make_layout(index: Index, *, progress: Progress | None = None) -> Layout:
    """Lay out the items of an index and the proxies of its run, and keep that with it in place of what was there."""
    ids = index.ids()
    if not len(ids):
        raise RecipeError(f"{index.path} is empty, and there is nothing to lay out: add images first")
    if len(ids) > MOST:
        ids = np.sort(np.random.default_rng(0).choice(ids, MOST, replace=False))
    status, vectors = index.status(), index.vectors(ids)
    points = lay_out(vectors, index.distance, progress=progress)
    from nearkin.runs.class_proxies import proxies_of

    found = proxies_of(Path(status.model), index.dim)
    proxies, classes = np.empty((0, 2), dtype=np.float32), tuple[str, ...]()
    if found is not None:
        proxies, classes = place_by_neighbours(found.vectors, vectors, points, index.distance), found.names
    content = io.BytesIO()
    names = np.array(classes, dtype=np.str_)
    np.savez(content, ids=ids, points=points, proxies=proxies, classes=names, encoder=np.array(status.encoder))
    write_atomically(index.path / NAME, content.getvalue())
    return Layout(ids, points, proxies, classes)


def read_layout(index: Index) -> Layout | None:
    """The layout of an index as it is now: without what was removed, with what was added; None where none was made."""
    path = index.path / NAME
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            kept, points, encoder = stored["ids"], stored["points"], str(stored["encoder"])
            proxies, classes = stored["proxies"], tuple(stored["classes"].tolist())
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read ({error}): remove it, and make the map anew") from error
    if encoder != index.status().encoder:
        return None
    there = index.ids()
    is_there = np.isin(kept, there)
    kept, points = kept[is_there], points[is_there]
    if not len(kept):
        return None
    new = np.setdiff1d(there, kept)[: MOST - len(kept)]
    if len(new):
        placed = place_by_neighbours(index.vectors(new), index.vectors(kept), points, index.distance)
        kept, points = np.concatenate([kept, new]), np.concatenate([points, placed])
    order = np.argsort(kept)
    return Layout(kept[order], points[order], proxies, classes)


def lay_out(vectors: NDArray[np.float32], distance: str, *, seed: int = 0, progress: Progress | None = None) -> Points:
    """Places ``[N, 2]`` for vectors ``[N, dim]``, the same for the same seed.

    >>> lay_out(np.array([[3.0, 4.0]], dtype=np.float32), "cosine")
    array([[0., 0.]], dtype=float32)
    """
    require_torch("a map")
    import torch

    from nearkin.index.map_neighbours import BLOCK, neighbours, principal_components, without_itself

    tell = progress or (lambda done, of: None)
    rows = torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32))
    if len(rows) < 4:
        return principal_components(rows).numpy()
    k = min(NEIGHBOURS, len(rows) - 1)
    # The search is counted as steps, so that whoever waits sees one number rise: it takes about as long at 100,000.
    blocks = -(-len(rows) // BLOCK)
    of = 2 * _STEPS
    indices, far = neighbours(rows, rows, k + 1, distance, lambda done: tell(round(done / blocks * _STEPS), of))
    indices, far = without_itself(indices, far)
    heads, tails, weights = _edges(indices.numpy(), far.numpy())
    start = principal_components(rows).numpy()
    random = np.random.default_rng(seed)
    start = start * (_EXTENT / max(float(np.ptp(start[:, 0])), 1e-12)) + random.normal(0, 1e-2, start.shape)
    return _relaxed(start.astype(np.float32), heads, tails, weights, random, lambda done: tell(_STEPS + done, of))


def place_by_neighbours(new: NDArray[np.float32], known: NDArray[np.float32], points: Points, distance: str) -> Points:
    """Places ``[M, 2]`` of new vectors: the mean of their nearest known ones' places, the nearer the more.

    >>> known = np.array([[1.0, 0.0], [0.0, 1.0]], dtype=np.float32)
    >>> place_by_neighbours(known[:1], known, np.array([[4.0, 5.0], [9.0, 9.0]], dtype=np.float32), "cosine").round(2)
    array([[4., 5.]], dtype=float32)
    """
    require_torch("a map with items that were added since it was made")
    import torch

    from nearkin.index.map_neighbours import neighbours

    both = [torch.from_numpy(np.ascontiguousarray(each, dtype=np.float32)) for each in (new, known)]
    indices, far = neighbours(both[0], both[1], min(PLACED_BY, len(known)), distance, lambda _: None)
    # A copy of a known item stands upon it.
    weights = 1.0 / (far.numpy().astype(np.float64) + 1e-6)
    mean = (points[indices.numpy()] * weights[:, :, None]).sum(axis=1) / weights.sum(axis=1, keepdims=True)
    placed: Points = mean.astype(np.float32)
    return placed


def _edges(indices: Ids, far: NDArray[np.float32]) -> tuple[Ids, Ids, NDArray[np.float32]]:
    """Who is joined to whom in both directions, sorted, and how strongly: UMAP's weights.

    An item's nearest is joined with 1, the others with exp(−(d − d₁)/σ), and σ is such that all come to log2 k.
    """
    n, k = indices.shape
    beyond = far.astype(np.float64) - far[:, :1]
    low, high = np.full(n, 1e-9), np.full(n, max(float(beyond.max()), 1e-6) * 64)
    for _ in range(48):
        middle = np.sqrt(low * high)
        more = np.exp(-beyond / middle[:, None]).sum(axis=1) > np.log2(max(k, 2))
        low, high = np.where(more, low, middle), np.where(more, middle, high)
    weights = np.exp(-beyond / high[:, None])
    # Either of two that hold each other near will do: a + b − ab.
    one_way = np.repeat(np.arange(n), k) * n + indices.reshape(-1)
    other_way = indices.reshape(-1) * n + np.repeat(np.arange(n), k)
    pairs, place = np.unique(np.concatenate([one_way, other_way]), return_inverse=True)
    missing = np.ones(len(pairs))
    for part in (place[: n * k], place[n * k :]):
        missing[part] *= 1 - weights.reshape(-1)
    strength = 1 - missing
    kept = strength > _NOBODY
    return pairs[kept] // n, pairs[kept] % n, strength[kept].astype(np.float32)


def _relaxed(
    points: Points,
    heads: Ids,
    tails: Ids,
    weights: NDArray[np.float32],
    random: np.random.Generator,
    tell: Callable[[int], None],
) -> Points:
    """Follow the gradient of UMAP's objective, with q = 1/(1 + d²), on all edges and some random pairs at a time."""
    n = len(points)
    pull = np.bincount(heads, weights, minlength=n)
    push = (_REPULSION * pull / _REPELLED).astype(np.float32)
    mean, square = np.zeros_like(points), np.zeros_like(points)
    for step in range(1, _STEPS + 1):
        apart = points[heads] - points[tails]
        force = 2 * weights / (1 + np.einsum("ij,ij->i", apart, apart))
        gradient = np.stack([np.bincount(heads, force * apart[:, axis], minlength=n) for axis in (0, 1)], axis=1)
        for others in random.integers(0, n, (_REPELLED, n)):
            apart = points - points[others]
            squared = np.einsum("ij,ij->i", apart, apart)
            gradient -= (2 * push / ((0.01 + squared) * (1 + squared)))[:, None] * apart
        gradient = np.clip(gradient, -32, 32).astype(np.float32)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.99 * square + 0.01 * gradient**2
        rate = 0.4 * (1 - (step - 1) / _STEPS)
        points = points - rate * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-3)
        tell(step)
    placed: Points = (points - points.mean(axis=0)).astype(np.float32)
    return placed
