"""A published table or figure, run row by row, with the published values next to ours: ``nearkin reproduce``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from nearkin.data.benchmarks import benchmarks
from nearkin.errors import DataError
from nearkin.report.table import Table, counted
from nearkin.runs.folder import RUNS, Outcome
from nearkin.studies.figures import Panel, draw
from nearkin.studies.mlrc import score_models
from nearkin.studies.papers import PaperTable, Settings, find_item, rows_of, table_of
from nearkin.studies.study import PlannedRun, Row, Study, planned_runs, write_table
from nearkin.studies.tables import Column, RowResult, by_data, study_record, study_table


def reproduce(
    table: str,
    *,
    data: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    seeds: int = 1,
    settings: Settings | None = None,
    folder: str | Path | None = None,
    jobs: int = 1,
    console: Console | None = None,
    train: bool = True,
) -> Reproduction:
    """Run the rows of a published table or figure, and write ours next to what is published.

    Args:
        table: its name, such as ``ccp/table-6``.
        data: data sets to run; default: all of the table. On other data nothing published is comparable.
        rows: names of the rows that are wanted; default: all that can be run here.
        seeds: runs of each row, or repeats of a reality check.
        settings: another backbone, weights, changes to every row.
        folder: where tables and runs go; default: ``runs/reproduce/<paper>``.
        jobs: runs at a time.
        console: where progress goes.
        train: False only plans the study, which is returned all the same.
    """
    paper, settings = table_of(find_item(table)), settings or Settings()
    wanted = rows_of(paper, data or paper.data, settings, wanted=rows, say=(console or Console(quiet=True)).print)
    seed = next((text for text in settings.overrides if text.startswith("training.seed=")), "training.seed=0")
    first = int(seed.partition("=")[2])
    folder = Path(folder or RUNS / "reproduce" / paper.item.paper)
    study = Reproduction(paper, wanted, range(first, first + seeds), settings, folder)
    if train:
        study.run(jobs=jobs, console=console)
        study.write()
    return study


class Reproduction(Study):
    """A published table or figure, row by row; :func:`reproduce` makes it."""

    def __init__(
        self, paper: PaperTable, wanted: Sequence[Row], seeds: Sequence[int], settings: Settings, folder: Path
    ) -> None:
        self.paper, self.wanted, self.settings, self.seeds, self.folder = paper, wanted, settings, seeds, folder
        self.rows = list({row.path: row for row in wanted if row.problem is None}.values())

    def runs(self) -> list[PlannedRun]:
        return planned_runs(self.rows, self.folder / "runs", self.seeds) if self.rows else []

    def size(self) -> str:
        return f"{counted(len(self.runs()), 'run')} for {self.paper.item.id}"

    def plan(self) -> list[str]:
        skipped = dict.fromkeys(row.problem for row in self.wanted if row.command and row.problem)
        return [f"Skipped: {problem}" for problem in skipped] + super().plan() * bool(self.rows)

    def finish(self, outcomes: list[Outcome], console: Console) -> list[Outcome]:
        for row in (row for row in self.rows if row.mlrc):
            models = planned_runs([row], self.folder / "runs", self.seeds)
            if not all(model.folder.is_finished for model in models):
                continue
            try:
                score_models(models, self.folder / "runs" / row.path, console)
            except DataError as error:  # such as models that were tested on different images
                outcomes.append(Outcome(row.name, self.seeds[0], "failed", str(error), error.exit_code))
                console.print(f"{row.title}: {error}", markup=False, highlight=False)
        return outcomes

    def failure(self, outcomes: Sequence[Outcome]) -> tuple[str, int] | None:
        if not outcomes:
            return "no row could be run here; the table says why", DataError.exit_code
        return super().failure(outcomes)

    @property
    def results(self) -> list[RowResult]:
        return [RowResult(row, tuple(planned_runs([row], self.folder / "runs", self.seeds))) for row in self.wanted]

    def table(self) -> Table:
        remarks = self.settings.remarks()
        if other := sorted({row.data for row in self.wanted} - set(self.paper.data)):
            remarks.append(f"Other data than the paper's, trained with a recipe that suits them: {', '.join(other)}.")
        return study_table(self.paper.heading, self.results, self.columns(), remarks)

    def record(self) -> dict[str, Any]:
        return {"table": self.paper.item.id, **study_record(self.folder, self.table(), self.results)}

    def write(self) -> list[Path]:
        """Write ``<table>.md``, ``.csv`` and ``.json``, and a figure once a run has finished."""
        table, name = self.table(), self.paper.item.key
        files = write_table(self.folder, name, table, self.record())
        return files + draw(self.panels(), table.title, table.conditions[0], self.folder / f"{name}.png")

    def next_steps(self) -> list[str]:
        done = " ".join(str(planned.folder.path) for planned in self.runs() if planned.folder.is_finished)
        return [f"nearkin plot {done} --only {self.paper.plots}"] if self.paper.plots and done else []

    def columns(self) -> dict[str, list[Column]]:
        """By data set: what is published there, or the scores that the table names."""
        columns = {}
        for data, results in by_data([RowResult(row, ()) for row in self.wanted]).items():
            known = list(dict.fromkeys(column for result in results for column in result.published))
            known = [column for column in known if column.metric in (self.paper.metrics or (column.metric,))]
            metrics = self.paper.metrics or (() if known else ("R@1", "MAP@R"))
            if not self.paper.mlrc:
                known += [Column(metric) for metric in metrics if metric not in {column.metric for column in known}]
            elif not known:
                recipe = results[0].row.recipe
                dim, folds = recipe.encoder.dim or 0, recipe.protocol.folds
                known = [Column(metric, "separate", dim) for metric in metrics]
                known += [Column(metric, "concatenated", folds * dim) for metric in metrics]
            # Of the reality check, each model alone comes before all concatenated.
            columns[data] = sorted(known, key=lambda column: column.part == "concatenated")
        return columns

    def panels(self) -> list[Panel]:
        """A panel for each data set and each symbol on the horizontal axis."""
        drawn = self.paper.draw
        # The reality check is about MAP@R, of the models one by one.
        metric, x = "MAP@R" if self.paper.mlrc else drawn.get("metric", "R@1"), drawn.get("x", "")
        panels = []
        for data, results in by_data(self.results).items():
            columns = self.columns()[data]
            column = next((column for column in columns if column.metric == metric), columns[0])
            title = benchmarks()[data].title if data in benchmarks() else Path(data).name
            for symbol in [x] if isinstance(x, str) else x:
                even = symbol in drawn.get("even", ())
                panels.append(Panel(title, column, results, symbol, str(drawn.get("series", "")), even))
        return panels
