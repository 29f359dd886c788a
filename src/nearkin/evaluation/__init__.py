"""Scores of an embedding: exact retrieval, clustering, and the neighbours behind them."""

from __future__ import annotations

from nearkin.evaluation.clustering import clustering_scores, kmeans, normalised_mutual_information, pairwise_f1
from nearkin.evaluation.covering import covering_radius
from nearkin.evaluation.neighbours import nearest
from nearkin.evaluation.retrieval import ranking_scores, retrieval_scores

__all__ = [
    "clustering_scores",
    "covering_radius",
    "kmeans",
    "nearest",
    "normalised_mutual_information",
    "pairwise_f1",
    "ranking_scores",
    "retrieval_scores",
]
