"""Scores of an embedding: exact retrieval, clustering, and the neighbours behind them."""

from __future__ import annotations

from nearkin.evaluation.clustering import clustering_scores, kmeans
from nearkin.evaluation.measurement import measure
from nearkin.evaluation.neighbours import nearest
from nearkin.evaluation.retrieval import ranking_scores, retrieval_scores
from nearkin.evaluation.scores.f1 import pairwise_f1
from nearkin.evaluation.scores.nmi import normalised_mutual_information

__all__ = [
    "clustering_scores",
    "kmeans",
    "measure",
    "nearest",
    "normalised_mutual_information",
    "pairwise_f1",
    "ranking_scores",
    "retrieval_scores",
]
