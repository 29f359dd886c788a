"""What the runs of a study came to, row by row, as far as they are finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from nearkin.evaluation.protocol import SELECTED_ON_TEST, select_by
from nearkin.evaluation.scores import score_named
from nearkin.evaluation.statistics import Statistic
from nearkin.report.differences import ScoredRuns
from nearkin.report.published import SAME_SCORE, Published
from nearkin.runs.folder import Outcome
from nearkin.runs.scores import EnsembleScores
from nearkin.studies.study import PlannedRun, Row

ENSEMBLES: dict[str, Literal["separate", "concatenated"]] = {
    "mlrc-mean": "separate",
    "mlrc-ensemble": "concatenated",
    "mlrc": "concatenated",
}
"""Which result of the reality check a published value is: of each model alone, or concatenated."""
TIMES = ("ms/step", "ms/batch", "ms/batch of 180")
PATIENCE = 60
"""Evaluations without a new best after which the CCP paper ends a training; its table I counts them."""


@dataclass(frozen=True)
class Column:
    """A score, a time or a number of steps; ``part`` is one of the two results of a reality check."""

    metric: str
    part: Literal["", "separate", "concatenated"] = ""
    dim: int | None = None

    @classmethod
    def of(cls, published: Published, mlrc: bool) -> Column:
        """The column that a published value stands in."""
        return cls(published.metric, ENSEMBLES[published.protocol], published.dim) if mlrc else cls(published.metric)

    @property
    def score(self) -> str:
        return SAME_SCORE.get(self.metric, self.metric)

    @property
    def is_score(self) -> bool:
        return self.metric not in (*TIMES, "ksteps")

    @property
    def scale(self) -> float:
        """What a value is multiplied by to be shown: scores between 0 and 1 are in per cent."""
        return 100.0 if self.is_score and score_named(self.score).in_percent else 1.0

    @property
    def heading(self) -> str:
        if not self.is_score or self.metric != self.score:
            return self.metric if self.dim is None else f"{self.dim}-d {self.metric}"
        return score_named(self.score).heading if self.dim is None else f"{self.dim}-d {self.metric}"


@dataclass(frozen=True)
class RowResult(ScoredRuns):
    """A row with all its runs."""

    row: Row
    runs: tuple[PlannedRun, ...]

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        return tuple(planned.outcome for planned in self.runs)

    @cached_property
    def ensemble(self) -> EnsembleScores | None:
        """What the models of a reality check come to; None before all are trained, and of other rows."""
        return EnsembleScores.read(self.runs[0].folder.path.parents[1]) if self.row.mlrc else None

    @property
    def collapsed(self) -> list[int]:
        """Seeds of the runs in which the network collapsed."""
        runs = zip(self.finished, self.scores, strict=True)
        return [planned.seed for planned, scores in runs if scores.collapse is not None]

    @property
    def title(self) -> str:  # type: ignore[override]
        return self.row.title

    @property
    def seeds(self) -> list[int]:
        """Of the runs that the row's scores are made of."""
        if self.row.mlrc:
            return [] if self.ensemble is None else list(self.ensemble.seeds)
        return [planned.seed for planned in self.finished]

    @property
    def repeats(self) -> int:
        """How many runs, or repeats of the reality check, a score is the mean of."""
        return len(self.seeds) if self.ensemble is None else self.ensemble.repeats

    @property
    def problems(self) -> list[Outcome]:
        """Outcomes of runs that have not finished; none of a row that cannot be run here."""
        return [] if self.row.problem else [outcome for outcome in self.outcomes if outcome.status != "finished"]

    @property
    def status(self) -> str:
        """In a word: ``finished``, ``skipped``, ``failed`` or ``not run``, of some runs or of all."""
        ended = [outcome.status for outcome in self.problems if outcome.status != "unfinished"]
        worst = "skipped" if self.row.problem else next(reversed(ended), "")
        if self.seeds:
            return f"some {worst}" if worst else "finished"
        return worst or "not run"

    @property
    def published(self) -> dict[Column, Published]:
        return {Column.of(value, self.row.mlrc): value for value in self.row.published}

    def value(self, column: Column) -> Statistic | None:
        """What the finished runs have for a column: a score as a fraction, milliseconds, or thousands of steps."""
        if column.part:
            return getattr(self.ensemble, column.part, {}).get(column.score)
        if column.metric in TIMES:
            return Statistic.of(scores.cost.step_ms for scores in self.scores if scores.cost.step_ms is not None)
        if column.metric == "ksteps":
            every = PATIENCE * (self.row.recipe.training.evaluate_every_steps or 0)
            ends = [(scores.steps, scores.chosen.get("step", scores.steps) + every) for scores in self.scores]
            return Statistic.of(min(map(float, end)) / 1000 for end in ends)
        return self.test(column.score)

    def difference(self, column: Column) -> float | None:
        """Ours minus the published value, in its unit."""
        ours, published = self.value(column), self.published.get(column)
        return None if ours is None or published is None else column.scale * ours.mean - published.value

    def test(self, name: str) -> Statistic | None:
        """A score of the reported weights on the test classes."""
        return Statistic.of_key((scores.test for scores in self.scores), name)

    def test_by_run(self, name: str) -> dict[Any, float]:
        """Of a reality check the mean score of a repeat's models, by repeat."""
        if not self.row.mlrc:
            return super().test_by_run(name)
        return {} if self.ensemble is None else dict(enumerate(self.ensemble.separate[name].values))

    def last(self, name: str) -> Statistic | None:
        """The last epoch's score; None where it is not also on the test classes, as the reported one is."""
        if self.row.recipe.protocol.name not in SELECTED_ON_TEST:
            return None
        return Statistic.of_key((scores.last for scores in self.scores), name)

    @property
    def select_by(self) -> str:
        return select_by(self.row.recipe.protocol)

    def validated(self, name: str) -> tuple[Statistic, Statistic] | None:
        """A score at the chosen epoch on validation and on test classes; None where test classes chose the epoch."""
        if self.row.recipe.protocol.name in SELECTED_ON_TEST or self.row.mlrc:
            return None
        both = [scores for scores in self.scores if name in scores.chosen and name in (scores.test or {})]
        validation = Statistic.of_key((scores.best for scores in both), name)
        test = Statistic.of_key((scores.test for scores in both), name)
        return (validation, test) if validation and test else None

    @property
    def chosen_epochs(self) -> list[float]:
        return [scores.chosen["epoch"] for scores in self.scores if scores.chosen.get("epoch") is not None]

    @property
    def at_once(self) -> list[int]:
        """How many runs shared the machine."""
        return sorted({outcome.parallel_runs for outcome in self.outcomes if outcome.status == "finished"})

    def condition(self, name: str) -> list[str]:
        """The values that finished runs have for one of their :class:`~nearkin.runs.scores.Conditions`."""
        conditions = [scores.conditions for scores in self.scores]
        if self.row.mlrc:
            conditions = [] if self.ensemble is None else [self.ensemble.conditions]
        values = (getattr(of_run, name) for of_run in conditions)
        return sorted({str(value) for value in values if value is not None})


def results_of(runs: Sequence[PlannedRun]) -> list[RowResult]:
    """Runs by their rows; a folder that holds a run of another recipe is an error."""
    rows = {planned.row.path: planned.row for planned in runs if not planned.was_changed(allow=False)}
    return [RowResult(row, tuple(run for run in runs if run.row.path == path)) for path, row in rows.items()]
