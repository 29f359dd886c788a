"""Retrieval scores: what fraction of the nearest neighbours are of the query's own kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from nearkin.evaluation.neighbours import (
    ArrayLike,
    Distance,
    as_count,
    as_gallery,
    as_vectors,
    check_distance,
    ranked_blocks,
)

Cutoffs = Mapping[str, tuple[int, ...]]


def retrieval_scores(
    embeddings: ArrayLike,
    labels: ArrayLike,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    *,
    recall_at: Sequence[int] = (1, 2, 4, 8),
    precision_at: Sequence[int] = (),
    map_at: Sequence[int] = (),
    ndcg_at: Sequence[int] = (),
    distance: Distance = "cosine",
) -> dict[str, float]:
    """Exact retrieval scores, as fractions, averaged over the queries.

    Without a gallery every embedding is searched among the others, itself left out by its index. With a gallery
    nothing is left out. Equal distances are ordered by index. A query without any true reference is not counted;
    ``queries_without_match`` says how many those were. With R the number of true references of a query:

    * ``R@k``: 1 if any of the first k is true;
    * ``P@R``: the fraction of the first R that are true, and ``P@k`` of the first k;
    * ``MAP@R``: (1/R) Σ over i ≤ R of P@i · rel_i, and ``MAP@k`` the same with k for R;
    * ``nDCG@k``: Σ over i ≤ k of (2^rel_i − 1) / log2(i + 1), divided by its best value, that of min(k, R) hits first.

    Places beyond the end of the gallery count as misses. Memory stays bounded: no N × N matrix is built.

    Args:
        embeddings: ``[Q, D]``, tensor or array; the work is done on its device, in float64.
        labels: ``[Q]``, any integers.
        gallery: ``[N, D]``, the references to search, or None.
        gallery_labels: ``[N]``, needed with a gallery.
        recall_at: the k of ``R@k``.
        precision_at: the k of ``P@k``.
        map_at: the k of ``MAP@k``.
        ndcg_at: the k of ``nDCG@k``.
        distance: ``"cosine"`` or ``"euclidean"``.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.6, 0.5]])
        >>> retrieval_scores(embeddings, [7, 7, 9, 9], recall_at=(1,))
        {'R@1': 0.75, 'P@R': 0.75, 'MAP@R': 0.75, 'queries_without_match': 0.0}
    """
    check_distance(distance)
    cutoffs = _cutoffs(recall_at=recall_at, precision_at=precision_at, map_at=map_at, ndcg_at=ndcg_at)
    if (gallery is None) != (gallery_labels is None):
        given, missing = ("gallery", "gallery_labels") if gallery_labels is None else ("gallery_labels", "gallery")
        raise ValueError(f"{missing} must be given together with {given}, got {given} alone")
    queries = as_vectors(embeddings, "embeddings")
    references = queries if gallery is None else as_gallery(gallery, queries)
    classes = as_labels(labels, "labels", rows=len(queries))
    reference_classes = classes
    if gallery is not None:
        reference_classes = as_labels(gallery_labels, "gallery_labels", rows=len(references))

    # Numbered 0, 1, … so that counting works for labels of any size.
    names, ids = torch.unique(torch.cat([classes, reference_classes]), return_inverse=True)
    query_ids, reference_ids = ids[: len(classes)], ids[len(classes) :]
    num_true = torch.bincount(reference_ids, minlength=len(names))[query_ids] - int(gallery is None)
    counted = num_true > 0
    if not bool(counted.any()):
        alone = "is the only one of its class" if gallery is None else "is of a class that the gallery does not have"
        raise ValueError(
            "labels must give at least one query a true reference, got none: "
            f"each of the {len(queries)} queries {alone}"
        )

    available = len(references) - int(gallery is None)
    deepest = max((k for ks in cutoffs.values() for k in ks), default=1)
    depth = num_true.clamp(min=min(deepest, available), max=available) * counted
    on_device = reference_ids.to(queries.device)
    scores: dict[str, Tensor] = {}
    for block in ranked_blocks(queries, references, depth, distance=distance, exclude_self=gallery is None):
        hits = on_device[block.indices].cpu() == query_ids[block.rows, None]
        for name, values in _scores_per_query(hits, num_true[block.rows], cutoffs).items():
            scores.setdefault(name, torch.zeros(len(queries), dtype=torch.float64))[block.rows] = values
    return _means({name: values[counted] for name, values in scores.items()}, left_out=int((~counted).sum()))


def ranking_scores(
    hits: ArrayLike,
    num_true: ArrayLike,
    *,
    recall_at: Sequence[int] = (1, 2, 4, 8),
    precision_at: Sequence[int] = (),
    map_at: Sequence[int] = (),
    ndcg_at: Sequence[int] = (),
) -> dict[str, float]:
    """The scores of :func:`retrieval_scores` for rankings that are already there.

    Args:
        hits: ``[Q, L]``, true (or 1) where the reference at that place is of the query's class.
        num_true: ``[Q]``, R: how many true references each query has in the whole gallery, found or not. Queries
            with none are not counted.
        recall_at: the k of ``R@k``.
        precision_at: the k of ``P@k``.
        map_at: the k of ``MAP@k``.
        ndcg_at: the k of ``nDCG@k``.

    Places beyond L count as misses, also for ``P@R`` and ``MAP@R`` of a query with R > L: rank at least as deep as
    the largest R when those are to be exact.

    Example:
        >>> scores = ranking_scores([[1, 0, 1, 0]], [4], recall_at=(1,), map_at=(2,), ndcg_at=(4,))
        >>> {name: round(value, 3) for name, value in scores.items()}
        {'R@1': 1.0, 'P@R': 0.5, 'MAP@R': 0.417, 'MAP@2': 0.5, 'nDCG@4': 0.586, 'queries_without_match': 0.0}
    """
    cutoffs = _cutoffs(recall_at=recall_at, precision_at=precision_at, map_at=map_at, ndcg_at=ndcg_at)
    found = hits.detach().cpu() if isinstance(hits, Tensor) else torch.from_numpy(np.array(hits))
    if found.ndim != 2 or 0 in found.shape:
        raise ValueError(f"hits must have shape [Q, L] with at least one row and one place, got {list(found.shape)}")
    if not bool(((found == 0) | (found == 1)).all()):
        raise ValueError("hits must be true or false (1 or 0), got other values")
    found = found.bool()
    true = as_labels(num_true, "num_true", rows=len(found))
    too_many = found.sum(dim=1) > true
    if bool(too_many.any()) or bool((true < 0).any()):
        row = int((too_many | (true < 0)).nonzero()[0])
        raise ValueError(
            f"num_true must be at least the number of hits of its row, got {int(true[row])} "
            f"for the {int(found[row].sum())} hits of row {row}"
        )
    counted = true > 0
    if not bool(counted.any()):
        raise ValueError("num_true must be positive for at least one query, got none")
    return _means(_scores_per_query(found[counted], true[counted], cutoffs), left_out=int((~counted).sum()))


def as_labels(labels: ArrayLike, name: str, *, rows: int | None = None) -> Tensor:
    """``labels`` as an int64 tensor ``[rows]`` on the CPU."""
    if isinstance(labels, Tensor):
        # Not every floating point type of torch has a NumPy one.
        labels = (labels.float() if labels.is_floating_point() else labels).detach().cpu().numpy()
    array = np.asarray(labels)
    if array.ndim != 1 or (rows is not None and len(array) != rows):
        raise ValueError(f"{name} must have shape [{'N' if rows is None else rows}], got {list(array.shape)}")
    if len(array) == 0:
        raise ValueError(f"{name} must hold at least one value, got none")
    if array.dtype.kind not in "iu":
        what = "integers beyond 64 bits or mixed types" if array.dtype.kind == "O" else str(array.dtype)
        raise ValueError(
            f"{name} must be integers, got {what}; to number other labels use "
            f"numpy.unique({name}, return_inverse=True)[1]"
        )
    if array.dtype.kind == "u" and int(array.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"{name} must fit in int64, got {int(array.max())}")
    return torch.from_numpy(array.astype(np.int64))


def _cutoffs(**given: Sequence[int]) -> Cutoffs:
    cutoffs = {}
    for name, ks in given.items():
        if isinstance(ks, str) or not hasattr(ks, "__iter__"):
            raise ValueError(f"{name} must be a sequence of integers of at least 1, got {ks!r}")
        cutoffs[name] = tuple(as_count(k, f"each k of {name}") for k in ks)
    return cutoffs


def _scores_per_query(hits: Tensor, num_true: Tensor, cutoffs: Cutoffs) -> dict[str, Tensor]:
    """Each score ``[Q]`` of the rankings ``hits [Q, L]`` of queries that all have ``num_true > 0``.

    Done on the CPU whatever ranked them: the same sums in the same order everywhere, and float64 everywhere.
    """
    length = hits.shape[1]
    place = torch.arange(1, length + 1)
    found = hits.cumsum(dim=1)
    precision_at_hits = (found / place.double()).mul_(hits)

    def found_by(k: int) -> Tensor:
        return found[:, min(k, length) - 1].double()

    scores = {f"R@{k}": (found_by(k) > 0).double() for k in cutoffs["recall_at"]}
    scores["P@R"] = found.gather(1, num_true.clamp_max(length)[:, None] - 1)[:, 0] / num_true.double()
    scores["MAP@R"] = torch.where(place <= num_true[:, None], precision_at_hits, 0.0).sum(dim=1) / num_true
    scores |= {f"P@{k}": found_by(k) / k for k in cutoffs["precision_at"]}
    scores |= {f"MAP@{k}": precision_at_hits[:, :k].sum(dim=1) / k for k in cutoffs["map_at"]}
    if cutoffs["ndcg_at"]:
        best_hits = min(max(cutoffs["ndcg_at"]), max(length, int(num_true.max())))
        discount = 1.0 / torch.log2(torch.arange(2, best_hits + 2, dtype=torch.float64))
        best = discount.cumsum(dim=0)
        gained = (hits[:, :best_hits] * discount[:length]).cumsum(dim=1)
        for k in cutoffs["ndcg_at"]:
            scores[f"nDCG@{k}"] = gained[:, min(k, length) - 1] / best[num_true.clamp_max(k) - 1]
    return scores


def _means(scores: Mapping[str, Tensor], *, left_out: int) -> dict[str, float]:
    return {name: float(values.mean()) for name, values in scores.items()} | {"queries_without_match": float(left_out)}
