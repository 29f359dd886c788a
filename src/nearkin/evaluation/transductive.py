"""Scores of rankings that the other test images have changed: α-query expansion and k-reciprocal re-ranking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.errors import RecipeError
from nearkin.evaluation.measurement import measure
from nearkin.evaluation.neighbours import ranked_blocks
from nearkin.evaluation.pairs import Distance
from nearkin.evaluation.query_expansion import ALPHA, expand_queries
from nearkin.evaluation.reranking import K1, K2, WEIGHT, reranked_distances
from nearkin.evaluation.retrieval import depths, mean_scores
from nearkin.evaluation.scores import RetrievalScore, score_named
from nearkin.evaluation.vectors import ArrayLike, as_gallery, as_labels, as_vectors


@dataclass(frozen=True)
class Expand:
    """Each query moved towards its ``k`` nearest (:func:`~nearkin.evaluation.query_expansion.expand_queries`)."""

    k: int
    alpha: float = ALPHA

    def __post_init__(self) -> None:
        if self.k < 1 or not self.alpha >= 0:
            raise RecipeError(
                f"queries are expanded by at least 1 neighbour and alpha 0, got {self.k} and {self.alpha}"
            )

    def __str__(self) -> str:
        return f"queries expanded by their {self.k} nearest test images, alpha {self.alpha:g} (transductive)"


@dataclass(frozen=True)
class Rerank:
    """The order by common neighbours (:func:`~nearkin.evaluation.reranking.reranked_distances`)."""

    k1: int = K1
    k2: int = K2
    weight: float = WEIGHT

    def __post_init__(self) -> None:
        if self.k1 < 1 or self.k2 < 1 or not 0 <= self.weight <= 1:
            raise RecipeError(
                f"re-ranking takes k1 and k2 of at least 1 and a weight between 0 and 1, got {self.k1}, {self.k2} and "
                f"{self.weight}"
            )

    def __str__(self) -> str:
        return (
            f"re-ranked by k-reciprocal neighbours among the test images, k1 {self.k1}, k2 {self.k2}, weight "
            f"{self.weight:g} (transductive)"
        )


Change = Expand | Rerank


def measure_changed(
    scores: Sequence[str],
    embeddings: ArrayLike,
    labels: ArrayLike,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    *,
    change: Change,
    distance: Distance = "cosine",
) -> dict[str, float]:
    """As :func:`~nearkin.evaluation.measurement.measure`, with rankings that ``change`` has gone over.

    Only rankings are changed: scores of clusters and of where embeddings lie are those without it.

    >>> x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> measure_changed(["R@1", "NMI"], x, [7, 7, 9, 9], change=Expand(1))
    {'R@1': 1.0, 'queries_without_match': 0.0, 'NMI': 1.0}
    """
    if distance != "cosine":
        raise RecipeError("queries are expanded and re-ranked by angle, and this encoder compares by distance")
    wanted = [score_named(name) for name in dict.fromkeys(scores)]
    ranked = [score for score in wanted if isinstance(score, RetrievalScore)]
    others = [score.name for score in wanted if not isinstance(score, RetrievalScore)]
    found: dict[str, float] = {}
    if ranked:
        queries, references = as_labels(labels, "labels"), gallery_labels
        own = references is None
        references = queries if own else as_labels(references, "gallery_labels")
        num_true = _times(queries, references) - int(own)
        counted = num_true > 0
        depth = depths(ranked, num_true, len(references) - int(own))[1]
        values = torch.zeros(len(ranked), len(queries), dtype=torch.float64)
        for rows, indices in _rankings(embeddings, gallery, depth, change):
            hits = references[indices] == queries[rows, None]
            for number, each in enumerate(ranked):
                values[number, rows] = each.per_query(hits, num_true[rows])
        found |= mean_scores(ranked, values[:, counted], left_out=int((~counted).sum()))
    return found | (measure(others, embeddings, labels, distance=distance) if others else {})


def _times(labels: Tensor, among: Tensor) -> Tensor:
    """How many times each of ``labels`` is in ``among``."""
    names, which = torch.unique(torch.cat([labels, among]), return_inverse=True)
    return torch.bincount(which[len(labels) :], minlength=len(names))[which[: len(labels)]]


def _rankings(
    embeddings: ArrayLike, gallery: ArrayLike | None, depth: Tensor, change: Change
) -> Iterator[tuple[Tensor, Tensor]]:
    """Queries and what they find, nearest first, each without itself where there is no gallery."""
    if isinstance(change, Expand):
        expanded = as_vectors(expand_queries(embeddings, gallery, k=change.k, alpha=change.alpha), "queries")
        references = as_gallery(embeddings if gallery is None else gallery, expanded)
        for block in ranked_blocks(expanded, references, depth, distance="cosine", exclude_self=gallery is None):
            yield block.rows, block.indices.cpu()
        return
    places = int(depth.max())
    for rows, distances in reranked_distances(embeddings, gallery, k1=change.k1, k2=change.k2, weight=change.weight):
        if gallery is None:
            distances.scatter_(1, rows[:, None].to(distances.device), torch.inf)
        # Equal ones by index, and what differs by rounding alone is equal.
        yield rows, distances.round(decimals=12).argsort(dim=1, stable=True)[:, :places].cpu()
