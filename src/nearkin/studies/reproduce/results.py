"""A row of a published table beside what came out of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from nearkin.evaluation.statistics import Statistic
from nearkin.published.figures import Published
from nearkin.recipe import Recipe
from nearkin.runs.ensemble_scores import EnsembleScores
from nearkin.runs.scores import Scores
from nearkin.studies.reproduce.papers import PaperTable
from nearkin.studies.reproduce.rows import PlannedRow
from nearkin.studies.results import RowResult
from nearkin.studies.study import PlannedRun

PARTS: dict[str, Literal["separate", "concatenated"]] = {
    "mlrc-mean": "separate",
    "mlrc-ensemble": "concatenated",
    "mlrc": "concatenated",
}
"""Which of the reality check's two results a published figure is: of each model alone, or of all put together."""

OUR_NAMES = {"P@1": "R@1"}
"""Two names of one score."""
TIMES = ("ms/batch", "ms/batch of 180")
PATIENCE = 60
"""Evaluations without a new best after which the CCP paper ends a training; its table I counts them."""


@dataclass(frozen=True, order=True)
class Column:
    """A column of a table: a score, and for the reality check of which of its two results."""

    metric: str
    part: Literal["", "separate", "concatenated"] = ""
    dim: int | None = None

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

    row: PlannedRow
    published: dict[Column, Published]
    ours: dict[Column, Statistic] = field(default_factory=dict)
    """In the published unit: scores in per cent."""
    last: dict[Column, Statistic] = field(default_factory=dict)
    """The same of the last epoch, where the reported one was chosen on the test classes."""
    problem: str | None = None
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
        """Ours minus the published figure."""
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
    for row in rows:
        columns = found.setdefault(row.data, [])
        columns += [column_of(figure, table.mlrc) for figure in row.figures]
    for data, columns in found.items():
        unique = [each for each in dict.fromkeys(columns) if not table.metrics or each.metric in table.metrics]
        if not unique:
            unique = _without_published(table, next(row for row in rows if row.data == data))
        known = {each.metric for each in unique}
        if not table.mlrc:
            unique += [Column(metric) for metric in table.metrics if metric not in known]
        # Of the reality check, each model alone comes before all together.
        found[data] = sorted(unique, key=lambda each: each.part != "separate") if table.mlrc else unique
    return found


def column_of(figure: Published, mlrc: bool) -> Column:
    """The column that a published figure stands in."""
    return Column(figure.metric, PARTS[figure.protocol], figure.dim) if mlrc else Column(figure.metric)


def reproduced(
    table: PaperTable, row: PlannedRow, runs: Sequence[PlannedRun], folder: Path, columns: Sequence[Column]
) -> Reproduced:
    """A row with its published figures and with what its runs, or the folder of its reality check, hold."""
    published = {column_of(each, table.mlrc): each for each in row.figures}
    found = Reproduced(row, {column: each for column, each in published.items() if column in columns})
    found.problem = row.problem
    if row.recipe is None:
        found.status = "not in nearkin"
        return found
    result = RowResult(runs[0].row, tuple(runs))
    known = [each for each in result.problems if each.status != "unfinished"]
    if row.problem is not None:
        found.status = "skipped"
    elif known:
        found.problem, found.status = known[-1].reason, known[-1].status
    if table.mlrc:
        _read_ensemble(found, folder, columns)
    else:
        found.folders = [planned.folder.path for planned in runs]
        _read_scores(found, result, columns)
    return found


def _read_scores(found: Reproduced, result: RowResult, columns: Sequence[Column]) -> None:
    if not result.seeds:
        return
    found.seeds, found.repeats = result.seeds, len(result.seeds)
    found.status = "finished" if found.problem is None else f"some {found.status}"
    for column in columns:
        values = (measured(each, column, found.row.known_recipe) for each in result.scores)
        if (ours := Statistic.of(value for value in values if value is not None)) is not None:
            found.ours[column] = ours
        if column.is_share and (last := result.last(OUR_NAMES.get(column.metric, column.metric))) is not None:
            found.last[column] = last.scaled(100)
    found.conditions = {key: result.said(key) for key in ("protocol", "selection", "hardware", "recipe")}


def _read_ensemble(found: Reproduced, folder: Path, columns: Sequence[Column]) -> None:
    ensemble = EnsembleScores.read(folder)
    if ensemble is None:
        return
    found.folders, found.seeds, found.repeats = [folder], list(ensemble.seeds), ensemble.repeats
    found.status = "finished"
    for column in columns:
        scores = ensemble.separate if column.part == "separate" else ensemble.concatenated
        value = scores.get(OUR_NAMES.get(column.metric, column.metric))
        if value is not None:
            found.ours[column] = value.scaled(100)
    held = ensemble.conditions
    found.conditions = {key: [getattr(held, key)] for key in ("protocol", "selection", "hardware", "recipe")}


def measured(scores: Scores, column: Column, recipe: Recipe) -> float | None:
    """A run's figure for a column, in the unit of the published one; None where it was not measured.

    >>> run = Scores.from_record(
    ...     {"test": {"R@1": 0.5}, "steps": 9000, "best": {"step": 2000.0}, "cost": {"step_ms": 40.0}}
    ... )
    >>> measured(run, Column("P@1"), Recipe()), measured(run, Column("ms/batch"), Recipe())
    (50.0, 40.0)
    >>> measured(run, Column("ksteps"), Recipe.from_mapping({}, ["training.evaluate_every_steps=100"]))
    8.0
    """
    if column.metric in TIMES:
        return scores.cost.step_ms
    if column.metric == "ksteps":
        every = recipe.training.evaluate_every_steps or 0
        return min(float(scores.steps), float(scores.chosen.get("step", scores.steps)) + PATIENCE * every) / 1000
    value = (scores.test or {}).get(OUR_NAMES.get(column.metric, column.metric))
    return None if value is None else 100 * float(value)


def column_named(columns: Sequence[Column], metric: str) -> Column | None:
    """The column of a score, of the reality check that of the models one by one; without that score, the first."""
    return next((column for column in columns if column.metric == metric), next(iter(columns), None))


def _without_published(table: PaperTable, row: PlannedRow) -> list[Column]:
    metrics = table.metrics or ("R@1", "MAP@R")
    if not table.mlrc:
        return [Column(metric) for metric in metrics]
    dim, folds = row.known_recipe.encoder.dim or 0, row.known_recipe.protocol.folds
    return [
        *(Column(metric, "separate", dim) for metric in metrics),
        *(Column(metric, "concatenated", folds * dim) for metric in metrics),
    ]
