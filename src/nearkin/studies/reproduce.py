"""A published table or figure, run row by row, with the published values next to ours: ``nearkin reproduce``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console

from nearkin.data.benchmarks import benchmarks
from nearkin.data.benchmarks.glyphs import FACES, GlyphClass, draw_glyphs
from nearkin.errors import DataError
from nearkin.report.table import Table, counted
from nearkin.runs.folder import Outcome
from nearkin.studies.figures import Panel, draw
from nearkin.studies.mlrc import score_models
from nearkin.studies.papers import PaperTable, Settings, find_item, missing_data, rows_of, tables_of
from nearkin.studies.results import Column, RowResult
from nearkin.studies.study import PlannedRun, Row, Study, planned_runs, write_table
from nearkin.studies.tables import by_data, study_record, study_table


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
        papers, wanted = tables_of(item), None if data is None else list(data)
        if wanted is not None and len(papers) > 1:
            papers = [paper for paper in papers if set(wanted) & set(paper.data)] or papers[:1]
        sources = {
            paper.item.id: [name for name in wanted or paper.data if name in paper.data or len(papers) == 1]
            for paper in papers
        }
        mnist = not listed and any("mnist" in names for names in sources.values())
        if mnist and missing_data("mnist", self.settings.root) is not None:
            say("MNIST is not here: the ten digits of Glyphs are used instead")
            self.settings = replace(self.settings, stand_in=str(write_digits(self.folder / "digits")))
        self.papers = papers
        self.wanted: dict[str, list[Row]] = {}
        """By the id of the table, the rows that were asked for; then those of the whole table."""
        self.known: dict[str, list[Row]] = {}
        for paper in papers:
            names = sources[paper.item.id]
            self.wanted[paper.item.id] = rows_of(paper, names, self.settings, wanted=rows, say=say)
            self.known[paper.item.id] = rows_of(paper, names, self.settings, say=lambda text: None)
        asked = (row for members in self.wanted.values() for row in members if row.problem is None)
        self.rows = list({row.path: row for row in asked}.values())

    def runs(self) -> list[PlannedRun]:
        return planned_runs(self.rows, self.folder / "runs", self.seeds) if self.rows else []

    def plan(self) -> list[str]:
        wanted = [row for rows in self.wanted.values() for row in rows]
        skipped = dict.fromkeys(row.problem for row in wanted if row.command and row.problem)
        runs = self.runs()
        done = sum(planned.folder.is_finished for planned in runs)
        number = f"{counted(len(runs), 'run')} for {self.id}, {done} of them finished already"
        plan = [f"Plan: {number}, into {self.folder}"] if runs else []
        return [f"Skipped: {problem}" for problem in skipped] + plan

    def finish(self, outcomes: list[Outcome], console: Console) -> list[Outcome]:
        for row in (row for row in self.rows if row.mlrc):
            models = planned_runs([row], self.folder / "runs", self.seeds)
            if not all(model.folder.is_finished for model in models):
                continue
            try:
                score_models(models, self.folder / "runs" / row.path, console)
            except DataError as error:  # models of other images make no ensemble
                outcomes.append(Outcome(row.name, self.seeds[0], "failed", str(error), error.exit_code))
                console.print(f"{row.title}: {error}", markup=False, highlight=False)
        return outcomes

    def failure(self, outcomes: Sequence[Outcome]) -> tuple[str, int] | None:
        if not outcomes:
            return "no row could be run here; the table says why", DataError.exit_code
        return super().failure(outcomes)

    def results(self, paper: PaperTable) -> list[RowResult]:
        """The rows that were asked for, and others of the table that have finished in the same folder."""
        wanted, rows = {row.path for row in self.wanted[paper.item.id]}, self.known[paper.item.id]
        results = [RowResult(row, tuple(planned_runs([row], self.folder / "runs", self.seeds))) for row in rows]
        return [result for result in results if result.row.path in wanted or result.seeds]

    def tables(self) -> list[Table]:
        return [self._table(paper) for paper in self.papers]

    def record(self) -> dict[str, Any]:
        records = [self._record(paper) for paper in self.papers]
        return {"folder": str(self.folder), **(records[0] if len(records) == 1 else {"tables": records})}

    def write(self) -> list[Path]:
        """Write ``<table>.md``, ``.csv`` and ``.json``, and a figure once a run has finished."""
        files = []
        for paper in self.papers:
            table = self._table(paper)
            files += write_table(self.folder, paper.item.key, table, self._record(paper))
            caption = " ".join(table.conditions[:1])
            files += draw(self._panels(paper), paper.heading, caption, self.folder / f"{paper.item.key}.png")
        return files

    def next_steps(self) -> list[str]:
        done = " ".join(str(planned.folder.path) for planned in self.runs() if planned.folder.is_finished)
        return [f"nearkin plot {done} --only {paper.plots}" for paper in self.papers if paper.plots and done]

    def columns(self, paper: PaperTable) -> dict[str, list[Column]]:
        """By data set: what is published there, or the scores that the table names."""
        columns = {}
        for data, results in by_data([RowResult(row, ()) for row in self.known[paper.item.id]]).items():
            known = list(dict.fromkeys(column for result in results for column in result.published))
            known = [column for column in known if not paper.metrics or column.metric in paper.metrics]
            metrics = paper.metrics or (() if known else ("R@1", "MAP@R"))
            if not paper.mlrc:
                known += [Column(metric) for metric in metrics if metric not in {column.metric for column in known}]
            elif not known:
                recipe = results[0].row.recipe
                dim, folds = recipe.encoder.dim or 0, recipe.protocol.folds
                known = [Column(metric, "separate", dim) for metric in metrics]
                known += [Column(metric, "concatenated", folds * dim) for metric in metrics]
            # Of the reality check, each model alone comes before all concatenated.
            columns[data] = sorted(known, key=lambda column: column.part == "concatenated")
        return columns

    def _table(self, paper: PaperTable) -> Table:
        results, remarks = self.results(paper), self.settings.remarks()
        if other := sorted({result.row.data for result in results} - set(paper.data)):
            remarks.append(f"Other data than the paper's, trained with a recipe that suits them: {', '.join(other)}.")
        return study_table(paper.heading, results, self.columns(paper), remarks)

    def _record(self, paper: PaperTable) -> dict[str, Any]:
        written = datetime.now(UTC).isoformat(timespec="seconds")
        return {"table": paper.item.id, "written": written, **study_record(self._table(paper), self.results(paper))}

    def _panels(self, paper: PaperTable) -> list[Panel]:
        # The reality check is about MAP@R, of the models one by one.
        metric, x = "MAP@R" if paper.mlrc else paper.draw.get("metric", "R@1"), paper.draw.get("x", "")
        panels = []
        for data, results in by_data(self.results(paper)).items():
            columns = self.columns(paper)[data]
            column = next((column for column in columns if column.metric == metric), columns[0])
            title = benchmarks()[data].title if data in benchmarks() else Path(data).name
            for symbol in [x] if isinstance(x, str) else x:
                even = symbol in paper.draw.get("even", ())
                panels.append(Panel(title, column, results, symbol, str(paper.draw.get("series", "")), even))
        return panels


def write_digits(folder: Path, *, drawings: int = 8, size: int = 28, strength: float = 0.5) -> Path:
    """Draw the ten digits in every face of Glyphs, ``drawings`` times each, into a folder per digit.

    What is there already is left alone.
    """
    classes = [GlyphClass(ord(digit), dict.fromkeys(FACES, ord(digit))) for digit in "0123456789"]
    for seed in range(drawings):
        if (folder / "9" / f"{FACES[-1]}-{seed}.png").exists():
            continue
        table = draw_glyphs(classes, size=size, seed=seed, strength=strength)
        for pixels, digit, face in zip(table.images, table.columns["character"], table.columns["face"], strict=True):
            file = folder / str(digit) / f"{face}-{seed}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.asarray(pixels)).save(file)
    return folder
