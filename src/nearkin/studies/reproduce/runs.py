"""Run the rows of a published table and put what came out beside what is printed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from nearkin.errors import BusyError, InterruptedRunError, NearkinError
from nearkin.evaluation.protocol import SELECTED_ON_TEST
from nearkin.published.figures import Published
from nearkin.recipe import Recipe
from nearkin.runs.folder import RunFolder
from nearkin.studies.reproduce.digits import run_digits
from nearkin.studies.reproduce.papers import PaperTable
from nearkin.studies.reproduce.rows import PlannedRow
from nearkin.studies.study import Outcome, Row, StudyRun, figure, outcome_of, planned_runs, run_study
from nearkin.training.observers import ConsoleObserver

PARTS = {"mlrc-mean": "separate", "mlrc-ensemble": "concatenated", "mlrc": "concatenated"}
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
    part: str = ""
    dim: int | None = None

    @property
    def label(self) -> str:
        return f"{self.dim}-d {self.metric}" if self.dim is not None else self.metric

    @property
    def is_share(self) -> bool:
        """Whether it is a score between 0 and 1, which tables show in per cent."""
        return self.metric not in (*TIMES, "ksteps")


@dataclass
class Line:
    """A row on a data set with what is printed, what came out, and what it came out of."""

    row: PlannedRow
    published: dict[Column, Published]
    ours: dict[Column, dict[str, Any]] = field(default_factory=dict)
    """``{"mean", "spread", …}`` in the published unit: scores in per cent."""
    last: dict[Column, dict[str, Any]] = field(default_factory=dict)
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
        return float(self.ours[column]["mean"]) - self.published[column].value


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


def carry_out(
    table: PaperTable,
    asked: Sequence[PlannedRow],
    folder: str | Path,
    seeds: Sequence[int],
    *,
    jobs: int = 1,
    console: Console | None = None,
) -> list[Outcome]:
    """Run the rows that can be run; finished runs are kept, begun ones continued.

    Args:
        table: what is reproduced.
        asked: its rows on their data sets; those with a problem are left alone.
        folder: runs go to ``folder/runs``; tables of one paper can share it.
        seeds: one run of each row for each; for the reality check, that many repeats.
        jobs: runs at a time.
        console: where progress goes.

    Raises:
        InterruptedRunError: after Ctrl-C or SIGTERM; calling again goes on.
    """
    console = console or Console(quiet=True)
    runnable = {row.folder_name: row for row in asked if row.problem is None}
    where = Path(folder) / "runs"
    if not runnable:
        return []
    if table.mlrc:
        return [_run_mlrc(row, where, seeds, jobs, console) for row in runnable.values()]
    if table.draw.kind == "digits":
        return [_run_digits(planned, console) for planned in planned_runs(_study_rows(runnable), where, seeds)]
    return run_study(_study_rows(runnable), where, seeds, jobs=jobs, console=console)


def runs_of(table: PaperTable, asked: Sequence[PlannedRow], folder: str | Path, seeds: Sequence[int]) -> list[StudyRun]:
    """Every run of the rows that can be run, finished or not, those of the reality check one for each fold."""
    from nearkin.studies.mlrc import mlrc_models

    runnable = {row.folder_name: row for row in asked if row.problem is None}
    where = Path(folder) / "runs"
    if table.mlrc:
        models = (mlrc_models(row.known_recipe, where / name, len(seeds)) for name, row in runnable.items())
        return [model for each in models for model in each]
    return planned_runs(_study_rows(runnable), where, seeds) if runnable else []


def lines_of(table: PaperTable, rows: Sequence[PlannedRow], folder: str | Path, seeds: Sequence[int]) -> list[Line]:
    """Every row with its published figures and with what the folder holds of it."""
    columns = columns_of(table, rows)
    return [_line(table, row, Path(folder) / "runs", seeds, columns[row.data]) for row in rows]


def _line(table: PaperTable, row: PlannedRow, folder: Path, seeds: Sequence[int], columns: Sequence[Column]) -> Line:
    published = {column_of(each, table.mlrc): each for each in row.figures}
    line = Line(row, {column: each for column, each in published.items() if column in columns}, problem=row.problem)
    if row.recipe is None:
        line.status = "not in nearkin"
        return line
    if row.problem is not None:
        line.status = "skipped"
    if table.mlrc:
        _read_mlrc(line, folder / row.folder_name, columns)
        return line
    for planned in planned_runs([_study_row(row)], folder, seeds):
        outcome = outcome_of(planned)
        line.folders.append(planned.folder.path)
        if outcome.status == "finished":
            line.seeds.append(planned.seed)
        elif row.problem is None and planned.record_file.exists():
            line.problem, line.status = outcome.reason, outcome.status
    if line.seeds:
        line.status = "finished" if line.problem is None else f"some {line.status}"
        line.repeats = len(line.seeds)
        _read_study(line, columns)
    return line


def _study_rows(rows: Mapping[str, PlannedRow]) -> list[Row]:
    return [_study_row(row) for row in rows.values()]


def _study_row(row: PlannedRow) -> Row:
    return Row(row.folder_name, f"{row.definition.title} on {row.data}", row.known_recipe)


def _read_study(line: Line, columns: Sequence[Column]) -> None:
    folders = [RunFolder(path) for path in line.folders]
    scores = [folder.scores() for folder in folders if folder.is_finished]
    recipe = line.row.known_recipe
    for column in columns:
        values = [value for each in scores if (value := measured(each, column, recipe)) is not None]
        if (found := figure(values)) is not None:
            line.ours[column] = found
        if recipe.protocol.name in SELECTED_ON_TEST and column.is_share:
            name = OUR_NAMES.get(column.metric, column.metric)
            last = [100 * float(each["last"][name]) for each in scores if each["last"].get(name) is not None]
            if (found := figure(last)) is not None:
                line.last[column] = found
    line.conditions = {
        key: sorted({str(each[key]) for each in scores}) for key in ("protocol", "selection", "hardware", "recipe")
    }


def measured(scores: Mapping[str, Any], column: Column, recipe: Recipe) -> float | None:
    """A run's figure for a column, in the unit of the published one; None where it was not measured.

    >>> run = {"test": {"R@1": 0.5}, "steps": 9000, "best": {"step": 2000.0}, "cost": {"step_ms": 40.0}}
    >>> measured(run, Column("P@1"), Recipe()), measured(run, Column("ms/batch"), Recipe())
    (50.0, 40.0)
    >>> measured(run, Column("ksteps"), Recipe.from_mapping({}, ["training.evaluate_every_steps=100"]))
    8.0
    """
    if column.metric in TIMES:
        return float(scores["cost"]["step_ms"])
    if column.metric == "ksteps":
        every = recipe.training.evaluate_every_steps or 0
        best = (scores["best"] or {}).get("step", scores["steps"])
        return min(float(scores["steps"]), float(best) + PATIENCE * every) / 1000
    value = (scores["test"] or {}).get(OUR_NAMES.get(column.metric, column.metric))
    return None if value is None else 100 * float(value)


def _run_digits(planned: StudyRun, console: Console) -> Outcome:
    console.print(f"[bold]{planned.label}[/bold]", highlight=False)
    with ConsoleObserver(console) as observer:
        run_digits(planned.recipe, planned.folder, observer)
    return outcome_of(planned)


def _run_mlrc(row: PlannedRow, folder: Path, seeds: Sequence[int], jobs: int, console: Console) -> Outcome:
    from nearkin.studies.mlrc import run_mlrc

    name = row.folder_name
    console.print(f"[bold]{row.definition.title} on {row.data}[/bold]", highlight=False)
    try:
        run_mlrc(row.known_recipe, folder / name, repeats=len(seeds), jobs=jobs, console=console)
    except InterruptedRunError:
        raise
    except BusyError as error:
        return Outcome(name, 0, "unfinished", str(error), error.exit_code)
    except NearkinError as error:
        status = "skipped" if error.exit_code in (3, 4) else "failed"
        (folder / name).mkdir(parents=True, exist_ok=True)
        record = {"status": status, "reason": str(error), "exit_code": error.exit_code}
        (folder / name / "problem.json").write_text(json.dumps(record), encoding="utf-8")
        return Outcome(name, 0, "skipped" if status == "skipped" else "failed", str(error), error.exit_code)
    (folder / name / "problem.json").unlink(missing_ok=True)
    return Outcome(name, 0, "finished")


def _read_mlrc(line: Line, folder: Path, columns: Sequence[Column]) -> None:
    problem, result = folder / "problem.json", folder / "mlrc.json"
    if problem.exists() and line.problem is None:
        kept = json.loads(problem.read_text(encoding="utf-8"))
        line.problem, line.status = kept["reason"], kept["status"]
    if not result.exists():
        return
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    line.folders = [folder]
    line.seeds, line.repeats = list(found["seeds"]), int(found["repeats"])
    line.status = "finished"
    for column in columns:
        value = found[column.part].get(OUR_NAMES.get(column.metric, column.metric))
        if value is not None:
            line.ours[column] = {key: _percent(each) for key, each in value.items()}
    line.conditions = {
        key: [str(found[key])] for key in ("protocol", "selection", "hardware", "recipe") if key in found
    }


def _without_published(table: PaperTable, row: PlannedRow) -> list[Column]:
    metrics = table.metrics or ("R@1", "MAP@R")
    if not table.mlrc:
        return [Column(metric) for metric in metrics]
    dim = row.known_recipe.encoder.dim or 0
    folds = row.known_recipe.protocol.folds
    return [
        Column(metric, part, size)
        for part, size in (("separate", dim), ("concatenated", folds * dim))
        for metric in metrics
    ]


def _percent(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_percent(each) for each in value]
    return 100 * value if isinstance(value, float) else value
