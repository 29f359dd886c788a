"""A map of an index: a point in the plane for every item, close to its nearest neighbours.

Each item has edges to its nearest neighbours, weighted as in UMAP (McInnes et al. 2018, section 3.1). Edges attract,
and a few random other items repel at each step; the start is the two principal components.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse

from nearkin.disk import replacing, writing
from nearkin.errors import DataError, RecipeError, require_torch
from nearkin.evaluation.neighbours import Distance, Floats, Ints, Singles, nearest
from nearkin.index.adding import Progress
from nearkin.index.index import Index

NAME = "layout.npz"
MOST = 100_000
"""The most items of a map; from a larger index as many are drawn at random."""
NEIGHBOURS = 15
PLACED_BY = 5
"""The neighbours that determine the place of an item added later."""

Points = Singles

_STEPS = 300
_REPELLED = 8  # random items that repel each item in a step
_REPULSION = 5.0  # repulsions for each attraction, as in UMAP
_EXTENT = 10.0  # extent of the first principal component at the start
_LEAST_WEIGHT = 1e-4  # weaker edges are left out


@dataclass(frozen=True)
class Layout:
    """Items, ascending, with their points ``[N, 2]``; points ``[P, 2]`` and classes of the run's proxies."""

    ids: Ints
    points: Points
    proxies: Points
    classes: tuple[str, ...]


def make_layout(index: Index, *, progress: Progress | None = None) -> Layout:
    """Lay out the items of an index and the proxies of its run, and store the layout with the index."""
    ids = index.ids()
    if not len(ids):
        raise RecipeError(f"{index.path} is empty: add images first")
    if len(ids) > MOST:
        ids = np.sort(np.random.default_rng(0).choice(ids, MOST, replace=False))
    status, vectors = index.status(), index.vectors(ids)
    points = lay_out(vectors, index.distance, progress=progress)
    proxies, classes = np.empty((0, 2), dtype=np.float32), tuple[str, ...]()
    if not Path(status.model).is_file():  # an exported encoder has no proxies
        require_torch("a map with the proxies of a run")
        from nearkin.runs.trained_run import proxies_of

        class_proxies = proxies_of(Path(status.model), index.dim)
        if class_proxies is not None:
            proxies = place_by_neighbours(class_proxies.vectors, vectors, points, index.distance)
            classes = class_proxies.names
    names, encoder, path = np.array(classes, dtype=np.str_), np.array(status.encoder), index.path / NAME
    with writing(path), replacing(path) as file:
        np.savez(file, ids=ids, points=points, proxies=proxies, classes=names, encoder=encoder)
    return Layout(ids, points, proxies, classes)


def read_layout(index: Index) -> Layout | None:
    """The stored layout without removed and with added items; None if there is none for this encoder."""
    path = index.path / NAME
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            kept, points, encoder = stored["ids"], stored["points"], str(stored["encoder"])
            proxies, classes = stored["proxies"], tuple(stored["classes"].tolist())
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read ({error}): remove it, and make the map again") from error
    if encoder != index.status().encoder:
        return None
    present = index.ids()
    stays = np.isin(kept, present)
    kept, points = kept[stays], points[stays]
    if not len(kept):
        return None
    new = np.setdiff1d(present, kept)[: MOST - len(kept)]
    if len(new):
        placed = place_by_neighbours(index.vectors(new), index.vectors(kept), points, index.distance)
        kept, points = np.concatenate([kept, new]), np.concatenate([points, placed])
    order = np.argsort(kept)
    return Layout(kept[order], points[order], proxies, classes)


def lay_out(vectors: Singles, distance: Distance, *, progress: Progress | None = None) -> Points:
    """Points ``[N, 2]`` for vectors ``[N, dim]``, always the same for the same vectors.

    >>> lay_out(np.array([[3.0, 4.0]], dtype=np.float32), "cosine")
    array([[0., 0.]], dtype=float32)
    """
    start = principal_components(vectors)
    if len(vectors) < 4:
        return start

    def report(done: int) -> None:  # the neighbour search counts as half: of 100,000 items it takes about that
        if progress is not None:
            progress(done, 2 * _STEPS)

    k = min(NEIGHBOURS, len(vectors) - 1)
    indices, similarities = nearest(
        vectors, k=k, distance=distance, progress=lambda done: report(done * _STEPS // len(vectors))
    )
    edges = _edges(indices, _distances(similarities, distance))
    random = np.random.default_rng(0)
    scaled = start * (_EXTENT / max(float(np.ptp(start[:, 0])), 1e-12)) + random.normal(0, 1e-2, start.shape)
    return _optimised(scaled.astype(np.float32), edges, random, lambda done: report(_STEPS + done))


def place_by_neighbours(new: Singles, known: Singles, points: Points, distance: Distance) -> Points:
    """Points ``[M, 2]`` of new vectors: the means of their nearest known vectors' points, weighted by nearness.

    >>> known = np.array([[1.0, 0.0], [0.0, 1.0]], dtype=np.float32)
    >>> place_by_neighbours(known[:1], known, np.array([[4.0, 5.0], [9.0, 9.0]], dtype=np.float32), "cosine").round(2)
    array([[4., 5.]], dtype=float32)
    """
    indices, similarities = nearest(new, known, k=min(PLACED_BY, len(known)), distance=distance)
    weights = 1.0 / (_distances(similarities, distance) + 1e-6)
    mean = (points[indices] * weights[:, :, None]).sum(axis=1) / weights.sum(axis=1, keepdims=True)
    return np.asarray(mean, dtype=np.float32)


def principal_components(vectors: Singles) -> Points:
    """The first two principal components ``[N, 2]`` of ``vectors [N, D]``; the largest loading of each is positive."""
    centred = vectors - vectors.mean(axis=0)
    axes = np.linalg.eigh((centred.T @ centred).astype(np.float64))[1][:, :-3:-1].astype(np.float32)
    axes = axes * np.sign(np.take_along_axis(axes, np.abs(axes).argmax(axis=0)[None], axis=0))
    return np.pad(centred @ axes, ((0, 0), (0, 2 - axes.shape[1])))


def _distances(similarities: Floats, distance: Distance) -> Floats:
    """Euclidean distances; for the cosine those of vectors of length 1."""
    return -similarities if distance == "euclidean" else np.sqrt(np.maximum(2.0 - 2.0 * similarities, 0.0))


def _edges(indices: Ints, far: Floats) -> tuple[Ints, Ints, Singles]:
    """Heads, tails and weights of the edges in both directions, sorted, as in UMAP.

    An edge at distance d has weight exp(−(d − d₁)/σ), where d₁ is the nearest and σ makes the weights sum to log2 k.
    """
    n, k = indices.shape
    beyond = far - far[:, :1]
    low, high = np.full(n, 1e-9), np.full(n, max(float(beyond.max()), 1e-6) * 64)
    for _ in range(48):
        middle = np.sqrt(low * high)
        more = np.exp(-beyond / middle[:, None]).sum(axis=1) > np.log2(max(k, 2))
        low, high = np.where(more, low, middle), np.where(more, middle, high)
    weights = np.exp(-beyond / high[:, None])
    one_way = scipy.sparse.csr_array((weights.ravel(), indices.ravel(), np.arange(0, n * k + 1, k)), shape=(n, n))
    # The weight of an edge in both directions is a + b − ab.
    edges = (one_way + one_way.T - one_way * one_way.T).tocoo()
    kept = edges.data > _LEAST_WEIGHT
    return edges.row[kept], edges.col[kept], edges.data[kept].astype(np.float32)


def _optimised(
    points: Points, edges: tuple[Ints, Ints, Singles], random: np.random.Generator, report: Callable[[int], None]
) -> Points:
    """Minimise UMAP's objective with q = 1/(1 + d²), by Adam on all edges and some random pairs at a time."""
    (heads, tails, weights), n = edges, len(points)
    pull = np.bincount(heads, weights, minlength=n)
    push = (_REPULSION * pull / _REPELLED).astype(np.float32)
    mean, square = np.zeros_like(points), np.zeros_like(points)
    for step in range(1, _STEPS + 1):
        apart = points[heads] - points[tails]
        force = 2 * weights / (1 + np.einsum("ij,ij->i", apart, apart))
        gradient = np.stack([np.bincount(heads, force * apart[:, axis], minlength=n) for axis in (0, 1)], axis=1)
        for negatives in random.integers(0, n, (_REPELLED, n)):
            apart = points - points[negatives]
            squared = np.einsum("ij,ij->i", apart, apart)
            gradient -= (2 * push / ((0.01 + squared) * (1 + squared)))[:, None] * apart
        gradient = np.clip(gradient, -32, 32).astype(np.float32)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.99 * square + 0.01 * gradient**2
        rate = 0.4 * (1 - (step - 1) / _STEPS)
        points = points - rate * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-3)
        report(step)
    return np.asarray(points - points.mean(axis=0), dtype=np.float32)
