"""Protocols: the only place that decides which rows train, which choose the epoch and which are scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nearkin.data.table import ImageTable
from nearkin.errors import DataError, RecipeError
from nearkin.evaluation.reranking import Rerank
from nearkin.evaluation.retrieval import measure
from nearkin.evaluation.scores import score_named
from nearkin.evaluation.splits import HOLDOUT, drawn_splits, with_wrong_labels
from nearkin.recipe import ProtocolSection

Embed = Callable[[NDArray[np.int64]], Tensor]

SELECTED_ON_TEST = ("conventional", "query-gallery")
"""Protocols that report the best evaluation of the test images; tables show the last epoch's next to it."""

AT_THE_END = ("covering_radius", "inter_class_distance")
"""Scores that every run measures at its end."""


@dataclass(frozen=True)
class EvaluationSet:
    """Query rows that are searched among the ``gallery`` rows, or among themselves where that is None."""

    query: NDArray[np.int64]
    gallery: NDArray[np.int64] | None = None

    @property
    def rows(self) -> NDArray[np.int64]:
        """All rows to embed: the queries, then the gallery."""
        return self.query if self.gallery is None else np.concatenate([self.query, self.gallery])


def select_by(section: ProtocolSection) -> str:
    """The score that chooses the epoch: by default R@1, and MAP@R in the reality check, as published.

    R@1 on validation classes predicts the order on test classes better than MAP@R does (``docs/choosing.md``).

    >>> from nearkin.recipe import ProtocolSection
    >>> select_by(ProtocolSection(name="validation")), select_by(ProtocolSection(name="mlrc"))
    ('R@1', 'MAP@R')
    """
    return section.select_by or ("MAP@R" if section.name == "mlrc" else "R@1")


def as_tested(rule: str, section: ProtocolSection) -> str:
    """A selection rule, followed by any unusual conditions under which images are embedded for scoring.

    >>> as_tested("last epoch", ProtocolSection(flip=True, eval_size=288))
    'last epoch; test crops of 288 pixels, embeddings averaged with those of mirror images'
    """
    conditions = []
    if section.eval_size is not None:
        conditions.append(f"test crops of {section.eval_size} pixels")
    elif section.eval_scale != 1:
        conditions.append(f"test crops {section.eval_scale:g} times as large as those of training")
    if section.flip:
        conditions.append("embeddings averaged with those of mirror images")
    return "; ".join(filter(None, (rule, ", ".join(conditions))))


def refuse_test_scores(section: ProtocolSection, what: str, *, instead: str) -> None:
    """Refuse training that would react to the scores of the test classes, unless the recipe allows it."""
    if section.name in SELECTED_ON_TEST and not section.monitor_test:
        raise RecipeError(
            f"under the {section.name} protocol {what} by the scores of the test classes: {instead}, "
            f"protocol.name=validation, or protocol.monitor_test=true, which every table then names"
        )


class Protocol:
    """Splits a table and scores embeddings of its parts.

    * ``conventional``: every evaluation is on the test classes. The best of them is reported, as in the papers, with
      the last one next to it.
    * ``query-gallery``: the same with test queries that are searched in a gallery (In-shop).
    * ``validation``: the best evaluation on held-out training classes chooses the epoch, and the test classes are
      scored once, at the end. With too few classes to hold any out, the last epoch is reported.
    * ``mlrc``: the classes that are not tested are cut, in order, into ``folds`` contiguous folds; ``fold`` is held out
      and chooses the epoch, the others train. :mod:`nearkin.studies.mlrc` trains one model per fold.
    * ``in-distribution``: test images are of training classes, as in MNIST; the last epoch is reported. Data without a
      test split get one by image.
    * ``everything``: every class trains and none is scored: an encoder for use.

    ``holdout_share``, ``train_share`` and ``label_noise`` only change the training images.

    Args:
        section: of the recipe.
        table: what is split.
        splits: an earlier :attr:`splits`, which is used as it is; None draws one.
        score_test: whether the test images may be scored; otherwise :attr:`test` is None.
    """

    def __init__(
        self,
        section: ProtocolSection,
        table: ImageTable,
        *,
        splits: NDArray[np.str_] | None = None,
        score_test: bool = True,
    ) -> None:
        self.section = section
        self.table = table
        self.splits = drawn_splits(section, table) if splits is None else splits
        """The part of each row; see :func:`~nearkin.evaluation.splits.drawn_splits`."""
        held_out = np.flatnonzero(self.splits == "validation")
        self.train_rows = np.flatnonzero(self.splits == "train")
        self.validation = EvaluationSet(held_out) if len(held_out) else None
        self.holdout = np.flatnonzero(self.splits == HOLDOUT)
        """Images of training classes that do not train."""
        query, gallery, test = (np.flatnonzero(self.splits == name) for name in ("query", "gallery", "test"))
        self._test_images = EvaluationSet(test) if len(test) else None
        if len(query) and len(gallery):
            self._test_images = EvaluationSet(query, gallery)
        self.test = self._test_images if score_test else None

    def check_trainable(self) -> None:
        """Refuse data that do not suit the protocol; the error says what to do."""
        name, section, labels = self.table.name, self.section, self.table.labels
        if section.name == "query-gallery" and (self._test_images is None or self._test_images.gallery is None):
            raise DataError(
                f"the query-gallery protocol needs images of the splits 'query' and 'gallery', and {name!r} lacks one: "
                f"use protocol.name=conventional, or a manifest whose split column says query and gallery"
            )
        if section.name == "in-distribution" and self._test_images is not None:
            tested = np.unique(labels[self._test_images.query])
            unseen = np.setdiff1d(tested, labels[self.train_rows])
            if len(unseen):
                raise DataError(
                    f"the in-distribution protocol tests classes that train, and {len(unseen)} of the {len(tested)} "
                    f"test classes of {name!r} have no training image: use protocol.name=conventional"
                )
        if section.name == "mlrc":
            self._check_folds()
        classes = len(np.unique(labels[self.train_rows]))
        if classes < 2:
            raise DataError(
                f"{name!r} leaves {classes} classes to train on; at least 2 are needed. Add classes, or "
                f"lower protocol.test_share ({section.test_share})."
            )
        self.training_labels()

    def training_labels(self) -> NDArray[np.int64]:
        """Training labels in the order of ``train_rows``: renumbered 0, 1, …, with ``label_noise`` applied."""
        return with_wrong_labels(self._true_labels(), self.section.label_noise, self.section.split_seed)

    @property
    def replaced_labels(self) -> int:
        """How many training labels differ from the table's."""
        return int((self.training_labels() != self._true_labels()).sum())

    @property
    def training_conditions(self) -> str | None:
        """What was done to the training images, in words, or None."""
        parts = []
        if self.section.train_share < 1:
            parts.append(f"{100 * self.section.train_share:g} % of the training images of each class")
        if self.section.label_noise > 0:
            parts.append(f"{100 * self.section.label_noise:g} % of the training labels replaced")
        return ", ".join(parts) or None

    @property
    def test_classes(self) -> str:
        """Whether training has seen the scored classes, in words."""
        if self.test is None:
            return "no test classes"
        seen = np.isin(self.table.labels[self.test.query], self.table.labels[self.train_rows]).any()
        return "classes also seen in training" if seen else "classes never seen in training"

    @property
    def selects_on(self) -> Literal["validation", "test", "last"]:
        """What chooses the reported evaluation."""
        if self.validation is not None:
            return "validation"
        return "test" if self.section.name in SELECTED_ON_TEST and self.test is not None else "last"

    @property
    def select_by(self) -> str:
        return select_by(self.section)

    def is_better(self, scores: Mapping[str, float], than: Mapping[str, float]) -> bool:
        """Whether an evaluation is preferred to an earlier one.

        R@1 of a few validation images differs between epochs by chance. Within its standard error MAP@R decides, unless
        the recipe names the score (``docs/choosing.md``). A score that is not a number is never preferred.
        """
        new, old = (row.get(self.select_by, math.nan) for row in (scores, than))
        if math.isnan(new) or math.isnan(old):
            return math.isnan(old)
        if self.validation is None:
            return new > old
        lower = min(new, old)
        error = math.sqrt(lower * (1 - lower) / len(self.validation.query)) if self._looks_beyond_its_error else 0.0
        if abs(new - old) <= error:
            return scores.get("MAP@R", 0.0) > than.get("MAP@R", 0.0)
        return new > old

    @property
    def _looks_beyond_its_error(self) -> bool:
        """Whether R@1 chooses by default, on validation classes: it then decides only beyond its standard error."""
        return self.validation is not None and self.section.select_by is None and self.select_by == "R@1"

    @property
    def selection_rule(self) -> str:
        """The rule that chose the epoch, and unusual conditions, in the words of every table."""
        section = self.section
        if self.selects_on == "last":
            return as_tested("last epoch", section)
        rule = f"best {self.select_by} on the {self.selects_on} classes"
        if section.name == "mlrc":
            rule = f"best {self.select_by} on the held-out class fold {section.fold} of 0–{section.folds - 1}"
        elif section.name == "query-gallery":
            rule = f"best {self.select_by} of the test queries in their gallery"
        elif self._looks_beyond_its_error:
            rule += ", ties within its error decided by MAP@R"
        if self.selects_on == "test" and section.monitor_test:
            rule += ", which training also followed"
        return as_tested(rule, section)

    def selection_set(self) -> EvaluationSet | None:
        return self.validation if self.validation is not None else (self.test if self.selects_on == "test" else None)

    def score(
        self,
        part: EvaluationSet,
        embed: Embed,
        *,
        distance: Literal["cosine", "euclidean"],
        final: bool = False,
        rerank: Rerank | None = None,
    ) -> dict[str, float]:
        """The recipe's scores of a part; when ``final``, also the slow ones and :data:`AT_THE_END`.

        ``rerank`` orders every ranking again before it is scored.
        """
        references = part.query if part.gallery is None else part.gallery
        if not _has_a_match(self.table.labels, part):
            raise DataError(
                f"no image of the {len(part.query)} to be scored in {self.table.name!r} has another of its class among "
                f"the {len(references)} it is searched in: test classes need two images or more"
            )
        asked = [*self.section.measured, *AT_THE_END] if final else self.section.measured
        names = [name for name in asked if final or score_named(name).every_evaluation]
        labels = self.table.labels
        queries = embed(part.query), labels[part.query]
        gallery = () if part.gallery is None else (embed(part.gallery), labels[part.gallery])
        return measure(names, *queries, *gallery, distance=distance, rerank=rerank, by_all=True)

    def _true_labels(self) -> NDArray[np.int64]:
        return self.table.take(self.train_rows).training_labels()

    def _check_folds(self) -> None:
        name, folds = self.table.name, self.section.folds
        held_out = np.empty(0, dtype=np.int64) if self.validation is None else self.validation.query
        classes = len(np.unique(self.table.labels[np.union1d(self.train_rows, held_out)]))
        if classes < 2 * folds:
            raise DataError(
                f"{name!r} has {classes} classes that are not tested; {folds} folds of at least 2 need {2 * folds}. "
                f"Add classes, or lower protocol.folds or protocol.test_share ({self.section.test_share})."
            )
        if self.validation is None or not _has_a_match(self.table.labels, self.validation):
            raise DataError(
                f"no image of the held-out class fold {self.section.fold} of {name!r} has another of its class there, "
                f"so it cannot choose the epoch: lower protocol.folds ({folds}), or leave out classes with one image"
            )
        if self._test_images is None:
            raise DataError(
                f"{name!r} has no test classes, and the mlrc protocol is a score on those: set protocol.test_share "
                f"above 0"
            )


def _has_a_match(labels: NDArray[np.int64], part: EvaluationSet) -> bool:
    if part.gallery is not None:
        return bool(np.isin(labels[part.query], labels[part.gallery]).any())
    return len(np.unique(labels[part.query])) < len(part.query)
