"""A published table or figure, run row by row, with the published values next to ours: ``nearkin reproduce``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from nearkin.errors import DataError
from nearkin.report.formats import counted
from nearkin.report.table import Table
from nearkin.runs.data import Announce
from nearkin.runs.outcome import Outcome
from nearkin.studies.digits import DIGITS, write_digits
from nearkin.studies.mlrc import score_models
from nearkin.studies.paper_rows import Line, Settings, missing_data, planned_lines
from nearkin.studies.papers import PaperTable, find_item, tables_of
from nearkin.studies.reproduction_figures import draw_table
from nearkin.studies.reproduction_table import LineResult, reproduction_records, reproduction_table, result_of
from nearkin.studies.study import PlannedRun, Study, planned_runs, write_table


def reproduce(
    table: str,
    *,
    data: Iterable[str] | None = None,
    rows: Sequence[str] | None = None,
    seeds: int = 1,
    settings: Settings | None = None,
    folder: str | Path | None = None,
    jobs: int = 1,
    console: Console | None = None,
) -> Reproduction:
    """Run the rows of a published table or figure, and write ours next to what is published.

    Args:
        table: its name, such as ``ccp/table-6``.
        data: data sets to run; default: all of the table. On others than the paper's, the methods are trained as suits
            the data, and there is nothing published to compare with.
        rows: names of the rows that are wanted; default: all that can be run here.
        seeds: runs of each row, or repeats of a reality check.
        settings: another backbone, weights, changes to every row.
        folder: where tables and runs go; default: ``runs/reproduce/<paper>``.
        jobs: runs at a time.
        console: where progress goes.
    """
    study = Reproduction(table, data=data, rows=rows, seeds=seeds, settings=settings, folder=folder)
    study.run(jobs=jobs, console=console)
    study.write()
    return study


class Reproduction(Study):
    """A published table or figure, row by row. The arguments are those of :func:`reproduce`.

    ``say`` is called with what replaces missing data; a study that is only ``listed`` draws none.
    """

    def __init__(
        self,
        table: str,
        *,
        data: Iterable[str] | None = None,
        rows: Sequence[str] | None = None,
        seeds: int = 1,
        settings: Settings | None = None,
        folder: str | Path | None = None,
        say: Callable[[str], None] = print,
        listed: bool = False,
    ) -> None:
        item, self.settings = find_item(table), settings or Settings()
        self.id, self.instead = item.id, item.instead
        seed = next((text for text in self.settings.overrides if text.startswith("training.seed=")), "training.seed=0")
        first = int(seed.partition("=")[2])
        self.seeds = range(first, first + seeds)
        self.folder = Path(folder) if folder is not None else Path("runs") / "reproduce" / item.paper
        self._unscored: dict[str, str] = {}
        wanted = None if data is None else list(data)
        self.paper_tables = tables_of(item)
        if wanted is not None and len(self.paper_tables) > 1:
            chosen = [each for each in self.paper_tables if set(wanted) & set(each.data)]
            self.paper_tables = chosen or self.paper_tables[:1]
        digits = not listed and any(each.drawing == "digits" for each in self.paper_tables)
        if digits and missing_data("mnist", self.settings.root) is not None:
            say(f"MNIST is not here: {DIGITS}")
            self.settings = replace(self.settings, stand_in=str(write_digits(self.folder / "digits")))
        several = len(self.paper_tables) > 1
        self.lines: list[Line] = []
        for each in self.paper_tables:
            sources = [name for name in wanted or each.data if name in each.data or not several]
            self.lines += planned_lines(each, rows, sources, self.settings, say=say)
        runnable = (line for line in self.lines if line.wanted and line.problem is None)
        self.rows = list({(row := line.study_row).name: row for line in runnable}.values())

    def runs(self) -> list[PlannedRun]:
        return planned_runs(self.rows, self.folder / "runs", self.seeds) if self.rows else []

    def plan(self) -> list[str]:
        problems = dict.fromkeys(line.problem for line in self.lines if line.wanted and line.recipe and line.problem)
        runs = self.runs()
        done = sum(planned.folder.is_finished for planned in runs)
        number = f"{counted(len(runs), 'run')} for {self.id}, {done} of them finished already"
        plan = [f"Plan: {number}, into {self.folder}"] if runs else []
        return [f"Skipped: {problem}" for problem in problems] + plan

    def run(
        self,
        *,
        jobs: int = 1,
        overwrite: bool = False,
        console: Console | None = None,
        announce: Announce | None = None,
    ) -> list[Outcome]:
        console = console or Console(quiet=True)
        outcomes = super().run(jobs=jobs, overwrite=overwrite, console=console)
        for row in (row for row in self.rows if row.mlrc):
            models = planned_runs([row], self.folder / "runs", self.seeds)
            if not all(model.folder.is_finished for model in models):
                continue
            try:
                score_models(models, self.folder / "runs" / row.name, console)
            except DataError as error:  # models of other images make no ensemble
                self._unscored[row.name] = str(error)
                outcomes.append(Outcome(row.name, self.seeds[0], "failed", str(error), error.exit_code))
        return outcomes

    def failure(self, outcomes: Sequence[Outcome]) -> tuple[str, int] | None:
        if not outcomes:
            return "no row could be run here; the table says why", DataError.exit_code
        return super().failure(outcomes)

    def results(self, table: PaperTable) -> list[LineResult]:
        """The rows that were asked for, and others of the table that have finished in the same folder."""
        lines = [line for line in self.lines if line.table is table]
        results = [result_of(line, lines, self.folder / "runs", self.seeds, self._unscored) for line in lines]
        return [result for result in results if result.seeds or result.line.wanted]

    def tables(self) -> list[Table]:
        return [reproduction_table(table, self.results(table), self.settings.notes) for table in self.paper_tables]

    def record(self) -> dict[str, Any]:
        records = [self._record(table) for table in self.paper_tables]
        return {"folder": str(self.folder), **(records[0] if len(records) == 1 else {"tables": records})}

    def write(self) -> list[Path]:
        """Write ``<table>.md``, ``.csv`` and ``.json``, and a figure once a run has finished."""
        files = []
        for paper, table in zip(self.paper_tables, self.tables(), strict=True):
            files += write_table(self.folder, paper.item.key, table, self._record(paper))
            files += draw_table(paper, self.results(paper), table.conditions[0], self.folder)
        return files

    def _record(self, paper: PaperTable) -> dict[str, Any]:
        results = self.results(paper)
        table = reproduction_table(paper, results, self.settings.notes)
        return {
            "table": paper.item.id,
            "title": paper.heading,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "caption": table.conditions,
            "notes": table.notes,
            "figures": reproduction_records(paper, results),
            "rows": [
                result.line.as_record()
                | {
                    "status": result.status,
                    "problem": result.problem,
                    "folders": [str(path) for path in result.folders],
                }
                for result in results
            ],
        }
