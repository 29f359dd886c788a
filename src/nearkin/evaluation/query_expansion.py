"""α-query expansion: a query moved towards what it finds."""

from __future__ import annotations

import torch
from torch import Tensor

from nearkin.evaluation.neighbours import nearest
from nearkin.evaluation.vectors import ArrayLike, as_count, as_float64

ALPHA = 3.0
"""As in the paper."""

# Numbers of neighbours that are added up at a time.
_AT_ONCE = 1 << 24


def expand_queries(queries: ArrayLike, gallery: ArrayLike | None = None, *, k: int, alpha: float = ALPHA) -> Tensor:
    """Each query ``[Q, D]`` plus its ``k`` nearest gallery rows x, weighted by max(cos(q, x), 0)^alpha, at length 1.

    αQE of Radenović, Tolias and Chum (2019). Without a gallery the queries are searched among themselves, each without
    itself. It is transductive: what a query becomes depends on the other test images, though never on a label.
    ``alpha`` 0 is plain average query expansion. float64.

    >>> query, gallery = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.6, 0.8], [-1.0, 0.0]])
    >>> expand_queries(query, gallery, k=1, alpha=1).round(decimals=4)
    tensor([[0.9430, 0.3328]], dtype=torch.float64)
    """
    if not alpha >= 0:
        raise ValueError(f"alpha must be at least 0, got {alpha}")
    asked = as_float64(queries, "queries")
    found = asked if gallery is None else as_float64(gallery, "gallery").to(asked.device)
    k = min(as_count(k, "k"), len(found) - int(gallery is None))
    indices, similarities = nearest(asked, None if gallery is None else found, k=k)
    asked, found = _unit(asked), _unit(found)
    results = torch.empty_like(asked)
    step = max(1, _AT_ONCE // (k * asked.shape[1]))
    for start in range(0, len(asked), step):
        part = slice(start, start + step)
        results[part] = expanded(asked[part], found[indices[part]], similarities[part], alpha=alpha)
    return results


def expanded(queries: Tensor, neighbours: Tensor, similarities: Tensor, *, alpha: float = ALPHA) -> Tensor:
    """Queries ``[Q, D]`` plus their neighbours ``[Q, k, D]`` weighted by similarity^alpha ``[Q, k]``, at length 1."""
    weights = similarities.clamp_min(0.0) ** alpha * (similarities > 0)
    return _unit(queries + (weights[..., None] * neighbours).sum(dim=1))


def _unit(x: Tensor) -> Tensor:
    lengths = x.norm(dim=1, keepdim=True)
    return x / torch.where(lengths > 0, lengths, 1.0)
