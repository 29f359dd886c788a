"""The items of an index in groups that look alike, by k-means, as many as asked for or as the vectors suggest."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.disk import write_atomically
from nearkin.errors import DataError, RecipeError
from nearkin.evaluation.clustering import kmeans
from nearkin.evaluation.scores.nmi import normalised_mutual_information
from nearkin.index.index import Index
from nearkin.index.where import Where

MOST_JUDGED = 2_000
"""Items on which numbers of clusters are tried out, drawn by chance."""
_STEP = 1.35


@dataclass(frozen=True)
class Clusters:
    """Items by cluster, the largest first and in it the most typical first, nearest to its middle."""

    ids: tuple[tuple[int, ...], ...]
    silhouette: float | None
    """How well the number suits, where it was chosen here: the mean silhouette of the items it was tried on."""
    purity: float | None
    """Share of labelled items that have the label most frequent in their cluster; it rises with more clusters."""
    nmi: float | None
    """Normalised mutual information of clusters and labels."""


def cluster(index: Index, number: int | None = None, *, where: Where | None = None, seed: int = 0) -> Clusters:
    """Put the items that meet ``where`` into ``number`` clusters by k-means.

    Without a number, that one is taken whose clusters have the highest mean silhouette (Rousseeuw 1987): for each item
    (b − a) / max(a, b) with a its mean distance to its own cluster and b to the next one. Numbers from 2 to half of
    the items are tried, each about a third more than the last and then those beside the best, on 2,000 items.
    """
    ids = index.ids(where)
    if len(ids) < 2:
        raise DataError(f"{len(ids)} items are too few to make clusters of")
    if number is not None and not 1 <= number <= len(ids):
        raise RecipeError(f"the number of clusters must be from 1 to the number of items, {len(ids):,}, got {number}")
    vectors = torch.from_numpy(index.vectors(ids)).double()
    if index.distance == "cosine":
        vectors = torch.nn.functional.normalize(vectors)
    silhouette = None
    if number is None:
        some = np.sort(np.random.default_rng(seed).permutation(len(ids))[:MOST_JUDGED])
        number, silhouette = _best_number(vectors[torch.from_numpy(some)], seed)
    assigned = kmeans(vectors, number, seed=seed).numpy()
    labels = {item.id: item.label for start in range(0, len(ids), 10_000) for item in index.items(ids[start:][:10_000])}
    labelled = np.array([labels[id] is not None for id in ids.tolist()])
    names = np.array([labels[id] or "" for id in ids.tolist()])[labelled]
    kinds = np.unique(names, return_inverse=True)[1].reshape(-1)
    return Clusters(
        _by_size(ids, vectors, assigned),
        silhouette,
        _purity(assigned[labelled], kinds) if len(kinds) else None,
        normalised_mutual_information(assigned[labelled], kinds) if len(kinds) else None,
    )


def write_manifest(file: Path, index: Index, clusters: Clusters) -> None:
    """A CSV with id, path, label and cluster of every item, which 'nearkin train' and 'nearkin index' read as well."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["id", "path", "label", "cluster"])
    for number, ids in enumerate(clusters.ids, start=1):
        for item in index.items(ids):
            writer.writerow([item.id, item.path or "", item.label or "", number])
    write_atomically(file, text.getvalue().encode())


def mean_silhouette(distances: Tensor, assigned: Tensor) -> float:
    """The mean over points of (b − a) / max(a, b), given all distances ``[N, N]``; 0 for a point alone in its cluster.

    >>> places = torch.tensor([[0.0], [1.0], [10.0], [11.0]], dtype=torch.float64)
    >>> round(mean_silhouette(torch.cdist(places, places), torch.tensor([0, 0, 1, 1])), 3)
    0.9
    """
    number = int(assigned.max()) + 1
    member = torch.nn.functional.one_hot(assigned, number).to(distances.dtype)
    counts = member.sum(dim=0)
    sums = distances @ member
    own = assigned[:, None]
    within = sums.gather(1, own)[:, 0] / (counts[assigned] - 1).clamp_min(1)
    others = (sums / counts.clamp_min(1)).scatter(1, own, torch.inf)
    others[:, counts == 0] = torch.inf
    to_next = others.min(dim=1).values
    value = (to_next - within) / torch.maximum(to_next, within).clamp_min(1e-30)
    return float(torch.where(counts[assigned] > 1, value, 0.0).mean())


def _best_number(vectors: Tensor, seed: int) -> tuple[int, float]:
    """The number of clusters with the highest mean silhouette, of equal ones the least."""
    if len(vectors) < 4:
        return 1, 0.0
    distances = torch.cdist(vectors, vectors)
    tried: dict[int, float] = {}

    def judge(numbers: Sequence[int]) -> int:
        for number in numbers:
            if number not in tried and 2 <= number <= len(vectors) // 2:
                tried[number] = mean_silhouette(distances, kmeans(vectors, number, seed=seed, restarts=1))
        return max(sorted(tried), key=tried.__getitem__)

    grid = [2]
    while grid[-1] < len(vectors) // 2:
        grid.append(max(grid[-1] + 1, int(grid[-1] * _STEP)))
    best = judge([min(each, len(vectors) // 2) for each in grid])
    for width in (0.15, 0.07, 0.03):
        best = judge([best - max(1, int(best * width)), best + max(1, int(best * width))])
    return best, tried[best]


def _by_size(ids: NDArray[np.int64], vectors: Tensor, assigned: NDArray[np.int64]) -> tuple[tuple[int, ...], ...]:
    groups = []
    for each in np.unique(assigned):
        rows = np.flatnonzero(assigned == each)
        own = vectors[torch.from_numpy(rows)]
        order = np.lexsort((ids[rows], (own - own.mean(dim=0)).norm(dim=1).numpy()))
        groups.append(tuple(ids[rows[order]].tolist()))
    return tuple(sorted(groups, key=lambda group: (-len(group), min(group))))


def _purity(assigned: NDArray[np.int64], kinds: NDArray[np.int64]) -> float:
    """
    >>> _purity(np.array([0, 0, 0, 1]), np.array([5, 5, 7, 7]))
    0.75
    """
    most = sum(int(np.bincount(kinds[assigned == each]).max()) for each in np.unique(assigned))
    return most / len(kinds)
