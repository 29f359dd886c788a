"""Our scores next to the published ones: a part for each data set, with what both hold for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nearkin.data.benchmarks import benchmarks
from nearkin.evaluation.statistics import Statistic
from nearkin.recipe import Recipe
from nearkin.report import table as report_table
from nearkin.report.formats import signed
from nearkin.report.published import SAME_SCORE, Published
from nearkin.report.table import NOTHING, Part, Table
from nearkin.runs.scores import EnsembleScores, Scores
from nearkin.studies.paper_rows import Line
from nearkin.studies.papers import PaperTable
from nearkin.studies.results import RowResult
from nearkin.studies.study import planned_runs

BACKBONES = {"bninception": "BN-Inception", "resnet50": "ResNet-50", "googlenet": "GoogLeNet"}
ENSEMBLES: dict[str, Literal["separate", "concatenated"]] = {
    "mlrc-mean": "separate",
    "mlrc-ensemble": "concatenated",
    "mlrc": "concatenated",
}
"""Which of the reality check's two results a published value is: of each model alone, or concatenated."""
TIMES = ("ms/batch", "ms/batch of 180")
CONDITIONS = ("protocol", "selection", "hardware", "recipe")
PATIENCE = 60
"""Evaluations without a new best after which the CCP paper ends a training; its table I counts them."""


@dataclass(frozen=True)
class Column:
    """A score, and for the reality check of which of its two results."""

    metric: str
    part: Literal["", "separate", "concatenated"] = ""
    dim: int | None = None

    @classmethod
    def of(cls, published: Published, mlrc: bool) -> Column:
        """The column that a published value stands in."""
        return cls(published.metric, ENSEMBLES[published.protocol], published.dim) if mlrc else cls(published.metric)

    @property
    def score(self) -> str:
        """Our name of the score."""
        return SAME_SCORE.get(self.metric, self.metric)

    @property
    def label(self) -> str:
        return f"{self.dim}-d {self.metric}" if self.dim is not None else self.metric

    @property
    def is_share(self) -> bool:
        """Whether it is a score between 0 and 1, which tables show in per cent."""
        return self.metric not in (*TIMES, "ksteps")


@dataclass
class LineResult:
    """A row on a data set with its published values, ours, and the conditions of ours."""

    line: Line
    columns: list[Column]
    published: dict[Column, Published]
    problem: str | None = None
    status: str = "not run"
    ours: dict[Column, Statistic] = field(default_factory=dict)
    """In the published unit: scores in per cent."""
    last: dict[Column, Statistic] = field(default_factory=dict)
    """The same of the last epoch, where the reported one was chosen on the test classes."""
    seeds: list[int] = field(default_factory=list)
    repeats: int = 0
    """Runs of the row, or repeats of the reality check."""
    conditions: dict[str, list[str]] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)

    def difference(self, column: Column) -> float | None:
        """Ours minus the published value."""
        if column not in self.ours or column not in self.published:
            return None
        return self.ours[column].mean - self.published[column].value


def columns_of(table: PaperTable, lines: Sequence[Line]) -> list[Column]:
    """The columns of the lines of one data set: what is published there, or the scores that the table names."""
    published = dict.fromkeys(Column.of(each, table.mlrc) for line in lines for each in line.published)
    columns = [each for each in published if not table.metrics or each.metric in table.metrics]
    metrics = table.metrics or (() if columns else ("R@1", "MAP@R"))
    if not table.mlrc:
        columns += [Column(metric) for metric in metrics if metric not in {each.metric for each in columns}]
    elif not columns:
        recipe = next(line.recipe for line in lines if line.recipe is not None)
        dim = recipe.encoder.dim or 0
        columns = [Column(metric, "separate", dim) for metric in metrics]
        columns += [Column(metric, "concatenated", recipe.protocol.folds * dim) for metric in metrics]
    # Of the reality check, each model alone comes before all concatenated.
    return sorted(columns, key=lambda column: column.part == "concatenated")


def result_of(
    line: Line, lines: Sequence[Line], folder: Path, seeds: Sequence[int], unscored: Mapping[str, str]
) -> LineResult:
    """A line with its published values and with what its runs hold.

    ``lines`` are those of the table; ``unscored`` has the reasons why models of reality checks could not be scored.
    """
    columns = columns_of(line.table, [other for other in lines if other.data == line.data])
    published = {Column.of(each, line.table.mlrc): each for each in line.published}
    published = {column: each for column, each in published.items() if column in columns}
    result = LineResult(line, columns, published, line.problem)
    if line.recipe is None:
        result.status = "not in nearkin"
        return result
    row = line.study_row
    runs = RowResult(row, tuple(planned_runs([row], folder, seeds)))
    ended = [outcome for outcome in runs.problems if outcome.status != "unfinished"]
    if line.problem is not None:
        result.status = "skipped"
    elif ended:
        result.status, result.problem = ended[-1].status, ended[-1].reason
    elif row.name in unscored:
        result.status, result.problem = "not scored", unscored[row.name]
    if not row.mlrc:
        result.folders, result.seeds, result.repeats = (
            [run.folder.path for run in runs.runs],
            runs.seeds,
            len(runs.seeds),
        )
        result.conditions = {key: runs.condition(key) for key in CONDITIONS}
        for column in columns:
            values = (measured(scores, column, line.recipe) for scores in runs.scores)
            if (ours := Statistic.of(value for value in values if value is not None)) is not None:
                result.ours[column] = ours
            if column.is_share and (last := runs.last(column.score)) is not None:
                result.last[column] = last.scaled(100)
    elif (ensemble := EnsembleScores.read(folder / row.name)) is not None:
        result.folders, result.seeds = [folder / row.name], list(ensemble.seeds)
        result.repeats, result.conditions = (
            ensemble.repeats,
            {key: [getattr(ensemble.conditions, key)] for key in CONDITIONS},
        )
        for column in columns:
            scored = ensemble.separate if column.part == "separate" else ensemble.concatenated
            if (value := scored.get(column.score)) is not None:
                result.ours[column] = value.scaled(100)
    if result.seeds:
        result.status = "finished" if result.problem is None else f"some {result.status}"
    return result


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


def reproduction_table(
    table: PaperTable, results: Sequence[LineResult], settings_notes: Callable[[str], list[str]]
) -> Table:
    """For every row ours, the last epoch's, the published one and the difference."""
    numbers = {
        reason: number for number, reason in enumerate(dict.fromkeys(filter(None, (r.problem for r in results))), 1)
    }
    parts = []
    for data in dict.fromkeys(result.line.data for result in results):
        rows = [result for result in results if result.line.data == data]
        title = benchmarks()[data].title if data in benchmarks() else data
        lines = [line for result in rows for line in _lines(result, numbers)]
        headings = ("", "", *(column.label for column in rows[0].columns))
        parts.append(Part(headings, tuple(lines), title=title, texts=2))
    return Table(
        table.heading,
        tuple(parts),
        tuple(_caption(table, results, settings_notes)),
        tuple(_notes(results, numbers)),
        tuple(reproduction_records(table, results)),
    )


def reproduction_records(table: PaperTable, results: Sequence[LineResult]) -> list[dict[str, Any]]:
    """One for every row, data set and score, with all digits."""
    records = []
    for result in results:
        for column in result.columns:
            ours, last, published = result.ours.get(column), result.last.get(column), result.published.get(column)
            interval = ours.interval if ours else None
            records.append(
                {
                    "table": table.item.id,
                    "data": result.line.data,
                    "row": result.line.row.name,
                    "title": result.line.row.title,
                    **{f"at {symbol}": value for symbol, value in result.line.row.at.items()},
                    "metric": column.metric,
                    "part": column.part or None,
                    "dim": column.dim,
                    "ours": ours.mean if ours else None,
                    "ours spread": ours.spread if ours else None,
                    "interval": None if interval is None else [f"{value:g}" for value in interval],
                    "last epoch": last.mean if last else None,
                    "published": published.value if published else None,
                    "published spread": published.spread if published else None,
                    "difference": result.difference(column),
                    "status": result.status,
                    "problem": result.problem,
                    "seeds": [str(seed) for seed in result.seeds],
                    **{key: result.conditions.get(key, []) for key in CONDITIONS},
                    "published backbone": published.backbone if published else None,
                    "published protocol": published.protocol if published else None,
                }
            )
    return records


def _lines(result: LineResult, numbers: Mapping[str, int]) -> list[report_table.Line]:
    number = f" ({numbers[result.problem]})" if result.problem is not None else ""
    ours, last = ({column: value.text() for column, value in those.items()} for those in (result.ours, result.last))
    entries = [(f"{'ours' if result.seeds else result.status}{number}", "", ours)]
    if last:
        entries.append(("last epoch", "last", last))
    if result.published:
        entries.append(("published", "published", {column: each.text for column, each in result.published.items()}))
    if result.published and result.seeds:
        apart = {column: result.difference(column) for column in result.columns}
        entries.append(("difference", "difference", {key: signed(d) for key, d in apart.items() if d is not None}))
    return [
        report_table.Line(
            ("" if index else result.line.row.title, what, *(texts.get(column, NOTHING) for column in result.columns)),
            kind,
            begins_group=not index,
        )
        for index, (what, kind, texts) in enumerate(entries)
    ]


def _caption(table: PaperTable, results: Sequence[LineResult], settings_notes: Callable[[str], list[str]]) -> list[str]:
    """What the scores hold for: protocol, selection, seeds, hardware and backbone, ours and the published ones."""
    done = [result for result in results if result.seeds]

    def values(key: str, joined_by: str) -> str:
        return joined_by.join(sorted({value for result in done for value in result.conditions.get(key, [])}))

    texts = ["Ours: no run has finished."]
    if done:
        counts, seeds = ({r.repeats for r in done}, {seed for r in done for seed in r.seeds})
        runs = f"seeds {', '.join(map(str, sorted(seeds)))}"
        if table.mlrc:
            runs = f"{' or '.join(map(str, sorted(counts)))} repeats of all folds"
        parts = [f"{values('protocol', ' and ')} protocol, {values('selection', ' or ')}", runs]
        texts = [f"Ours: {'; '.join([*parts, values('hardware', ' and ')])}."]
    published = [each for result in results for each in result.published.values()]
    backbones = " and ".join(sorted({BACKBONES.get(each.backbone, each.backbone) for each in published}))
    if published:
        texts.append(f"Published: {backbones}, {' and '.join(sorted({each.protocol for each in published}))} protocol.")
    texts += settings_notes(backbones)
    if other := sorted({result.line.data for result in results} - set(table.data)):
        texts.append(f"Other data than the paper's, trained with a recipe that suits them: {', '.join(other)}.")
    if any(value.spread is not None for result in done for value in result.ours.values()):
        texts.append("± is the sample standard deviation over the runs; published, it is what the paper gives.")
    elif done:
        texts.append(f"One {'repeat' if table.mlrc else 'seed'}, so no spread of ours.")
    return texts


def _notes(results: Sequence[LineResult], numbers: Mapping[str, int]) -> list[str]:
    """Why rows were skipped or failed, each reason once, under the number that the table has for it."""
    texts = []
    for reason, number in numbers.items():
        rows = [result for result in results if result.problem == reason]
        names = ", ".join(f"{result.line.row.title} on {result.line.data}" for result in rows[:4])
        more = f" and {len(rows) - 4} more" if len(rows) > 4 else ""
        texts.append(f"({number}) {names}{more}: {rows[0].status}: {reason}")
    return texts
