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
    def scores(self) -> tuple[Scores, ...]:
        """Of the finished runs."""
        return tuple(planned.folder.scores() for planned in self.finished)

    @property
    def finished(self) -> list[PlannedRun]:
        return [planned for planned, known in zip(self.runs, self.outcomes, strict=True) if known.status == "finished"]

    @property
    def seeds(self) -> list[int]:
        return [planned.seed for planned in self.finished]

    @property
    def problems(self) -> list[Outcome]:
        """Of the runs that have not finished."""
        return [outcome for outcome in self.outcomes if outcome.status != "finished"]

    def test(self, name: str) -> Statistic | None:
        """A score of the reported weights on the test classes."""
        return Statistic.of_key((each.test for each in self.scores), name)

    def test_by_seed(self, name: str) -> dict[int, float]:
        """The same run by run."""
        both = zip(self.seeds, self.scores, strict=True)
        return {seed: float(each.test[name]) for seed, each in both if each.test and each.test.get(name) is not None}

    def last(self, name: str) -> Statistic | None:
        """That of the last epoch, which only protocols that choose on the test images have beside the best."""
        if self.row.recipe.protocol.name not in SELECTED_ON_TEST:
            return None
        return Statistic.of_key((each.last for each in self.scores), name)

    def untrained(self, name: str) -> Statistic | None:
        return Statistic.of_key((each.untrained for each in self.scores), name)

    @property
    def select_by(self) -> str:
        """The score that chose the epoch."""
        return select_by(self.row.recipe.protocol)

    @property
    def validation(self) -> tuple[Statistic, Statistic] | None:
        """The score that chose the epoch, on the validation and on the test classes; None where test classes chose."""
        return self.validated(self.select_by)

    def validated(self, name: str) -> tuple[Statistic, Statistic] | None:
        """The same of another score, at the epoch that was chosen."""
        if self.row.recipe.protocol.name in SELECTED_ON_TEST:
            return None
        both = [each for each in self.scores if name in each.chosen and name in (each.test or {})]
        validation = Statistic.of_key((each.best for each in both), name)
        test = Statistic.of_key((each.test for each in both), name)
        return None if validation is None or test is None else (validation, test)

    @property
    def step_ms(self) -> Statistic | None:
        return Statistic.of(each.cost.step_ms for each in self.scores if each.cost.step_ms is not None)

    @property
    def chosen_epochs(self) -> list[float]:
        return [each.chosen["epoch"] for each in self.scores if each.chosen.get("epoch") is not None]

    @property
    def side_by_side(self) -> list[int]:
        """How many runs shared the machine."""
        return sorted({known.side_by_side for known in self.outcomes if known.status == "finished"})

    def said(self, condition: str) -> list[str]:
        """What the finished runs say of one of their :class:`~nearkin.runs.scores.Conditions`."""
        values = (getattr(each.conditions, condition) for each in self.scores)
        return sorted({str(value) for value in values if value is not None})


def results_of(runs: Sequence[PlannedRun]) -> list[RowResult]:
    """Runs by their rows; a folder that holds a run of another recipe is an error."""
    by_row: dict[str, list[PlannedRun]] = {}
    for planned in runs:
        planned.was_changed(forgive=False)
        by_row.setdefault(planned.row.name, []).append(planned)
    return [RowResult(each[0].row, tuple(each)) for each in by_row.values()]
