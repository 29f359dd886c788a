"""A row of a published table beside what came out of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from nearkin.evaluation.statistics import Statistic
from nearkin.recipe import Recipe
from nearkin.report.published import SAME_SCORE, Published
from nearkin.runs.scores import EnsembleScores, Scores
from nearkin.studies.reproduce.papers import PaperTable
from nearkin.studies.reproduce.rows import PlannedRow
from nearkin.studies.results import RowResult
from nearkin.studies.study import PlannedRun

PARTS: dict[str, Literal["separate", "concatenated"]] = {
    "mlrc-mean": "separate",
    "mlrc-ensemble": "concatenated",
    "mlrc": "concatenated",
}
"""Which of the reality check's two results a published value is: of each model alone, or of all put together."""

TIMES = ("ms/batch", "ms/batch of 180")
CONDITIONS = ("protocol", "selection", "hardware", "recipe")
PATIENCE = 60
"""Evaluations without a new best after which the CCP paper ends a training; its table I counts them."""


@dataclass(frozen=True, order=True)
class Column:
    """A column of a table: a score, and for the reality check of which of its two results."""

    metric: str
    part: Literal["", "separate", "concatenated"] = ""
    dim: int | None = None

    @classmethod
    def of(cls, published: Published, mlrc: bool) -> Column:
        """The column that a published value stands in."""
        return cls(published.metric, PARTS[published.protocol], published.dim) if mlrc else cls(published.metric)

    @property
    def score(self) -> str:
        """What we call the score."""
        return SAME_SCORE.get(self.metric, self.metric)

    @property
    def label(self) -> str:
        return f"{self.dim}-d {self.metric}" if self.dim is not None else self.metric

    @property
    def is_share(self) -> bool:
        """Whether it is a score between 0 and 1, which tables show in per cent."""
        return self.metric not in (*TIMES, "ksteps")


@dataclass
class Reproduced:
    """A row on a data set with what is printed, what came out, and what it came out of."""

    planned: PlannedRow
    published: dict[Column, Published]
    problem: str | None = None
    ours: dict[Column, Statistic] = field(default_factory=dict)
    """In the published unit: scores in per cent."""
    last: dict[Column, Statistic] = field(default_factory=dict)
    """The same of the last epoch, where the reported one was chosen on the test classes."""
    status: str = "not run"
    seeds: list[int] = field(default_factory=list)
    conditions: dict[str, list[str]] = field(default_factory=dict)
    """Protocol, selection, hardware and hashes of the recipes, as the runs say them."""
    repeats: int = 0
    """Runs of the row, or repeats of the reality check."""
    folders: list[Path] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return bool(self.seeds)

    def difference(self, column: Column) -> float | None:
        """Ours minus the published value."""
        if column not in self.ours or column not in self.published:
            return None
        return self.ours[column].mean - self.published[column].value


def columns_of(table: PaperTable, rows: Sequence[PlannedRow]) -> dict[str, list[Column]]:
    """The columns for every data set: what is published there, or the scores that the table names.

    >>> from nearkin.studies.reproduce.papers import find_item, tables_of
    >>> from nearkin.studies.reproduce.rows import Settings, planned_rows
    >>> table = tables_of(find_item("ccp/table-6"))[0]
    >>> rows = planned_rows(table, table.rows, ["cub"], Settings(weights="none"))
    >>> [column.label for column in columns_of(table, rows)["cub"]][:3]
    ['128-d P@1', '128-d P@R', '128-d MAP@R']
    """
    found: dict[str, list[Column]] = {}
    for data in dict.fromkeys(row.data for row in rows):
        mine = [row for row in rows if row.data == data]
        columns = dict.fromkeys(Column.of(each, table.mlrc) for row in mine for each in row.published)
        unique = [each for each in columns if not table.metrics or each.metric in table.metrics]
        unique = unique or _without_published(table, mine[0])
        if not table.mlrc:
            known = {each.metric for each in unique}
            unique += [Column(metric) for metric in table.metrics if metric not in known]
        # Of the reality check, each model alone comes before all together.
        found[data] = sorted(unique, key=lambda each: each.part == "concatenated")
    return found


def reproduced(
    table: PaperTable,
    row: PlannedRow,
    runs: Sequence[PlannedRun],
    folder: Path,
    columns: Sequence[Column],
    unscored: str | None = None,
) -> Reproduced:
    """A row with its published values and with what its runs, or the folder of its reality check, hold.

    ``unscored`` says why the models of a reality check could not be scored together.
    """
    published = {Column.of(each, table.mlrc): each for each in row.published}
    found = Reproduced(row, {column: each for column, each in published.items() if column in columns}, row.problem)
    if row.recipe is None:
        found.status = "not in nearkin"
        return found
    result = RowResult(runs[0].row, tuple(runs))
    known = [each for each in result.problems if each.status != "unfinished"]
    if row.problem is not None:
        found.status = "skipped"
    elif known or unscored:
        found.status, found.problem = (known[-1].status, known[-1].reason) if known else ("not scored", unscored)
    if table.mlrc:
        _read_ensemble(found, folder, columns)
    else:
        _read_scores(found, result, columns)
    if found.seeds:
        found.status = "finished" if found.problem is None else f"some {found.status}"
    return found


def _read_scores(found: Reproduced, result: RowResult, columns: Sequence[Column]) -> None:
    found.folders = [planned.folder.path for planned in result.runs]
    found.seeds, found.repeats = result.seeds, len(result.seeds)
    for column in columns:
        values = (measured(each, column, found.planned.known_recipe) for each in result.scores)
        if (ours := Statistic.of(value for value in values if value is not None)) is not None:
            found.ours[column] = ours
        if column.is_share and (last := result.last(column.score)) is not None:
            found.last[column] = last.scaled(100)
    found.conditions = {key: result.said(key) for key in CONDITIONS}


def _read_ensemble(found: Reproduced, folder: Path, columns: Sequence[Column]) -> None:
    ensemble = EnsembleScores.read(folder)
    if ensemble is None:
        return
    found.folders, found.seeds, found.repeats = [folder], list(ensemble.seeds), ensemble.repeats
    for column in columns:
        scores = ensemble.separate if column.part == "separate" else ensemble.concatenated
        if (value := scores.get(column.score)) is not None:
            found.ours[column] = value.scaled(100)
    found.conditions = {key: [getattr(ensemble.conditions, key)] for key in CONDITIONS}


def measured(scores: Scores, column: Column, recipe: Recipe) -> float | None:
    """A run's value for a column, in the unit of the published one; None where it was not measured.

    >>> run = Scores.from_record(
    ...     {"test": {"R@1": 0.5}, "steps": 9000, "best": {"step": 2000.0}, "cost": {"step_ms": 40.0}}
    ... )
    >>> measured(run, Column("P@1"), Recipe()), measured(run, Column("ms/batch"), Recipe())
    (50.0, 40.0)
    >>> measured(run, Column("ksteps"), Recipe().with_changes({"training.evaluate_every_steps": 100}))
    8.0
    """
    if column.metric in TIMES:
        return scores.cost.step_ms
    if column.metric == "ksteps":
        every = recipe.training.evaluate_every_steps or 0
        return min(float(scores.steps), float(scores.chosen.get("step", scores.steps)) + PATIENCE * every) / 1000
    value = (scores.test or {}).get(column.score)
    return None if value is None else 100 * float(value)


def _without_published(table: PaperTable, row: PlannedRow) -> list[Column]:
    metrics = table.metrics or ("R@1", "MAP@R")
    if not table.mlrc:
        return [Column(metric) for metric in metrics]
    dim, folds = row.known_recipe.encoder.dim or 0, row.known_recipe.protocol.folds
    return [
        *(Column(metric, "separate", dim) for metric in metrics),
        *(Column(metric, "concatenated", folds * dim) for metric in metrics),
    ]
