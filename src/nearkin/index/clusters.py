"""The items of an index in clusters, by k-means."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nearkin.disk import write_atomically
from nearkin.errors import DataError, RecipeError
from nearkin.evaluation.clustering import kmeans
from nearkin.evaluation.neighbours import Ints
from nearkin.evaluation.scores.nmi import normalised_mutual_information
from nearkin.index.filters import Where
from nearkin.index.index import Index

MOST_JUDGED = 2_000
"""The most items on which numbers of clusters are tried; they are drawn at random."""
_STEP = 1.35


@dataclass(frozen=True)
class Clusters:
    """Items by cluster, the largest first; within each they are ordered by their distance to its centre."""

    ids: tuple[tuple[int, ...], ...]
    silhouette: float | None
    """The mean silhouette of the items on which the number was tried; None if the number was given."""
    purity: float | None
    """The share of labelled items with the most frequent label of their cluster."""
    nmi: float | None


def cluster(index: Index, number: int | None = None, *, where: Where | None = None, seed: int = 0) -> Clusters:
    """Cluster the items that meet ``where`` into ``number`` clusters by k-means.

    By default it is the number with the highest mean silhouette (Rousseeuw 1987) on 2,000 items. Numbers from 2 to half
    of them are tried, each about a third larger than the last, then those around the best.
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
        tried = np.sort(np.random.default_rng(seed).permutation(len(ids))[:MOST_JUDGED])
        number, silhouette = _best_number(vectors[torch.from_numpy(tried)], seed)
    assigned = kmeans(vectors, number, seed=seed).numpy()
    labelled, names = index.labels()
    classes = np.unique(names[np.isin(labelled, ids)], return_inverse=True)[1]
    clusters = assigned[np.isin(ids, labelled)]
    most = sum(int(np.bincount(classes[clusters == number]).max()) for number in np.unique(clusters))
    return Clusters(
        _by_size(ids, vectors, assigned),
        silhouette,
        most / len(classes) if len(classes) else None,
        normalised_mutual_information(clusters, classes) if len(classes) else None,
    )


def write_manifest(file: Path, index: Index, clusters: Clusters) -> None:
    """Write a CSV with id, path, label and cluster of each item, which 'nearkin train' and 'nearkin index' read."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["id", "path", "label", "cluster"])
    for number, ids in enumerate(clusters.ids, start=1):
        for item in index.items(ids):
            writer.writerow([item.id, item.path or "", item.label or "", number])
    write_atomically(file, text.getvalue().encode())


def _best_number(vectors: Tensor, seed: int) -> tuple[int, float]:
    """The number of clusters with the highest mean silhouette, or the smallest of equal ones, and the silhouette."""
    if len(vectors) < 4:
        return 1, 0.0
    from sklearn.metrics import silhouette_score

    distances = torch.cdist(vectors, vectors).fill_diagonal_(0).numpy()
    tried: dict[int, float] = {}

    def judge(numbers: Sequence[int]) -> int:
        for number in numbers:
            if number not in tried and 2 <= number <= len(vectors) // 2:
                assigned = kmeans(vectors, number, seed=seed, restarts=1).numpy()
                tried[number] = float(silhouette_score(distances, assigned, metric="precomputed"))
        return max(sorted(tried), key=tried.__getitem__)

    grid = [2]
    while grid[-1] < len(vectors) // 2:
        grid.append(max(grid[-1] + 1, int(grid[-1] * _STEP)))
    best = judge([min(number, len(vectors) // 2) for number in grid])
    for width in (0.15, 0.07, 0.03):
        best = judge([best - max(1, int(best * width)), best + max(1, int(best * width))])
    return best, tried[best]


def _by_size(ids: Ints, vectors: Tensor, assigned: Ints) -> tuple[tuple[int, ...], ...]:
    groups = []
    for number in np.unique(assigned):
        rows = np.flatnonzero(assigned == number)
        members = vectors[torch.from_numpy(rows)]
        order = np.lexsort((ids[rows], (members - members.mean(dim=0)).norm(dim=1).numpy()))
        groups.append(tuple(ids[rows[order]].tolist()))
    return tuple(sorted(groups, key=lambda group: (-len(group), min(group))))
