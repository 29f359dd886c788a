"""Protocols: the only place that knows which rows train, which choose the epoch and which are scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nearkin.data.table import ImageTable
from nearkin.errors import DataError
from nearkin.evaluation.clustering import clustering_scores
from nearkin.evaluation.covering import covering_radius
from nearkin.evaluation.retrieval import retrieval_scores

if TYPE_CHECKING:
    from nearkin.recipe import ProtocolSection

Embed = Callable[[NDArray[np.int64]], Tensor]


@dataclass(frozen=True)
class EvaluationSet:
    """Rows that look for their like among ``gallery`` rows, or among themselves when that is None."""

    query: NDArray[np.int64]
    gallery: NDArray[np.int64] | None = None


class Protocol:
    """Splits a table by class and scores embeddings of its parts.

    ``conventional``: every evaluation is on the test classes; the reported figure is the best of them, as the papers
    report it, and the last is kept beside it. ``validation``: some training classes are held out, the best evaluation
    on those chooses the epoch, and the test classes are scored once, at the end. Where there are too few classes to
    hold any out, the last epoch is reported.
    """

    def __init__(self, section: ProtocolSection, table: ImageTable) -> None:
        self.section = section
        self.table = table
        table = _with_test_classes(table, section.test_share, section.split_seed)
        train = np.flatnonzero(table.splits == "train")
        self.validation: EvaluationSet | None = None
        if section.name == "validation":
            held_out = np.flatnonzero(table.splits == "validation")
            if not len(held_out):
                held_out = _choose_classes(table, train, section.validation_share, section.split_seed + 1, keep=4)
            train = np.setdiff1d(train, held_out)
            self.validation = EvaluationSet(held_out) if len(held_out) else None
        self.train_rows = train
        self.test = _test_set(table)

    def check_trainable(self) -> None:
        """Training needs two classes; scoring a trained encoder on other data does not."""
        classes = len(np.unique(self.table.labels[self.train_rows]))
        if classes < 2:
            raise DataError(
                f"{self.table.name!r} leaves {classes} classes to train on; at least 2 are needed. Add classes, or "
                f"lower protocol.test_share ({self.section.test_share})."
            )

    @property
    def test_classes(self) -> str:
        """In words, whether training has seen the classes that are scored, as it has where a split is by image."""
        if self.test is None:
            return "no test classes"
        seen = np.isin(self.table.labels[self.test.query], self.table.labels[self.train_rows]).any()
        return "classes also seen in training" if seen else "classes never seen in training"

    @property
    def selects_on(self) -> Literal["validation", "test", "last"]:
        """What chooses the reported evaluation."""
        if self.validation is not None:
            return "validation"
        return "test" if self.section.name == "conventional" and self.test is not None else "last"

    @property
    def select_by(self) -> str:
        return self.section.select_by or ("R@1" if self.section.name == "conventional" else "MAP@R")

    @property
    def selection_rule(self) -> str:
        """The rule in words, for every table that shows a score."""
        if self.selects_on == "last":
            return "last epoch"
        return f"best {self.select_by} on the {self.selects_on} classes"

    def selection_set(self) -> EvaluationSet | None:
        return self.validation if self.validation is not None else (self.test if self.selects_on == "test" else None)

    def score(
        self, part: EvaluationSet, embed: Embed, *, distance: Literal["cosine", "euclidean"], final: bool = False
    ) -> dict[str, float]:
        """Retrieval scores of a part; when ``final``, covering radius too, and clustering where the recipe asks."""
        section = self.section
        references = part.query if part.gallery is None else part.gallery
        if not _has_a_match(self.table.labels, part):
            raise DataError(
                f"no image of the {len(part.query)} to be scored in {self.table.name!r} has another of its class among "
                f"the {len(references)} it is searched in: test classes need two images or more"
            )
        ranks: dict[str, Any] = {
            "recall_at": section.recall_at,
            "precision_at": section.precision_at,
            "map_at": section.map_at,
            "ndcg_at": section.ndcg_at,
            "distance": distance,
        }
        query, labels = embed(part.query), self.table.labels[part.query]
        if part.gallery is None:
            scores = retrieval_scores(query, labels, **ranks)
        else:
            scores = retrieval_scores(query, labels, embed(part.gallery), self.table.labels[part.gallery], **ranks)
        if final or section.covering:
            scores |= covering_radius(query, labels)
        if final and section.clustering:
            scores |= clustering_scores(query, labels)
        return scores


def _with_test_classes(table: ImageTable, share: float, seed: int) -> ImageTable:
    """Give a table that has no test rows some, by class."""
    if share == 0 or any(table.has_split(name) for name in ("test", "query", "gallery")):
        return table
    train = np.flatnonzero(table.splits == "train")
    test = _choose_classes(table, train, share, seed, keep=2)
    if not len(test):
        raise DataError(
            f"{table.name!r} has {len(table.classes())} classes; a score on classes never seen in training needs at "
            f"least 4 with 2 images or more in two of them. Add classes, or set protocol.test_share=0 to train "
            f"without a score."
        )
    splits = table.splits.astype("<U10")
    splits[test] = "test"
    return table.with_splits(splits)


def _choose_classes(
    table: ImageTable, rows: NDArray[np.int64], share: float, seed: int, *, keep: int
) -> NDArray[np.int64]:
    """Rows of a share of the classes, at least two, drawn among classes with two images or more; ``keep`` stay."""
    labels, counts = np.unique(table.labels[rows], return_counts=True)
    wanted = min(max(2, round(share * len(labels))), len(labels) - keep)
    eligible = labels[counts >= 2]
    if share == 0 or wanted < 2 or len(eligible) < wanted:
        return np.empty(0, dtype=np.int64)
    chosen = np.random.Generator(np.random.Philox(seed)).choice(eligible, wanted, replace=False)
    return rows[np.isin(table.labels[rows], chosen)]


def _has_a_match(labels: NDArray[np.int64], part: EvaluationSet) -> bool:
    if part.gallery is not None:
        return bool(np.isin(labels[part.query], labels[part.gallery]).any())
    return len(np.unique(labels[part.query])) < len(part.query)


def _test_set(table: ImageTable) -> EvaluationSet | None:
    if table.has_split("query") and table.has_split("gallery"):
        return EvaluationSet(np.flatnonzero(table.splits == "query"), np.flatnonzero(table.splits == "gallery"))
    test = np.flatnonzero(table.splits == "test")
    return EvaluationSet(test) if len(test) else None
