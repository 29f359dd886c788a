"""The results of a run's test queries: nearest neighbours, and scores by query and by class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from nearkin.evaluation.neighbours import Distance, Floats, Ints, nearest, rank
from nearkin.evaluation.scores.mean_average_precision import MeanAveragePrecision
from nearkin.evaluation.scores.recall import Recall
from nearkin.evaluation.vectors import as_vectors
from nearkin.report.opened_run import CannotDrawError, OpenedRun, Sample

SHOWN = 8
BY_QUERY = (Recall("R@1", 1), MeanAveragePrecision("MAP@R"))


@dataclass(frozen=True)
class ClassScore:
    """A class's mean scores over its queries, as fractions."""

    queries: int
    recall: float
    precision: float


@dataclass(frozen=True)
class Neighbour:
    """A hit of a query: its row in the table, its label, and whether that is the query's."""

    row: int
    label: int
    right: bool


@dataclass(frozen=True)
class QueryResults:
    """Queries ``[Q]`` of a run, and of each the first hits in the gallery ``[N]``.

    Where the protocol has no gallery, the queries are the gallery, and a query is not its own neighbour.
    """

    run: OpenedRun
    sample: Sample
    """Queries and gallery together."""
    queries: Sample
    gallery: Sample
    distance: Distance
    true: NDArray[np.int64]
    """The number of gallery images of each query's class, ``[Q]``."""
    hits: NDArray[np.int64]
    """Indices in the gallery, nearest first, at most ``[Q, SHOWN]``."""
    similarities: NDArray[np.float64]
    recall: NDArray[np.float64]
    """R@1 of each query; NaN where there is nothing to find."""
    precision: NDArray[np.float64]
    """MAP@R of each query; NaN where there is nothing to find."""

    def choose_queries(self, count: int) -> list[int]:
        """One random query from each of ``count`` random classes that have something to find."""
        rng, able = self.run.random(), np.flatnonzero(self.true > 0)
        labels = self.queries.labels[able]
        classes = np.unique(labels)
        chosen = np.sort(rng.choice(classes, min(count, len(classes)), replace=False))
        return [int(rng.choice(able[labels == label])) for label in chosen.tolist()]

    def neighbours_of(self, query: int) -> list[Neighbour]:
        """A query's hits, nearest first."""
        return [self._neighbour(query, hit) for hit in self.hits[query].tolist()]

    def _neighbour(self, query: int, hit: int) -> Neighbour:
        row, label = int(self.gallery.rows[hit]), int(self.gallery.labels[hit])
        return Neighbour(row, label, label == self.queries.labels[query])

    def classes(self) -> dict[int, ClassScore]:
        """Scores, by label, of every class that has a query with something to find."""
        counted = self.true > 0
        labels, owner, counts = np.unique(self.queries.labels[counted], return_inverse=True, return_counts=True)
        owner = owner.reshape(-1)
        recall = np.bincount(owner, self.recall[counted]) / counts
        precision = np.bincount(owner, self.precision[counted]) / counts
        scores = map(ClassScore, counts.tolist(), recall.tolist(), precision.tolist())
        return dict(zip(labels.tolist(), scores, strict=True))

    def worst(self, count: int) -> list[int]:
        """Queries whose nearest neighbour is wrong, one of a class: lowest MAP@R first, then highest similarity."""
        wrong = np.flatnonzero(self.recall == 0)
        order = wrong[np.lexsort((-self.similarities[wrong, 0], self.precision[wrong]))]
        _, first = np.unique(self.queries.labels[order], return_index=True)
        return order[np.sort(first)][:count].tolist()  # type: ignore[no-any-return]

    def first_right(self, query: int) -> tuple[Neighbour, int]:
        """The nearest image of a query's class, and its rank, from 1."""
        embedding, total = self.queries.embeddings[query : query + 1], len(self.gallery.rows)
        (ranking,), _ = nearest(embedding, self.gallery.embeddings, k=total, distance=self.distance)
        if self.queries is self.gallery:
            ranking = ranking[ranking != query]
        rank = int(np.argmax(self.gallery.labels[ranking] == self.queries.labels[query]))
        return self._neighbour(query, int(ranking[rank])), rank + 1


def retrieve(run: OpenedRun, sample: Sample, distance: Distance | None = None) -> QueryResults:
    """Search the gallery of a sample of a run's test images for every query among them, exactly.

    ``distance`` is that of the encoder that embedded them; default: the run's.
    """
    test = run.protocol.test
    assert test is not None, "a run with a sample of test images has test classes"
    distance = distance or run.trained.encoder.distance
    queries = sample.of_rows(test.query)
    gallery = queries if test.gallery is None else sample.of_rows(test.gallery)
    alone = int(gallery is queries)
    true = np.bincount(gallery.labels, minlength=len(run.data.table.class_names))[queries.labels] - alone
    available = len(gallery.rows) - alone
    shown = min(SHOWN, available)
    if shown < 1:
        raise CannotDrawError("a single test image has no neighbours")
    count = len(queries.rows)
    hits = np.zeros((count, shown), dtype=np.int64)
    similarities = np.zeros((count, shown))
    recall, precision = np.full(count, np.nan), np.full(count, np.nan)

    def score(rows: Ints, order: Ints, similar: Floats) -> None:
        hits[rows], similarities[rows] = order[:, :shown], similar[:, :shown]
        counted = rows[true[rows] > 0]
        right = torch.from_numpy(gallery.labels[order[true[rows] > 0]] == queries.labels[counted, None])
        num_true = torch.from_numpy(true[counted])
        recall[counted], precision[counted] = (measured.per_query(right, num_true) for measured in BY_QUERY)

    query_vectors = as_vectors(queries.embeddings, "queries")
    gallery_vectors = query_vectors if gallery is queries else as_vectors(gallery.embeddings, "gallery")
    depth = np.clip(true, shown, available)
    rank(query_vectors, gallery_vectors, depth, score, distance=distance, exclude_self=gallery is queries)
    return QueryResults(run, sample, queries, gallery, distance, true, hits, similarities, recall, precision)
