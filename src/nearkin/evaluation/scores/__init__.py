"""Scores, one file each. The catalogue is read off the files: adding a score is adding a file."""

from __future__ import annotations

import functools

from nearkin.catalogue import parts_of
from nearkin.errors import RecipeError, did_you_mean
from nearkin.evaluation.scores._score import ClusteringScore, EmbeddingScore, RetrievalScore, Score

__all__ = ["ClusteringScore", "EmbeddingScore", "RetrievalScore", "Score", "catalogue", "is_score", "score_named"]


@functools.cache
def catalogue() -> dict[str, type[Score]]:
    """Every score by its file name.

    >>> list(catalogue()["precision"].meanings)
    ['P@R', 'P@k']
    """
    return parts_of(__name__, __path__)


def score_named(name: str) -> Score:
    """The score that recipes, score files and tables call so.

    >>> score_named("covering_radius").heading
    'covering radius'
    >>> score_named("R@0")
    Traceback (most recent call last):
    ...
    nearkin.errors.RecipeError: unknown score 'R@0': did you mean 'R@k'? Valid: F1, MAP@R, MAP@k, MRR@k, NMI, P@R, ...
    """
    for family in catalogue().values():
        if (score := family.named(name)) is not None:
            return score
    names = [known for family in catalogue().values() for known in family.meanings]
    raise RecipeError(f"unknown score {name!r}: {did_you_mean(name, names)}")


def is_score(name: str) -> bool:
    """Whether :func:`score_named` knows it: rows of evaluations also have an epoch, a step and seconds.

    >>> is_score("R@16"), is_score("seconds")
    (True, False)
    """
    return any(family.named(name) is not None for family in catalogue().values())
