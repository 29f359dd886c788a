"""Baselines and methods on one recipe, with equal budget, over several seeds: ``nearkin compare``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from nearkin.errors import RecipeError
from nearkin.recipe import Recipe, deciding, fingerprint, flat, short_hash
from nearkin.report.differences import COMPARED
from nearkin.report.table import NOTHING, Part, Table
from nearkin.runs.folder import RUNS, data_name
from nearkin.studies.figures import Panel, draw
from nearkin.studies.rows import (
    ablated_rows,
    base_recipe,
    chosen_names,
    chosen_rows,
    named_rows,
    read_rows,
    rows_file,
    rows_on,
    shared_recipe,
    varied_rows,
)
from nearkin.studies.study import Row, Study, write_table
from nearkin.studies.tables import Column, RowResult, results_of, study_record, study_table, values_of
from nearkin.training.recipe_check import load_recipe


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
    train: bool = True,
) -> Comparison:
    """Train rows with equal budget, and write the table of their scores.

    Args:
        data: a benchmark, a folder with one folder per class, or a manifest; default: what the recipe names, or Glyphs.
        recipe: name or file of the recipe that all rows share; default: one that suits ``rows_from`` or the data.
        rows: names of rows, or any loss, method or ``LOSS+METHOD``; default: all rows of the file.
        rows_from: file that defines the rows, or the name of one that comes with nearkin.
        vary: ``key=a,b,c``: instead of a file's rows, one row for each value of this key.
        ablate: changes ``key=value``: instead of a file's rows, the recipe and one row for each change.
        against: the row that rows without a base are compared with; default: the first.
        seeds: runs of each row.
        changes: ``section.key=value`` for every row.
        folder: where everything goes; default: one that the same call finds again.
        jobs: runs at a time.
        overwrite: run again what the folder holds with another recipe.
        console: where progress goes.
        train: False only plans the comparison, which is returned all the same.

    >>> compare("glyphs", rows=["vcpa"], seeds=2, folder="runs/x", train=False).plan()[0]
    'Plan: 1 row × 2 seeds = 2 runs, 0 of them finished already, into runs/x'
    """
    if sum(map(bool, (rows_from, vary, ablate))) > 1:
        raise RecipeError("rows come from a file, from one key's values or from single changes: give one of these")
    changes = list(changes)
    remarks: list[str] = []
    name = shared_recipe(data, recipe, rows_from, say=remarks.append)
    if vary or ablate:
        origin = "one row for each value" if vary else "one change at a time"
        source = [] if data is None else [f"data.source={json.dumps(data)}"]
        base = load_recipe(name, [*source, *changes])
        key, _, values = (vary or "").partition("=")
        chosen = varied_rows(base, key, values.split(",")) if vary else ablated_rows(base, ablate)
        if rows is not None:
            wanted = chosen_names(rows, [row.name for row in chosen])
            chosen = [row for row in chosen if row.name in wanted]
        decides: list[Any] = [fingerprint(row.recipe, besides=("training.seed",)) for row in chosen]
    else:
        base = base_recipe(name, data, changes)
        file = rows_file(base) if rows_from is None else named_rows(rows_from)
        origin = f"rows of {file.name}"
        chosen = rows_on(base, chosen_rows(read_rows(file), rows), overrides=changes)
        # The rows do not decide the folder's name, so that a later call can add others.
        parts = ("objective.", "method.")
        shared = {key: value for key, value in deciding(base).items() if not key.startswith(parts)}
        decides = [shared, sorted(text for text in changes if text.startswith(parts))]
    if against is not None:
        (against,) = chosen_names([against], [row.name for row in chosen])
        chosen = [replace(row, base=None if row.name == against else row.base or against) for row in chosen]
    without = [row for row in chosen if row.base not in (None, *(other.name for other in chosen))]
    remarks += [f"Add {row.base} to the rows to compare {row.name} with it" for row in without]
    if base.encoder.backbone.startswith("resnet50") and base.encoder.weights is None:
        remarks.append("The ResNet-50 starts from scratch: give it weights with encoder.weights=FILE")
    folder = Path(folder or RUNS / f"compare-{data_name(base)}-{short_hash(decides)}")
    first = base.training.seed
    study = Comparison(folder, chosen, range(first, first + seeds), base, [f"Recipe {name}, {origin}", *remarks])
    if train:
        study.run(jobs=jobs, overwrite=overwrite, console=console)
        study.write()
    return study


@dataclass
class Comparison(Study):
    """Baselines and methods on one recipe; :func:`compare` makes it."""

    folder: Path
    rows: Sequence[Row]
    seeds: Sequence[int]
    base: Recipe
    remarks: Sequence[str]
    """Where recipe and rows come from, and what else the plan says."""

    def plan(self) -> list[str]:
        return [*super().plan(), *self.remarks]

    @property
    def results(self) -> list[RowResult]:
        return results_of(self.runs())

    def table(self) -> Table:
        results = self.results
        data = ", ".join(values_of(results, "data")) or "no finished run"
        return study_table(", ".join([f"Comparison on {data}", *values_of(results, "test_classes")]), results)

    def record(self) -> dict[str, Any]:
        return study_record(self.folder, self.table(), self.results)

    def write(self) -> list[Path]:
        """Write ``comparison.md``, ``.csv`` and ``.json``, and ``comparison.png`` once a run has finished."""
        table = self.table()
        files = write_table(self.folder, "comparison", table, self.record())
        panels = [Panel(name, Column(name), self.results) for name in COMPARED]
        return files + draw(panels, table.title, table.conditions[0], self.folder / "comparison.png")

    def next_steps(self) -> list[str]:
        return [f"nearkin plot {run.folder.path}" for run in self.runs() if run.folder.is_finished][:1]

    def listing(self) -> Table:
        """The rows and what is special about each."""
        shared, cells, records = flat(self.base.as_mapping()), [], []
        for row in self.rows:
            recipe = row.recipe.as_mapping()
            changed = ", ".join(f"{key}={value}" for key, value in flat(recipe).items() if shared.get(key) != value)
            cells.append((row.name, row.base or NOTHING, f"{row.title}: {changed}" if changed else row.title))
            records.append({"name": row.name, "title": row.title, "base": row.base, "recipe": recipe})
        part = Part.of(("name", "base", "what it is"), cells, texts=3)
        return Table(f"Rows on {self.base.data.source}", (part,), tuple(self.remarks), records=tuple(records))
