"""What the runs of a study came to, row by row, as far as they are finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from nearkin.evaluation.protocol import SELECTED_ON_TEST, select_by
from nearkin.evaluation.statistics import Statistic
from nearkin.runs.outcome import Outcome
from nearkin.runs.scores import Scores
from nearkin.studies.study import PlannedRun, Row


@dataclass(frozen=True)
class RowResult:
    """A row with all its runs."""

    row: Row
    runs: tuple[PlannedRun, ...]

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        return tuple(planned.outcome for planned in self.runs)

    @cached_property
    def finished(self) -> list[PlannedRun]:
        both = zip(self.runs, self.outcomes, strict=True)
        return [planned for planned, outcome in both if outcome.status == "finished"]

    @cached_property
    def scores(self) -> tuple[Scores, ...]:
        """Of the finished runs."""
        return tuple(planned.folder.scores() for planned in self.finished)

    @property
    def seeds(self) -> list[int]:
        return [planned.seed for planned in self.finished]

    @property
    def problems(self) -> list[Outcome]:
        """Of the runs that have not finished."""
        return [outcome for outcome in self.outcomes if outcome.status != "finished"]

    def test(self, name: str) -> Statistic | None:
        """A score of the reported weights on the test classes."""
        return Statistic.of_key((scores.test for scores in self.scores), name)

    def test_by_seed(self, name: str) -> dict[int, float]:
        """The same run by run."""
        tests = zip(self.seeds, (scores.test or {} for scores in self.scores), strict=True)
        return {seed: float(value) for seed, test in tests if (value := test.get(name)) is not None}

    def last(self, name: str) -> Statistic | None:
        """The last epoch's score; None where it is not also on the test classes, as the reported one is."""
        if self.row.recipe.protocol.name not in SELECTED_ON_TEST:
            return None
        return Statistic.of_key((scores.last for scores in self.scores), name)

    def untrained(self, name: str) -> Statistic | None:
        return Statistic.of_key((scores.untrained for scores in self.scores), name)

    @property
    def select_by(self) -> str:
        """The score that chose the epoch."""
        return select_by(self.row.recipe.protocol)

    def validated(self, name: str) -> tuple[Statistic, Statistic] | None:
        """A score at the chosen epoch on validation and on test classes; None where test classes chose the epoch."""
        if self.row.recipe.protocol.name in SELECTED_ON_TEST:
            return None
        both = [scores for scores in self.scores if name in scores.chosen and name in (scores.test or {})]
        validation = Statistic.of_key((scores.best for scores in both), name)
        test = Statistic.of_key((scores.test for scores in both), name)
        return None if validation is None or test is None else (validation, test)

    @property
    def validation(self) -> tuple[Statistic, Statistic] | None:
        """The same of the score that chose the epoch."""
        return self.validated(self.select_by)

    @property
    def step_ms(self) -> Statistic | None:
        return Statistic.of(scores.cost.step_ms for scores in self.scores if scores.cost.step_ms is not None)

    @property
    def chosen_epochs(self) -> list[float]:
        return [scores.chosen["epoch"] for scores in self.scores if scores.chosen.get("epoch") is not None]

    @property
    def at_once(self) -> list[int]:
        """How many runs shared the machine."""
        return sorted({outcome.parallel_runs for outcome in self.outcomes if outcome.status == "finished"})

    def condition(self, name: str) -> list[str]:
        """The values that finished runs have for one of their :class:`~nearkin.runs.scores.Conditions`."""
        values = (getattr(scores.conditions, name) for scores in self.scores)
        return sorted({str(value) for value in values if value is not None})


def results_of(runs: Sequence[PlannedRun]) -> list[RowResult]:
    """Runs by their rows; a folder that holds a run of another recipe is an error."""
    by_row: dict[str, list[PlannedRun]] = {}
    for planned in runs:
        planned.was_changed(allow=False)
        by_row.setdefault(planned.row.name, []).append(planned)
    return [RowResult(members[0].row, tuple(members)) for members in by_row.values()]
