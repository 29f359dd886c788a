"""Scores of an embedding: exact retrieval, clustering, and the neighbours behind them.

Names are imported when they are first used, since neighbours are also found where torch is not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearkin.evaluation.clustering import clustering_scores as clustering_scores
    from nearkin.evaluation.clustering import kmeans as kmeans
    from nearkin.evaluation.neighbours import nearest as nearest
    from nearkin.evaluation.retrieval import measure as measure
    from nearkin.evaluation.retrieval import retrieval_scores as retrieval_scores
    from nearkin.evaluation.scores.f1 import pairwise_f1 as pairwise_f1
    from nearkin.evaluation.scores.nmi import normalised_mutual_information as normalised_mutual_information

_HOMES = {
    "clustering_scores": "clustering",
    "kmeans": "clustering",
    "measure": "retrieval",
    "nearest": "neighbours",
    "normalised_mutual_information": "scores.nmi",
    "pairwise_f1": "scores.f1",
    "retrieval_scores": "retrieval",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"nearkin.evaluation.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'nearkin.evaluation' has no attribute {name!r}")
