"""Rows on one recipe × seeds: the planner of ``nearkin compare``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from rich.console import Console

from nearkin.errors import RecipeError
from nearkin.recipe.identity import deciding, short_hash
from nearkin.runs.default_folders import RUNS, data_name
from nearkin.studies.compare.row_study import RowStudy
from nearkin.studies.compare.rows import base_recipe, comparison_rows, read_rows, rows_file, shared_recipe
from nearkin.studies.results import RowResult, results_of
from nearkin.studies.study import PlannedRun, Row, chosen_names, planned_runs


def compare(
    data: str | None = None,
    *,
    recipe: str | None = None,
    rows: Sequence[str] | None = None,
    rows_from: str | Path | None = None,
    against: str | None = None,
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
        against: the row that those without a base of their own are held against; default: the first.
        seeds: runs of each row.
        changes: ``section.key=value`` for every row.
        folder: where everything goes; default: one that the same call finds again.
        jobs: runs at a time.
        overwrite: run anew what the folder holds with another recipe.
        console: where progress goes.
    """
    comparison = Comparison(
        data,
        recipe=recipe,
        rows=rows,
        rows_from=rows_from,
        against=against,
        seeds=seeds,
        changes=changes,
        folder=folder,
    )
    comparison.run(jobs=jobs, overwrite=overwrite, console=console)
    comparison.write()
    return comparison


class Comparison(RowStudy):
    """Baselines and methods on one recipe, with equal budget.

    The arguments are those of :func:`compare`.

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
        against: str | None = None,
        seeds: int = 3,
        changes: Iterable[str] = (),
        folder: str | Path | None = None,
    ) -> None:
        self.remarks: list[str] = []
        self._changes = list(changes)
        self.recipe_name = shared_recipe(data, recipe, rows_from, say=self.remarks.append)
        base = base_recipe(data, self.recipe_name, self._changes)
        self._file = rows_file(base, rows_from)
        self._known = read_rows(self._file)
        if against is not None:
            chosen_names([against], [row.name for row in self._known])
            self._known = [
                replace(row, base=None if row.name == against else row.base or against) for row in self._known
            ]
        self._rows = comparison_rows(base, rows=self._known, only=rows, overrides=self._changes)
        if base.encoder.backbone.startswith("resnet50") and base.encoder.weights is None:
            self.remarks.append("The ResNet-50 starts from scratch: give it weights with encoder.weights=FILE")
        super().__init__(base, seeds=seeds, folder=folder)

    @property
    def rows(self) -> Sequence[Row]:
        return self._rows

    def plan(self) -> list[str]:
        rows = f"Rows of {self._file.name} on the recipe {self.recipe_name}: {self.shared_text()}"
        return [*super().plan(), rows, *self.remarks]

    @property
    def results(self) -> list[RowResult]:
        """What was asked for, and the other rows of the file that have finished in the same folder."""
        return results_of([planned for row in self._shown[0] for planned in self._runs_of(row)])

    def notes(self) -> list[str]:
        left_out = self._shown[1]
        return [f"Left out, run with another recipe: {', '.join(left_out)}."] if left_out else []

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

    def default_folder(self) -> Path:
        """``runs/compare-<data>-<hash>``: the same call always has the same folder."""
        known = deciding(self.base).items()
        shared = {key: value for key, value in known if not key.startswith(("objective.", "method."))}
        for_rows = sorted(text for text in self._changes if text.startswith(("objective.", "method.")))
        return RUNS / f"compare-{data_name(self.base)}-{short_hash([shared, for_rows])}"
