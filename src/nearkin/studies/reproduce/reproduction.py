"""A published table or figure, run row by row and put beside what is printed: the planner of ``nearkin reproduce``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from nearkin.data.cache import OpenedImages
from nearkin.errors import DataError, InterruptedRunError, NearkinError, RecipeError
from nearkin.report.formats import counted
from nearkin.report.table import Table
from nearkin.runs.data import Announce
from nearkin.runs.outcome import Outcome
from nearkin.studies.mlrc import mlrc_models
from nearkin.studies.mlrc.check import checked_data
from nearkin.studies.mlrc.scoring import score_models
from nearkin.studies.reproduce.digits import MomentRecorder, with_digits
from nearkin.studies.reproduce.figures import draw_table
from nearkin.studies.reproduce.papers import PaperTable, chosen_rows, find_item, tables_of
from nearkin.studies.reproduce.results import Reproduced, columns_of, reproduced
from nearkin.studies.reproduce.rows import PlannedRow, Settings, planned_rows
from nearkin.studies.reproduce.tables import reproduction_record, reproduction_table
from nearkin.studies.study import PlannedRun, Row, Study, planned_runs, run_all


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
    """Run the rows of a published table or figure, and write ours beside what is published.

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


@dataclass(frozen=True)
class _Asked:
    """A table, what is wanted of it, and all of it that the folder may hold."""

    table: PaperTable
    settings: Settings
    rows: list[PlannedRow]
    every: list[PlannedRow]


class Reproduction(Study):
    """A published table or figure, row by row, ours beside what is printed.

    The arguments are those of :func:`reproduce`; ``say`` is told what takes the place of data that are missing, and a
    study that is only ``listed`` draws none.
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
        item, settings = find_item(table), settings or Settings()
        self.id, self.instead = item.id, item.instead
        seed = next((text for text in settings.overrides if text.startswith("training.seed=")), "training.seed=0")
        first = int(seed.partition("=")[2])
        self.seeds = list(range(first, first + seeds))
        self.folder = Path(folder) if folder is not None else Path("runs") / "reproduce" / item.paper
        tables, wanted = tables_of(item), None if data is None else list(data)
        if wanted is not None and len(tables) > 1:
            tables = [each for each in tables if set(wanted) & set(each.data)] or tables[:1]
        self._unscored: dict[Path, str] = {}
        self.asked: list[_Asked] = []
        for each in tables:
            own = settings if listed else with_digits(each, settings, self.folder, say=say)
            sources = [name for name in wanted or each.data if name in each.data or len(tables) == 1]
            chosen = planned_rows(each, chosen_rows(each.rows, rows), sources, own, say=say)
            every = chosen if rows is None else planned_rows(each, each.rows, sources, own, say=lambda text: None)
            self.asked.append(_Asked(each, own, chosen, every))

    def plan(self) -> list[str]:
        runs = self.runs()
        done = sum(planned.folder.is_finished for planned in runs)
        reasons = dict.fromkeys(row.problem for part in self.asked for row in part.rows if row.recipe and row.problem)
        said = [f"Skipped: {reason}" for reason in reasons]
        if runs:
            said.append(
                f"Plan: {counted(len(runs), 'run')} for {self.id}, {done} of them finished already, into {self.folder}"
            )
        return said

    def runs(self) -> list[PlannedRun]:
        runnable = ((part.table, row) for part in self.asked for row in part.rows if row.problem is None)
        runs = [planned for table, row in runnable for planned in self._runs_of(table, row)]
        # One seed of all rows, then the next; tables that share a row share its runs.
        runs.sort(key=lambda planned: planned.seed)
        return list({planned.folder.path: planned for planned in runs}.values())

    def carry_out(self, jobs: int, overwrite: bool, console: Console, announce: Announce | None) -> list[Outcome]:
        checks, refused = self._reality_checks(console)
        left_out = {outcome.row for outcome in refused}
        runs = [planned for planned in self.runs() if planned.row.name not in left_out]
        outcomes = run_all(runs, jobs=jobs, overwrite=overwrite, console=console)
        for folder, (models, data) in checks.items():
            if not all(model.folder.is_finished for model in models):
                continue
            try:
                score_models(models, data, folder, console)
            except DataError as error:  # models of other images make no ensemble
                self._unscored[folder] = str(error)
                refused.append(Outcome(folder.name, self.seeds[0], "failed", str(error), error.exit_code))
        return [*outcomes, *refused]

    def failure(self, outcomes: Sequence[Outcome]) -> tuple[str, int] | None:
        if not outcomes:
            return "no row could be run here; the table says why", DataError.exit_code
        return super().failure(outcomes)

    def results(self, part: _Asked) -> list[Reproduced]:
        """The rows that were asked for, and those that have finished in the same folder."""
        columns, found = columns_of(part.table, part.every), []
        for row in part.every:
            runs = [] if row.recipe is None else self._runs_of(part.table, row)
            folder = self._place if row.recipe is None else self._place / row.folder_in(self._place)
            each = reproduced(part.table, row, runs, folder, columns[row.data], self._unscored.get(folder))
            found += [each] if each.finished or row in part.rows else []
        return found

    def tables(self) -> list[Table]:
        return [reproduction_table(part.table, self.results(part), part.settings) for part in self.asked]

    def record(self) -> dict[str, Any]:
        records = [reproduction_record(part.table, self.results(part), part.settings) for part in self.asked]
        return {"folder": str(self.folder), **(records[0] if len(records) == 1 else {"tables": records})}

    def write(self) -> list[Path]:
        """Write ``<table>.md``, ``.csv`` and ``.json``, and a picture where any run has finished."""
        files = []
        for part in self.asked:
            rows = self.results(part)
            table = reproduction_table(part.table, rows, part.settings)
            record = reproduction_record(part.table, rows, part.settings)
            files += self.write_table(part.table.item.key, table, record)
            files += draw_table(part.table, rows, part.settings, self.folder)
        return files

    @property
    def _place(self) -> Path:
        return self.folder / "runs"

    def _runs_of(self, table: PaperTable, row: PlannedRow) -> list[PlannedRun]:
        name = row.folder_in(self._place)
        if table.mlrc:
            return mlrc_models(row.known_recipe, self._place / name, len(self.seeds), title=row.title)
        watched = MomentRecorder if table.draw.kind == "digits" else None
        return planned_runs([Row(name, row.title, row.known_recipe, watched_by=watched)], self._place, self.seeds)

    def _reality_checks(
        self, console: Console
    ) -> tuple[dict[Path, tuple[list[PlannedRun], OpenedImages]], list[Outcome]]:
        """The models of every reality check with their images; and of those that cannot be trained, why."""
        checks: dict[Path, tuple[list[PlannedRun], OpenedImages]] = {}
        refused: list[Outcome] = []
        for part in self.asked:
            for row in (row for row in part.rows if part.table.mlrc and row.problem is None):
                models = self._runs_of(part.table, row)
                try:
                    data = checked_data(models, console)
                except (InterruptedRunError, RecipeError):
                    raise
                except NearkinError as error:
                    for model in models:
                        outcome = Outcome.after(
                            model.row.name, model.seed, model.folder, str(error), error.exit_code, side_by_side=1
                        )
                        outcome.write(model.folder)
                        refused.append(outcome)
                    continue
                checks[self._place / row.folder_in(self._place)] = models, data
        return checks, refused
