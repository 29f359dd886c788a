"""Baselines and methods on one recipe, with equal budget, over several seeds: ``nearkin compare``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from nearkin.errors import RecipeError
from nearkin.recipe import deciding, fingerprint, flat, short_hash
from nearkin.report.differences import COMPARED
from nearkin.report.table import NOTHING, Part, Table
from nearkin.runs.folder import RUNS, data_name
from nearkin.studies.figures import Panel, draw
from nearkin.studies.results import Column, RowResult, results_of
from nearkin.studies.rows import (
    RowChanges,
    ablated_rows,
    base_recipe,
    named_rows,
    read_rows,
    rows_file,
    rows_on,
    shared_recipe,
    varied_rows,
)
from nearkin.studies.study import Row, Study, chosen_names, planned_runs, write_table
from nearkin.studies.tables import study_record, study_table
from nearkin.training.recipes import load_recipe


def compare(
    data: str | None = None,
    *,
    recipe: str | None = None,
    rows: Sequence[str] | None = None,
    rows_from: str | Path | None = None,
    vary: str | None = None,
    ablate: Sequence[str] = (),
    against: str | None = None,
    seeds: int = 3,
    changes: Iterable[str] = (),
    folder: str | Path | None = None,
    jobs: int = 1,
    overwrite: bool = False,
    console: Console | None = None,
) -> Comparison:
    """Train rows with equal budget, and write what they come to.

    Args:
        data: a benchmark, a folder with one folder per class, or a manifest; default: what the recipe names, or Glyphs.
        recipe: name or file of the recipe that all rows share; default: that of ``rows_from``, or one that suits the
            data.
        rows: names of the rows that are wanted; default: all.
        rows_from: file that defines the rows, or the name of one that comes with nearkin.
        vary: ``key=a,b,c``: instead of a file's rows, one row for each value of this key.
        ablate: changes ``key=value``: instead of a file's rows, the recipe and one row for each change.
        against: the row that those without a base of their own are compared with; default: the first.
        seeds: runs of each row.
        changes: ``section.key=value`` for every row.
        folder: where everything goes; default: one that the same call finds again.
        jobs: runs at a time.
        overwrite: run again what the folder holds with another recipe.
        console: where progress goes.
    """
    comparison = Comparison(
        data,
        recipe=recipe,
        rows=rows,
        rows_from=rows_from,
        vary=vary,
        ablate=ablate,
        against=against,
        seeds=seeds,
        changes=changes,
        folder=folder,
    )
    comparison.run(jobs=jobs, overwrite=overwrite, console=console)
    comparison.write()
    return comparison


class Comparison(Study):
    """Baselines and methods on one recipe, with equal budget. The arguments are those of :func:`compare`.

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
        vary: str | None = None,
        ablate: Sequence[str] = (),
        against: str | None = None,
        seeds: int = 3,
        changes: Iterable[str] = (),
        folder: str | Path | None = None,
    ) -> None:
        if sum(map(bool, (rows_from, vary, ablate))) > 1:
            raise RecipeError("rows come from a file, from one key's values or from single changes: give one of these")
        self.remarks: list[str] = []
        self._changes = list(changes)
        self._known: list[RowChanges] = []
        self.recipe_name = shared_recipe(data, recipe, rows_from, say=self.remarks.append)
        if vary or ablate:
            self._source = "one row for each value" if vary else "one change at a time"
            source = [] if data is None else [f"data.source={json.dumps(data)}"]
            self.base = load_recipe(self.recipe_name, [*source, *self._changes])
            key, _, values = (vary or "").partition("=")
            made = varied_rows(self.base, key, values.split(",")) if vary else ablated_rows(self.base, ablate)
            wanted = [row.name for row in made] if rows is None else chosen_names(rows, [row.name for row in made])
            self.rows = [row for row in made if row.name in wanted]
        else:
            self.base = base_recipe(data, self.recipe_name, self._changes)
            file = rows_file(self.base) if rows_from is None else named_rows(rows_from)
            self._source, self._known = f"rows of {file.name}", read_rows(file)
            self.rows = self._rows_on(rows)
        if against is not None:
            names = [row.name for row in self._known] or [row.name for row in self.rows]
            (base,) = chosen_names([against], names)
            self.rows = [replace(row, base=None if row.name == base else row.base or base) for row in self.rows]
        if self.base.encoder.backbone.startswith("resnet50") and self.base.encoder.weights is None:
            self.remarks.append("The ResNet-50 starts from scratch: give it weights with encoder.weights=FILE")
        first = self.base.training.seed
        self.seeds = range(first, first + seeds)
        self.folder = Path(folder) if folder is not None else self._default_folder()

    def plan(self) -> list[str]:
        return [*super().plan(), f"Recipe {self.recipe_name}, {self._source}", *self.remarks]

    @property
    def results(self) -> list[RowResult]:
        """The rows that were asked for, and other rows of the file that have finished in the same folder."""
        return results_of([run for row in self._shown[0] for run in planned_runs([row], self.folder, self.seeds)])

    def tables(self) -> list[Table]:
        results, left_out = self.results, self._shown[1]
        data = sorted({value for result in results for value in result.condition("data")})
        classes = sorted({value for result in results for value in result.condition("test_classes")})
        table = study_table(", ".join([f"Comparison on {', '.join(data) or 'no finished run'}", *classes]), results)
        notes = [f"Left out, run with another recipe: {', '.join(left_out)}."] if left_out else []
        return [replace(table, notes=(*table.notes, *notes))]

    def record(self) -> dict[str, Any]:
        written = datetime.now(UTC).isoformat(timespec="seconds")
        return {"folder": str(self.folder), "written": written, **study_record(self.tables()[0], self.results)}

    def write(self) -> list[Path]:
        """Write ``comparison.md``, ``.csv`` and ``.json``, and ``comparison.png`` once a run has finished."""
        (table,) = self.tables()
        files = write_table(self.folder, "comparison", table, self.record())
        panels = [Panel(name, Column(name), self.results) for name in COMPARED]
        return files + draw(panels, table.title, table.conditions[0], self.folder / "comparison.png")

    def next_steps(self) -> list[str]:
        done = (planned.folder.path for planned in self.runs() if planned.folder.is_finished)
        return [f"nearkin plot {path}" for path in list(done)[:1]]

    def listing(self) -> Table:
        """The rows and what is special about each."""
        shared, cells = flat(self.base.as_mapping()), []
        for row in self.rows:
            own = [f"{key}={value}" for key, value in flat(row.recipe.as_mapping()).items() if shared.get(key) != value]
            cells.append((row.name, row.base or NOTHING, ": ".join([row.title, ", ".join(own)]).removesuffix(": ")))
        records = tuple(
            {"name": row.name, "title": row.title, "base": row.base, "recipe": row.recipe.as_mapping()}
            for row in self.rows
        )
        part = Part.of(("name", "base", "what it is"), cells, texts=3)
        return Table(f"Rows on {self.base.data.source}", (part,), (f"Recipe {self.recipe_name}.",), records=records)

    def _rows_on(self, only: Sequence[str] | None) -> list[Row]:
        return rows_on(self.base, self._known, only=only, overrides=self._changes)

    @cached_property
    def _shown(self) -> tuple[list[Row], list[str]]:
        """The rows of the table, and names of those that are left out because they were run with another recipe."""
        wanted = {row.name: row for row in self.rows}
        shown, left_out = [], []
        for name in [row.name for row in self._known] or wanted:
            if name in wanted:
                shown.append(wanted[name])
                continue
            try:
                (row,) = self._rows_on([name])
            except RecipeError:
                continue  # changes for one loss need not fit rows that were not asked for
            runs = planned_runs([row], self.folder, self.seeds)
            if any(planned.was_changed(allow=True) for planned in runs):
                left_out.append(name)
            elif any(planned.folder.is_finished for planned in runs):
                shown.append(row)
        return shown, left_out

    def _default_folder(self) -> Path:
        """``runs/compare-<data>-<hash>``: the same call always has the same folder, also with other rows of a file."""
        if self._known:
            parts = ("objective.", "method.")
            shared = {key: value for key, value in deciding(self.base).items() if not key.startswith(parts)}
            decides = [shared, sorted(text for text in self._changes if text.startswith(parts))]
        else:
            decides = [fingerprint(row.recipe, besides=("training.seed",)) for row in self.rows]
        return RUNS / f"compare-{data_name(self.base)}-{short_hash(decides)}"
