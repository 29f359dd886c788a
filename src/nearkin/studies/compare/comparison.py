"""Rows on one recipe × seeds: the planner of ``nearkin compare``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from nearkin.data.source import is_benchmark
from nearkin.disk import write_atomically
from nearkin.errors import RecipeError
from nearkin.recipe.identity import deciding, short_hash
from nearkin.report import formats
from nearkin.report.formats import counted
from nearkin.report.table import Part, Table
from nearkin.runs.data import open_data, report_on
from nearkin.runs.data_report import Announce
from nearkin.runs.default_folders import RUNS, data_name, found_again, holds_run_of
from nearkin.runs.outcome import Outcome
from nearkin.studies.compare.picture import draw_comparison
from nearkin.studies.compare.rows import (
    base_recipe,
    comparison_rows,
    read_rows,
    rows_file,
    shared_recipe,
    what_differs,
)
from nearkin.studies.compare.tables import budget_text, comparison_record, comparison_table
from nearkin.studies.results import RowResult, results_of
from nearkin.studies.study import PlannedRun, Row, Study, planned_runs, run_all
from nearkin.training.observers import ConsoleObserver


def compare(
    data: str | None = None,
    *,
    recipe: str | None = None,
    rows: Sequence[str] | None = None,
    rows_from: str | Path | None = None,
    seeds: int = 3,
    changes: Iterable[str] = (),
    folder: str | Path | None = None,
    jobs: int = 1,
    overwrite: bool = False,
    console: Console | None = None,
) -> Comparison:
    """Train baselines and methods with equal budget, and write what they come to.

    Args:
        data: a benchmark, a folder with one folder per kind, or a manifest; default: what the recipe says, or Glyphs.
        recipe: name or file of the recipe that all rows share; default: that of ``rows_from``, or one that suits the
            data.
        rows: names of the rows that are wanted; default: all.
        rows_from: file that defines the rows, or the name of one that comes with nearkin.
        seeds: runs of each row.
        changes: ``section.key=value`` for every row.
        folder: where everything goes; default: one that the same call finds again.
        jobs: runs at a time.
        overwrite: run anew what the folder holds with another recipe.
        console: where progress goes.
    """
    comparison = Comparison(
        data, recipe=recipe, rows=rows, rows_from=rows_from, seeds=seeds, changes=changes, folder=folder
    )
    comparison.run(jobs=jobs, overwrite=overwrite, console=console)
    comparison.write()
    return comparison


class Comparison(Study):
    """The arguments are those of :func:`compare`.

    >>> Comparison("glyphs", rows=["vcpa"], seeds=2, folder="runs/x").plan()[0]
    'Plan: 1 row × 2 seeds = 2 runs, 0 of them finished already, into runs/x'
    """

    def __init__(
        self,
        data: str | None = None,
        *,
        recipe: str | None = None,
        rows: Sequence[str] | None = None,
        rows_from: str | Path | None = None,
        seeds: int = 3,
        changes: Iterable[str] = (),
        folder: str | Path | None = None,
    ) -> None:
        self.remarks: list[str] = []
        self._changes = list(changes)
        self.recipe_name = shared_recipe(data, recipe, rows_from, say=self.remarks.append)
        self.base = base_recipe(data, self.recipe_name, self._changes)
        self._file = rows_file(self.base, rows_from)
        self._known = read_rows(self._file)
        self.rows = comparison_rows(self.base, rows=self._known, only=rows, overrides=self._changes)
        first = self.base.training.seed
        self.seeds = list(range(first, first + seeds))
        self.folder = Path(folder) if folder is not None else self._usual_folder()
        if self.base.encoder.backbone.startswith("resnet50") and self.base.encoder.weights is None:
            self.remarks.append("The ResNet-50 starts from scratch: give it weights with encoder.weights=FILE")

    def plan(self) -> list[str]:
        runs = self.runs()
        done = sum(planned.folder.is_finished and not planned.was_changed(forgive=True) for planned in runs)
        rows, seeds = counted(len(self.rows), "row"), counted(len(self.seeds), "seed")
        return [
            f"Plan: {rows} × {seeds} = {counted(len(runs), 'run')}, {done} of them finished already, "
            f"into {self.folder}",
            f"Rows of {self._file.name} on the recipe {self.recipe_name}: {self._shared()}",
            *self.remarks,
        ]

    def runs(self) -> list[PlannedRun]:
        return planned_runs(self.rows, self.folder, self.seeds)

    def run(
        self,
        *,
        jobs: int = 1,
        overwrite: bool = False,
        console: Console | None = None,
        announce: Announce | None = None,
    ) -> list[Outcome]:
        runs = self.runs()
        left = any(planned.was_changed(forgive=overwrite) or not planned.folder.is_finished for planned in runs)
        if announce is not None and left and not is_benchmark(self.base.data.source):
            with ConsoleObserver(console or Console(quiet=True)) as observer:
                opened = open_data(self.base.data, progress=observer.decoding)
            announce(report_on(self.base, opened))
        return run_all(runs, jobs=jobs, overwrite=overwrite, console=console)

    @property
    def results(self) -> list[RowResult]:
        """What was asked for, and the other rows of the file that have finished in the same folder."""
        return results_of([planned for row in self._shown[0] for planned in self._runs_of(row)])

    def tables(self) -> list[Table]:
        table = comparison_table(self.results)
        if left_out := self._shown[1]:
            said = f"Left out, run with another recipe: {', '.join(left_out)}."
            table = Table(table.title, table.parts, table.conditions, (*table.notes, said), table.records)
        return [table]

    def record(self) -> dict[str, Any]:
        written = datetime.now(UTC).isoformat(timespec="seconds")
        return {"folder": str(self.folder), "written": written, **comparison_record(self.results)}

    def write(self) -> list[Path]:
        """Write ``comparison.md``, ``.csv`` and ``.json``, and ``comparison.png`` where there is anything to draw."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (table,) = self.tables()
        contents = {
            "comparison.md": formats.markdown(table),
            "comparison.csv": formats.csv_text(table),
            "comparison.json": json.dumps(self.record(), indent=2, ensure_ascii=False) + "\n",
        }
        for name, text in contents.items():
            write_atomically(self.folder / name, text.encode())
        drawn = draw_comparison(self.results, self.folder / "comparison.png")
        return [*(self.folder / name for name in contents), *drawn]

    def next_steps(self) -> list[str]:
        done = (planned.folder.path for planned in self.runs() if planned.folder.is_finished)
        return [f"nearkin plot {path}" for path in list(done)[:1]]

    def listing(self) -> Table:
        cells = [
            (row.name, row.base or "–", f"{row.title}: {', '.join(what_differs(row.recipe, self.base))}")
            for row in self.rows
        ]
        records = tuple(
            {"name": row.name, "title": row.title, "base": row.base, "recipe": row.recipe.as_mapping()}
            for row in self.rows
        )
        part = Part.of(("name", "base", "what it is"), cells, texts=3)
        shared = f"The same for all: {self._shared()}."
        return Table(f"Rows on {self.base.data.source}", (part,), (shared,), records=records)

    @cached_property
    def _shown(self) -> tuple[list[Row], list[str]]:
        """The rows of the table, and the names of those that are left out because they were run with another recipe."""
        asked = {row.name: row for row in self.rows}
        shown, left_out = [], []
        for each in self._known:
            if each.name in asked:
                shown.append(asked[each.name])
                continue
            try:
                (row,) = comparison_rows(self.base, rows=self._known, only=[each.name], overrides=self._changes)
            except RecipeError:
                continue  # changes for one loss need not fit rows that were not asked for
            runs = self._runs_of(row)
            if any(planned.was_changed(forgive=True) for planned in runs):
                left_out.append(row.name)
            elif any(planned.folder.is_finished for planned in runs):
                shown.append(row)
        return shown, left_out

    def _runs_of(self, row: Row) -> list[PlannedRun]:
        return planned_runs([row], self.folder, self.seeds)

    def _shared(self) -> str:
        encoder, training = self.base.encoder, self.base.training
        return (
            f"{encoder.backbone}, {encoder.dim} dimensions, {budget_text(self.base)}, {training.schedule} schedule, "
            f"{self.base.protocol.name} protocol"
        )

    def _usual_folder(self) -> Path:
        """``runs/compare-<data>-<hash>``: the same call always has the same folder.

        A folder of another name that holds runs of these rows is found again.
        """
        known = deciding(self.base).items()
        shared = {key: value for key, value in known if not key.startswith(("objective.", "method."))}
        for_rows = sorted(text for text in self._changes if text.startswith(("objective.", "method.")))
        usual = RUNS / f"compare-{data_name(self.base)}-{short_hash([shared, for_rows])}"
        return found_again(usual, self._is_held_by)

    def _is_held_by(self, folder: Path) -> bool:
        """Whether a folder holds runs of these rows, and none of others under their names."""
        begun = []
        for row in self.rows:
            for path in folder.glob(f"{row.name}/seed-*"):
                seed = path.name.removeprefix("seed-")
                recipe = row.recipe.but({"training.seed": int(seed) if seed.isdecimal() else 0})
                begun.append(holds_run_of(path, recipe))
        return bool(begun) and all(begun)
