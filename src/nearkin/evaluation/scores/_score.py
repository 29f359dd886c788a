"""What a score is: its names, how it is written, what it means, when it is measured and how it is computed."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from nearkin.evaluation.vectors import ArrayLike


@dataclass(frozen=True)
class Score(ABC):
    """A score under one of its names. A file of this package defines one of the three kinds below.

    >>> from nearkin.evaluation.scores import score_named
    >>> score_named("R@8").text(0.6571, 0.0042), score_named("covering_radius").text(0.4119)
    ('65.7 ± 0.4', '0.412')
    """

    name: str
    k: int = 0
    """How many places of a ranking count; 0 where the name has no number."""

    meanings: ClassVar[Mapping[str, str]]
    """Its names, where ``@k`` stands for any number of places, and what each means in plain words."""
    title: ClassVar[str] = ""
    """What tables call it; default: its name."""
    in_percent: ClassVar[bool] = True
    digits: ClassVar[int] = 1
    higher_is_better: ClassVar[bool] = True
    shown: ClassVar[bool] = True
    """Whether tables show it unasked."""
    every_evaluation: ClassVar[bool] = True
    """Whether it is measured at every evaluation or, because that takes long, only at the end."""

    @classmethod
    def named(cls, name: str) -> Self | None:
        """The score of that name; None if it is not one of these."""
        stem, _, k = name.partition("@")
        if f"{stem}@k" in cls.meanings and re.fullmatch(r"[1-9]\d{0,8}", k):
            return cls(name, int(k))
        return cls(name) if name in cls.meanings and k != "k" else None

    @property
    def heading(self) -> str:
        return self.title or self.name

    @property
    def meaning(self) -> str:
        return self.meanings[f"{self.name.partition('@')[0]}@k" if self.k else self.name]

    def text(self, mean: float, spread: float | None = None) -> str:
        """The score as tables show it."""
        scale = 100 if self.in_percent else 1
        return " ± ".join(f"{scale * value:.{self.digits}f}" for value in (mean, spread) if value is not None)


class RetrievalScore(Score):
    """A score of rankings: the mean over the queries."""

    first_hit_only: ClassVar[bool] = False
    """Whether only the place of the first hit matters: a query with an early one then need not be looked at further."""

    @abstractmethod
    def per_query(self, hits: Tensor, num_true: Tensor) -> Tensor:
        """Of each query ``[Q]``, in float64.

        Args:
            hits: bool ``[Q, L]``, whether the reference at that place is of the query's class. L is at least k and the
                largest R, unless there are fewer references; places beyond L are misses.
            num_true: ``[Q]``, R: how many references are of the query's class, at least 1.
        """


class ClusteringScore(Score):
    """A score of a k-means clustering with as many clusters as there are classes."""

    every_evaluation = False

    @abstractmethod
    def of_clusters(self, clusters: ArrayLike, labels: ArrayLike) -> float:
        """From the cluster ``[N]`` and the class ``[N]`` of each embedding."""


class EmbeddingScore(Score):
    """A score of how the embeddings of the queries lie."""

    @abstractmethod
    def of_embeddings(self, embeddings: ArrayLike, labels: ArrayLike) -> float:
        """From the embeddings ``[N, D]`` and their classes ``[N]``."""
