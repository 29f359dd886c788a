"""A study whose table is that of a comparison: a planner need only say which rows there are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from nearkin.data.source import is_benchmark
from nearkin.recipe import Recipe
from nearkin.recipe.identity import fingerprint, short_hash
from nearkin.report.formats import counted
from nearkin.report.table import NOTHING, Part, Table
from nearkin.runs.data import Announce
from nearkin.runs.default_folders import RUNS, data_name
from nearkin.runs.outcome import Outcome
from nearkin.studies.compare.picture import draw_comparison
from nearkin.studies.compare.rows import what_differs
from nearkin.studies.compare.tables import budget_text, comparison_record, comparison_table
from nearkin.studies.results import RowResult, results_of
from nearkin.studies.study import PlannedRun, Row, Study, opened, planned_runs, run_all


class RowStudy(Study):
    """Rows around one recipe × seeds. What a planner adds is its :attr:`rows` and, keyword-only, its own options.

    Args:
        base: the recipe that the rows start from.
        seeds: runs of each row.
        folder: where everything goes; default: one that the same recipe and rows find again.
    """

    def __init__(self, base: Recipe, *, seeds: int = 3, folder: str | Path | None = None) -> None:
        self.base = base
        self.seeds = list(range(base.training.seed, base.training.seed + seeds))
        self.folder = Path(folder) if folder is not None else self.default_folder()

    @property
    @abstractmethod
    def rows(self) -> Sequence[Row]:
        """The rows, each with a name of its own."""

    def default_folder(self) -> Path:
        """``runs/<planner>-<data>-<hash>``."""
        decides = [fingerprint(row.recipe, besides=("training.seed",)) for row in self.rows]
        return RUNS / f"{type(self).__name__.lower()}-{data_name(self.base)}-{short_hash(decides)}"

    def plan(self) -> list[str]:
        runs = self.runs()
        done = sum(planned.folder.is_finished and not planned.was_changed(forgive=True) for planned in runs)
        rows, seeds = counted(len(self.rows), "row"), counted(len(self.seeds), "seed")
        product = f"{rows} × {seeds} = {counted(len(runs), 'run')}"
        return [f"Plan: {product}, {done} of them finished already, into {self.folder}"]

    def runs(self) -> list[PlannedRun]:
        return planned_runs(self.rows, self.folder, self.seeds)

    def carry_out(self, jobs: int, overwrite: bool, console: Console, announce: Announce | None) -> list[Outcome]:
        runs = self.runs()
        left = any(planned.was_changed(forgive=overwrite) or not planned.folder.is_finished for planned in runs)
        if announce is not None and left and not is_benchmark(self.base.data.source):
            opened(self.base, console, announce)
        return run_all(runs, jobs=jobs, overwrite=overwrite, console=console)

    @property
    def results(self) -> list[RowResult]:
        """What the runs have come to."""
        return results_of(self.runs())

    def notes(self) -> list[str]:
        """What to mind beside what the results say themselves."""
        return []

    def tables(self) -> list[Table]:
        table = comparison_table(self.results)
        return [replace(table, notes=(*table.notes, *self.notes()))]

    def record(self) -> dict[str, Any]:
        written = datetime.now(UTC).isoformat(timespec="seconds")
        return {"folder": str(self.folder), "written": written, **comparison_record(self.results)}

    def write(self) -> list[Path]:
        """Write ``comparison.md``, ``.csv`` and ``.json``, and ``comparison.png`` where there is anything to draw."""
        files = self.write_table("comparison", self.tables()[0], self.record())
        return files + draw_comparison(self.results, self.folder / "comparison.png")

    def next_steps(self) -> list[str]:
        done = (planned.folder.path for planned in self.runs() if planned.folder.is_finished)
        return [f"nearkin plot {path}" for path in list(done)[:1]]

    def listing(self) -> Table:
        """The rows and what is special about each."""
        cells = [
            (row.name, row.base or NOTHING, f"{row.title}: {', '.join(what_differs(row.recipe, self.base))}")
            for row in self.rows
        ]
        records = tuple(
            {"name": row.name, "title": row.title, "base": row.base, "recipe": row.recipe.as_mapping()}
            for row in self.rows
        )
        part = Part.of(("name", "base", "what it is"), cells, texts=3)
        shared = f"The same for all: {self.shared_text()}."
        return Table(f"Rows on {self.base.data.source}", (part,), (shared,), records=records)

    def shared_text(self) -> str:
        """What the rows have in common of encoder, budget and protocol."""
        first, *others = [
            [
                recipe.encoder.backbone,
                f"{recipe.encoder.dim} dimensions",
                budget_text(recipe),
                f"{recipe.training.schedule} schedule",
                f"{recipe.protocol.name} protocol",
            ]
            for recipe in (row.recipe for row in self.rows)
        ]
        return ", ".join(part for part in first if all(part in other for other in others))
