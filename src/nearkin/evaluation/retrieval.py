"""Retrieval scores, and any scores by name with one search for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearkin import ranks
from nearkin.errors import RecipeError
from nearkin.evaluation.clustering import clustering_scores
from nearkin.evaluation.neighbours import Distance, Floats, Ints, rank
from nearkin.evaluation.reranking import Rerank, reranked
from nearkin.evaluation.scores import ClusteringScore, EmbeddingScore, RetrievalScore, score_named
from nearkin.evaluation.vectors import ArrayLike, as_gallery, as_vectors, check_distance, label_array
from nearkin.numerics import Normalisation

RANKING_SCORES = ("R@1", "R@2", "R@4", "R@8", "P@R", "MAP@R")


def retrieval_scores(
    embeddings: ArrayLike,
    labels: ArrayLike,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    *,
    scores: Sequence[str] = RANKING_SCORES,
    distance: Distance = "cosine",
    device: torch.device | str | None = None,
    rerank: Rerank | None = None,
    by_all: bool = False,
) -> dict[str, float]:
    """Exact retrieval scores, as fractions, averaged over the queries.

    Without a gallery every embedding is searched among the others, itself left out by its index. With a gallery
    nothing is left out. Equal distances are ordered by index. A query without any true reference is not counted;
    ``queries_without_match`` says how many those were. With R the number of true references of a query:

    * ``R@k``: 1 if any of the first k is true; ``MRR@k``: 1 / i with i the rank of the first that is true;
    * ``P@R``: the fraction of the first R that are true, and ``P@k`` of the first k;
    * ``MAP@R``: (1/R) Σ over i ≤ R of P@i · rel_i, and ``MAP@k`` the same with k for R;
    * ``nDCG@k``: Σ over i ≤ k of (2^rel_i − 1) / log2(i + 1), divided by its best value, that of min(k, R) hits first.

    Ranks beyond the end of the gallery count as misses. Memory stays bounded: no N × N matrix is built.

    Args:
        embeddings: ``[Q, D]``, tensor or array, which may be a memory-mapped file.
        labels: ``[Q]``, any integers.
        gallery: ``[N, D]``, the references to search, or None.
        gallery_labels: ``[N]``, needed with a gallery.
        scores: their names, with any numbers for the k.
        distance: ``"cosine"`` or ``"euclidean"``.
        device: where the work is done; by default where the embeddings are. The scores are the same everywhere.
        rerank: orders every ranking again by common neighbours; needs the distance ``"cosine"``.
        by_all: whether all processes of a run call this with the same embeddings; each then does a share of the work.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.6, 0.5]])
        >>> retrieval_scores(embeddings, [7, 7, 9, 9], scores=["R@1", "P@R", "nDCG@2"])
        {'R@1': 0.75, 'P@R': 0.75, 'nDCG@2': 0.75, 'queries_without_match': 0.0}
    """
    wanted = [score for score in map(score_named, dict.fromkeys(scores)) if isinstance(score, RetrievalScore)]
    if len(wanted) < len(set(scores)):
        raise ValueError(f"scores must be of rankings, got {', '.join(scores)}: nearkin.evaluation.measure takes all")
    check_distance(distance)
    if rerank is not None and distance != "cosine":
        raise RecipeError("rankings are re-ranked by angle, and this encoder compares by distance")
    if (gallery is None) != (gallery_labels is None):
        given, missing = ("gallery", "gallery_labels") if gallery_labels is None else ("gallery_labels", "gallery")
        raise ValueError(f"{missing} must be given together with {given}, got {given} alone")
    queries = as_vectors(embeddings, "embeddings", device)
    references = queries if gallery is None else as_gallery(gallery, queries)
    classes = label_array(labels, "labels", rows=len(queries))
    reference_classes = classes
    if gallery is not None:
        reference_classes = label_array(gallery_labels, "gallery_labels", rows=len(references))

    # Numbered 0, 1, … so that counting works for labels of any size; the larger ones last.
    _, ids, sizes = np.unique(np.concatenate([classes, reference_classes]), return_inverse=True, return_counts=True)
    ids = np.argsort(np.argsort(sizes, kind="stable"))[ids]
    query_ids, reference_ids = ids[: len(classes)], ids[len(classes) :]
    num_true = np.bincount(reference_ids, minlength=len(sizes))[query_ids] - int(gallery is None)
    counted = num_true > 0
    if not counted.any():
        alone = "is the only one of its class" if gallery is None else "is of a class that the gallery does not have"
        raise ValueError(
            "labels must give at least one query a true reference, got none: "
            f"each of the {len(queries)} queries {alone}"
        )

    available = len(references) - int(gallery is None)
    depth, first_depth = depths(wanted, num_true, available)
    values = torch.zeros(len(wanted), len(queries), dtype=torch.float64)
    without_hit = np.zeros(len(queries), dtype=bool)

    def score(rows: Ints, indices: Ints, _: Floats | None = None) -> None:
        # Always on the CPU, where the sums have the same order whatever device made the ranking.
        hits = torch.from_numpy(reference_ids[indices] == query_ids[rows, None])
        for number, one in enumerate(wanted):
            values[number, rows] = one.per_query(hits, torch.from_numpy(num_true[rows]))
        without_hit[rows] = ~hits.any(dim=1).numpy()

    if rerank is not None:
        for rows, order in reranked(queries.source, None if gallery is None else references.source, rerank=rerank):
            score(rows.numpy(), order[:, : first_depth.max()].cpu().numpy())
    else:
        local = counted & (np.arange(len(queries)) % ranks.world() == ranks.rank()) if by_all else counted
        settings: Any = {"distance": distance, "exclude_self": gallery is None, "classes": (query_ids, reference_ids)}
        rank(queries, references, np.where(local, depth, 0), score, **settings)
        # Where only the first hit matters, a query that has found one need not be ranked deeper.
        deeper = without_hit & (first_depth > depth)
        rank(queries, references, np.where(deeper, first_depth, 0), score, **settings)
        if by_all:
            ranks.add_up_([values])
    of_counted = values[:, torch.from_numpy(counted)]
    means = {one.name: float(column.mean()) for one, column in zip(wanted, of_counted, strict=True)}
    return means | {"queries_without_match": float((~counted).sum())}


def depths(scores: Sequence[RetrievalScore], num_true: Ints, available: int) -> tuple[Ints, Ints]:
    """For each query, the rank down to which all true references matter, and down to which the first one does."""
    first = max((score.k for score in scores), default=1)
    others = max((score.k for score in scores if not score.first_hit_only), default=1)
    depth = np.clip(num_true, min(others, available), available)
    return depth, np.maximum(depth, min(first, available))


def measure(
    scores: Sequence[str],
    embeddings: ArrayLike,
    labels: ArrayLike,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    *,
    distance: Distance = "cosine",
    rerank: Rerank | None = None,
    by_all: bool = False,
) -> dict[str, float]:
    """Scores of the catalogue by their names.

    All scores of rankings come from one search by :func:`retrieval_scores`, which explains ``rerank`` and ``by_all``.
    All scores of clusters come from one clustering by angle. These, and scores of how embeddings lie, take
    ``embeddings`` alone, without the gallery.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> measure(["R@1", "MRR@2", "NMI"], embeddings, [7, 7, 9, 9])
    {'R@1': 1.0, 'MRR@2': 1.0, 'queries_without_match': 0.0, 'NMI': 1.0}
    """
    wanted = [score_named(name) for name in dict.fromkeys(scores)]
    results: dict[str, float] = {}
    if ranked := [score.name for score in wanted if isinstance(score, RetrievalScore)]:
        results |= retrieval_scores(
            embeddings, labels, gallery, gallery_labels, scores=ranked, distance=distance, rerank=rerank, by_all=by_all
        )
    of_embeddings = [score for score in wanted if isinstance(score, EmbeddingScore)]
    results |= {score.name: score.of_embeddings(embeddings, labels) for score in of_embeddings}
    if clustered := [score for score in wanted if isinstance(score, ClusteringScore)]:
        results |= clustering_scores(embeddings, labels, scores=clustered)
    return results


def concatenate_embeddings(parts: Sequence[Tensor], *, normalisation: Normalisation = "l2") -> Tensor:
    """Embeddings of the same images by several models, ``[N, D]`` each, concatenated: ``[N, ΣD]``.

    Each model's embeddings are scaled to length 1 first, so that all models count the same. Embeddings in the ball keep
    their length, which carries meaning; their squared distances add up.

    >>> concatenate_embeddings([torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0]])]).tolist()
    [[0.6000000238418579, 0.800000011920929, 0.0, 1.0]]
    """
    if not parts or len({len(part) for part in parts}) > 1:
        raise ValueError(f"parts must be embeddings of the same images, got {[len(part) for part in parts]} rows")
    if normalisation == "l2":
        parts = [torch.nn.functional.normalize(part, dim=1) for part in parts]
    return torch.cat(list(parts), dim=1)
