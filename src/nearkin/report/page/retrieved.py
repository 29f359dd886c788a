"""What every test query of a run found: nearest neighbours, and scores by query and by class."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.evaluation.neighbours import Distance, as_vectors, nearest, ranked_blocks
from nearkin.evaluation.scores.mean_average_precision import MeanAveragePrecision
from nearkin.evaluation.scores.recall import Recall
from nearkin.report.opened_run import CannotDrawError, OpenedRun, Sample, whole_classes

SCORED_LIMIT = 15_000
"""Test images that are embedded for the page; beyond that some whole classes stand for all."""
SHOWN = 8
BY_QUERY = (Recall("R@1", 1), MeanAveragePrecision("MAP@R"))


@dataclass(frozen=True)
class ClassScore:
    """A class's mean scores over its queries, as fractions."""

    label: int
    queries: int
    recall: float
    precision: float


@dataclass(frozen=True)
class Retrieved:
    """Queries ``[Q]`` of a run, and of each the first places of its ranking of the gallery ``[N]``.

    Without a gallery of its own, a run's queries are the gallery, and a query is not its own neighbour.
    """

    run: OpenedRun
    queries: Sample
    gallery: Sample
    found: NDArray[np.int64]
    """Places in the gallery, nearest first, ``[Q, SHOWN]`` or fewer columns where the gallery is smaller."""
    similarities: NDArray[np.float64]
    recall: NDArray[np.float64]
    """R@1 of each query; NaN where there is nothing to be found."""
    precision: NDArray[np.float64]
    """MAP@R of each query; NaN where there is nothing to be found."""
    images: int
    """Test images in all, of which the queries and the gallery may be a part."""

    @property
    def is_whole(self) -> bool:
        return self.images == self.used

    @property
    def used(self) -> int:
        return len(np.union1d(self.queries.rows, self.gallery.rows))

    @property
    def among_themselves(self) -> bool:
        return self.queries is self.gallery

    @cached_property
    def place_of(self) -> dict[int, int]:
        """The place of each query by its row in the table."""
        return {row: place for place, row in enumerate(self.queries.rows.tolist())}

    def is_right(self, query: int, place: int) -> bool:
        return bool(self.gallery.labels[place] == self.queries.labels[query])

    def classes(self) -> list[ClassScore]:
        """Scores of every class that has a query with something to be found, in the order of the labels."""
        counted = ~np.isnan(self.recall)
        labels, owner, counts = np.unique(self.queries.labels[counted], return_inverse=True, return_counts=True)
        owner = owner.reshape(-1)
        recall = np.bincount(owner, self.recall[counted]) / counts
        precision = np.bincount(owner, self.precision[counted]) / counts
        rows = zip(labels.tolist(), counts.tolist(), recall.tolist(), precision.tolist(), strict=True)
        return [ClassScore(*row) for row in rows]

    def worst(self, count: int) -> list[int]:
        """Queries whose nearest neighbour is wrong, by their MAP@R and then by how sure the mistake is; one a class."""
        wrong = np.flatnonzero(self.recall == 0)
        order = sorted(wrong.tolist(), key=lambda q: (self.precision[q], -self.similarities[q, 0], q))
        chosen: dict[int, int] = {}
        for query in order:
            chosen.setdefault(int(self.queries.labels[query]), query)
        return list(chosen.values())[:count]

    def first_right(self, query: int) -> tuple[int, int]:
        """The place in the gallery of the nearest true reference of a query, and its rank, from 1."""
        own = self.queries.embeddings[query : query + 1]
        available = len(self.gallery.rows) - int(self.among_themselves)
        if self.among_themselves:
            # One place more: the query finds itself somewhere among its copies.
            order, _ = nearest(own, self.gallery.embeddings, k=available + 1, distance=self._distance)
            ranking = order[0].numpy()
            ranking = ranking[ranking != query]
        else:
            ranking = nearest(own, self.gallery.embeddings, k=available, distance=self._distance)[0][0].numpy()
        rank = int(np.flatnonzero(self.gallery.labels[ranking] == self.queries.labels[query])[0])
        return int(ranking[rank]), rank + 1

    @property
    def _distance(self) -> Distance:
        return self.run.trained.encoder.distance


def retrieve(run: OpenedRun) -> Retrieved:
    """Embed a run's test images and rank them for every query, exactly."""
    distance = run.trained.encoder.distance  # first: without weights there is no need to read the images
    test, labels = run.protocol.test, run.data.table.labels
    if test is None:
        raise CannotDrawError("the run has no test classes")
    everything = test.query if test.gallery is None else np.union1d(test.query, test.gallery)
    kept = whole_classes(everything, labels, run.random(), limit=SCORED_LIMIT)
    queries = _embedded(run, test.query[np.isin(test.query, kept)])
    gallery = queries if test.gallery is None else _embedded(run, test.gallery[np.isin(test.gallery, kept)])
    true = (np.bincount(gallery.labels, minlength=len(run.data.table.class_names))[queries.labels]) - int(
        gallery is queries
    )
    available = len(gallery.rows) - int(gallery is queries)
    shown = min(SHOWN, available)
    if shown < 1:
        raise CannotDrawError("a single test image has no neighbours")
    depth = torch.from_numpy(true).clamp(min=shown, max=available)
    count = len(queries.rows)
    found = np.zeros((count, shown), dtype=np.int64)
    similarities = np.zeros((count, shown))
    recall, precision = np.full(count, np.nan), np.full(count, np.nan)
    blocks = ranked_blocks(
        as_vectors(queries.embeddings, "queries"),
        as_vectors(gallery.embeddings, "gallery"),
        depth,
        distance=distance,
        exclude_self=gallery is queries,
    )
    for block in blocks:
        rows, order = block.rows.numpy(), block.indices.numpy()
        found[rows], similarities[rows] = order[:, :shown], block.similarities.numpy()[:, :shown]
        some = rows[true[rows] > 0]
        hits = torch.from_numpy(gallery.labels[order[true[rows] > 0]] == queries.labels[some, None])
        recall[some], precision[some] = (score.per_query(hits, torch.from_numpy(true[some])) for score in BY_QUERY)
    return Retrieved(run, queries, gallery, found, similarities, recall, precision, len(everything))


def _embedded(run: OpenedRun, rows: NDArray[np.int64]) -> Sample:
    embeddings: Tensor = run.embed(rows)
    return Sample(rows, run.data.table.labels[rows], embeddings)
