"""Any scores by their names, each kind with one pass over the embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nearkin.evaluation.clustering import clustering_scores
from nearkin.evaluation.neighbours import Distance
from nearkin.evaluation.retrieval import score_rankings
from nearkin.evaluation.scores import ClusteringScore, EmbeddingScore, RetrievalScore, score_named
from nearkin.evaluation.vectors import ArrayLike
from nearkin.numerics import Normalisation


def measure(
    scores: Sequence[str],
    embeddings: ArrayLike,
    labels: ArrayLike,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    *,
    distance: Distance = "cosine",
    by_all: bool = False,
) -> dict[str, float]:
    """Scores of the catalogue by their names.

    Those of rankings share one search, as :func:`retrieval_scores` does it, and those of clusters one clustering by
    angle. Clusters and the places of the embeddings are those of ``embeddings`` alone, without the gallery. ``by_all``
    says that all processes of a run call this with the same embeddings: each then does a share of the search.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> measure(["R@1", "MRR@2", "NMI"], embeddings, [7, 7, 9, 9])
    {'R@1': 1.0, 'MRR@2': 1.0, 'queries_without_match': 0.0, 'NMI': 1.0}
    """
    wanted = [score_named(name) for name in dict.fromkeys(scores)]
    found: dict[str, float] = {}
    if ranked := [score for score in wanted if isinstance(score, RetrievalScore)]:
        found |= score_rankings(
            embeddings, labels, gallery, gallery_labels, scores=ranked, distance=distance, by_all=by_all
        )
    placed = [score for score in wanted if isinstance(score, EmbeddingScore)]
    found |= {score.name: score.of_embeddings(embeddings, labels) for score in placed}
    if clustered := [score for score in wanted if isinstance(score, ClusteringScore)]:
        found |= clustering_scores(embeddings, labels, scores=clustered)
    return found


def concatenate_embeddings(parts: Sequence[Tensor], *, normalisation: Normalisation = "l2") -> Tensor:
    """Embeddings of the same images by several models, ``[N, D]`` each, concatenated: ``[N, ΣD]``.

    Each model's are brought to length 1 first, so that all count the same. Those in the ball stay as they are, as
    their length means something; their squared distances add up.

    >>> concatenate_embeddings([torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0]])]).tolist()
    [[0.6000000238418579, 0.800000011920929, 0.0, 1.0]]
    """
    if not parts or len({len(part) for part in parts}) > 1:
        raise ValueError(f"parts must be embeddings of the same images, got {[len(part) for part in parts]} rows")
    if normalisation == "l2":
        parts = [torch.nn.functional.normalize(part, dim=1) for part in parts]
    return torch.cat(list(parts), dim=1)
