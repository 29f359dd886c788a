"""A study: named rows × seeds, each a whole run in a folder of its own → outcomes → statistics → a table.

A planner (:class:`Study`) says which runs there are and what they come to; :func:`run_all` carries them out for all of
them. It can be stopped and begun again at any time: what is finished is kept, what was begun is continued, and a run
that cannot be carried out is recorded with its reason while the others go on.
"""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from nearkin.data.cache import OpenedImages
from nearkin.disk import make_folder, write_atomically
from nearkin.errors import (
    BusyError,
    DataError,
    InterruptedRunError,
    NearkinError,
    OutOfMemoryError,
    RecipeError,
    did_you_mean,
)
from nearkin.evaluation.scores import score_named
from nearkin.recipe import Recipe
from nearkin.report import formats
from nearkin.report.differences import COMPARED
from nearkin.report.table import Table
from nearkin.runs.data import Announce, open_data, report_on, say_if_images_differ
from nearkin.runs.folder import RunFolder
from nearkin.runs.lock import sole_writer_of
from nearkin.runs.outcome import FILE, Outcome
from nearkin.runs.run import run
from nearkin.studies.pool import Job, run_side_by_side, training_job
from nearkin.training.build import data_of
from nearkin.training.observers import ConsoleObserver
from nearkin.training.recipes import validate_all
from nearkin.training.state import Observer

NO_ROOM = (OutOfMemoryError.exit_code, -9)
"""How a run ends for which memory was full: by itself, or killed by the system where it is the machine's."""


@dataclass(frozen=True)
class Row:
    """A recipe that is run once per seed."""

    name: str
    """Also the name of its folder."""
    title: str
    recipe: Recipe
    base: str | None = None
    """The row it is held against, as C2-CCP is against C2."""
    watched_by: Callable[[RunFolder, Observer], Observer] | None = None
    """Makes an observer that looks at more than usual; such a run is trained in this process."""


@dataclass(frozen=True)
class PlannedRun:
    """One row with one seed."""

    row: Row
    seed: int
    folder: RunFolder

    @property
    def recipe(self) -> Recipe:
        """The row's with this seed and validation classes of its own, as one draw of them puts rows in order badly."""
        recipe = self.row.recipe.with_changes({"training.seed": self.seed})
        protocol = recipe.protocol
        if self.seed and protocol.name == "validation" and protocol.validation_seed is None:
            return recipe.with_changes({"protocol.validation_seed": protocol.split_seed + self.seed})
        return recipe

    @property
    def label(self) -> str:
        return f"{self.row.title}, seed {self.seed}"

    @property
    def outcome(self) -> Outcome:
        """What is known of it from its folder."""
        return Outcome.read(self.row.name, self.seed, self.folder)

    def was_changed(self, *, forgive: bool) -> bool:
        """Whether the folder holds a run of another recipe; an error unless that is forgiven."""
        if not self.folder.is_begun:
            return False
        try:
            self.folder.check_same_recipe(self.recipe)
        except (RecipeError, DataError) as error:
            if forgive:
                return True
            raise type(error)(f"{error}, or run what has changed anew with --overwrite") from error
        return False


class Study(ABC):
    """Many runs that answer one question, in a folder that can be gone on with."""

    folder: Path

    @abstractmethod
    def plan(self) -> list[str]:
        """What will be run, in words."""

    @abstractmethod
    def runs(self) -> list[PlannedRun]:
        """Every run that is known beforehand, finished or not."""

    def run(
        self,
        *,
        jobs: int = 1,
        overwrite: bool = False,
        console: Console | None = None,
        announce: Announce | None = None,
    ) -> list[Outcome]:
        """Carry out what is left, ``jobs`` runs at a time; ``announce`` is told what was understood of the data."""
        if jobs < 1:
            raise RecipeError(f"jobs must be at least 1, got {jobs}")
        return self.carry_out(jobs, overwrite, console or Console(quiet=True), announce)

    @abstractmethod
    def carry_out(self, jobs: int, overwrite: bool, console: Console, announce: Announce | None) -> list[Outcome]:
        """What :meth:`run` does, with what it was given."""

    @abstractmethod
    def tables(self) -> list[Table]:
        """What the folder holds, as far as it has come."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """The same for programs, as it is written to a JSON file."""

    @abstractmethod
    def write(self) -> list[Path]:
        """Write tables, JSON and pictures into the folder."""

    def write_texts(self, contents: Mapping[str, str]) -> list[Path]:
        """Texts into files of the folder."""
        make_folder(self.folder)
        for name, text in contents.items():
            write_atomically(self.folder / name, text.encode())
        return [self.folder / name for name in contents]

    def write_table(self, name: str, table: Table, record: Mapping[str, Any]) -> list[Path]:
        """A table as ``<name>.md``, ``.csv`` and ``.json``."""
        plain = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        contents = {"md": formats.markdown(table), "csv": formats.csv_text(table), "json": plain}
        return self.write_texts({f"{name}.{ending}": text for ending, text in contents.items()})

    def failure(self, outcomes: Sequence[Outcome]) -> tuple[str, int] | None:
        """What to say and the exit code, where not everything came to its end."""
        problems = [outcome for outcome in outcomes if outcome.status != "finished"]
        if not problems:
            return None
        worst = next((outcome for outcome in problems if outcome.status == "failed"), problems[0])
        return f"{len(problems)} of {len(outcomes)} runs did not finish: {worst.reason}", worst.exit_code or 1

    def next_steps(self) -> list[str]:
        """Commands that a person may want to run then."""
        return []


def planned_runs(rows: Sequence[Row], folder: str | Path, seeds: Sequence[int]) -> list[PlannedRun]:
    """Every row with every seed in ``folder/<row>/seed-<seed>``; one seed of all rows, then the next."""
    names = [row.name for row in rows]
    if not rows or len(set(names)) < len(names):
        raise RecipeError(f"a study needs rows with different names, got {', '.join(names) or 'none'}")
    if not seeds or len(set(seeds)) < len(seeds):
        raise RecipeError(f"a study needs seeds, each once, got {list(seeds)}")
    return [
        PlannedRun(row, seed, RunFolder(Path(folder) / row.name / f"seed-{seed}")) for seed in seeds for row in rows
    ]


def chosen_names(asked: Iterable[str], known: Sequence[str]) -> list[str]:
    """``asked`` in the order of ``known``, or an error that suggests the right spelling.

    >>> chosen_names(["vcpa", "mpa"], ["mpa", "mpa_ap", "vcpa"])
    ['mpa', 'vcpa']
    """
    wanted = set(asked)
    for name in sorted(wanted):
        if name not in known:
            raise RecipeError(f"no row {name!r}: {did_you_mean(name, known)}")
    return [name for name in known if name in wanted]


def opened(recipe: Recipe, console: Console, announce: Announce | None) -> OpenedImages:
    """The images of a recipe, decoded; ``announce`` is told what was understood of them."""
    with ConsoleObserver(console) as observer:
        data = open_data(data_of(recipe), progress=observer.decoding)
    if announce is not None:
        announce(report_on(recipe, data))
    return data


def run_all(
    runs: Sequence[PlannedRun], *, jobs: int = 1, overwrite: bool = False, console: Console | None = None
) -> list[Outcome]:
    """Carry out what is left of ``runs``, each in a folder of its own.

    One at a time is run in this process, several ``jobs`` as processes of their own, to fill a GPU. Runs that were made
    with another recipe are begun anew with ``overwrite``; without it they are an error.

    Raises:
        RecipeError: before anything is run, where a recipe cannot be followed or differs from that of the folder.
        InterruptedRunError: after Ctrl-C or SIGTERM; calling again goes on.
    """
    console = console or Console(quiet=True)
    changed = {planned.folder.path for planned in runs if planned.was_changed(forgive=overwrite)}
    waiting = [planned for planned in runs if planned.folder.path in changed or not planned.folder.is_finished]
    validate_all({f"row {planned.row.name!r}": planned.recipe for planned in waiting})
    if len(waiting) < len(runs):
        console.print(f"{len(runs) - len(waiting)} of {len(runs)} runs are finished already", highlight=False)
    here = [planned for planned in waiting if jobs == 1 or planned.row.watched_by is not None]
    busy: dict[Path, Outcome] = {}
    try:
        for number, planned in enumerate(here, 1):
            console.print(f"[bold]run {number} of {len(here)}[/bold]: {planned.label}", highlight=False)
            try:
                _make_ready(planned, changed)
                _run_here(planned, console)
            except BusyError as error:
                busy[planned.folder.path] = _left_to_other(planned, str(error), console)
        if len(here) < len(waiting):
            elsewhere = [planned for planned in waiting if planned not in here]
            _run_elsewhere(elsewhere, changed, jobs, busy, console)
    except (InterruptedRunError, KeyboardInterrupt) as stop:
        done = sum(planned.folder.is_finished for planned in runs)
        raise InterruptedRunError(
            f"interrupted with {done} of {len(runs)} runs finished; what was begun is saved. "
            f"The same command goes on from here"
        ) from stop
    say_if_images_differ([planned.folder for planned in runs])
    outcomes = [(planned.folder.path, planned.outcome) for planned in runs]
    return [busy.get(path, known) if known.status == "unfinished" else known for path, known in outcomes]


def _make_ready(planned: PlannedRun, changed: set[Path]) -> None:
    with sole_writer_of(planned.folder.path):
        if planned.folder.path in changed:
            planned.folder.clear()
        (planned.folder.path / FILE).unlink(missing_ok=True)


def _left_to_other(planned: PlannedRun, reason: str, console: Console) -> Outcome:
    """Another process is at this run; the others of the study can go on."""
    console.print(f"{planned.label}: {reason}", markup=False, highlight=False, soft_wrap=True)
    return dataclasses.replace(planned.outcome, reason=reason, exit_code=BusyError.exit_code)


def _run_here(planned: PlannedRun, console: Console) -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()  # or a run would report the memory of a larger one before it
    reason, code = "", 0
    try:
        with ConsoleObserver(console) as bar:
            watched = planned.row.watched_by
            observer = bar if watched is None else watched(planned.folder, bar)
            # What a special observer has seen is not in a checkpoint, so such a run begins anew.
            begun, anew = planned.folder.is_begun, watched is not None
            resume, overwrite = begun and not anew, begun and anew
            run(planned.recipe, planned.folder, observer, resume=resume, overwrite=overwrite, progress=bar.decoding)
    except (InterruptedRunError, BusyError):
        raise
    except NearkinError as error:
        reason, code = str(error), error.exit_code
    except ValueError as error:  # a loss refuses embeddings that are not finite
        reason, code = f"{type(error).__name__}: {error}", 1
    _record(planned, reason, code, side_by_side=1, console=console)


def _run_elsewhere(
    waiting: Sequence[PlannedRun], changed: set[Path], jobs: int, busy: dict[Path, Outcome], console: Console
) -> None:
    """Each in a process of its own, ``jobs`` at a time; those that find memory full, later with half as many."""
    full: list[PlannedRun] = []

    def made_ready() -> Iterator[Job]:
        for planned in waiting:
            try:
                _make_ready(planned, changed)
                with sole_writer_of(planned.folder.path):
                    if not planned.folder.is_begun:
                        planned.folder.begin(planned.recipe)
            except BusyError as error:
                busy[planned.folder.path] = _left_to_other(planned, str(error), console)
                continue
            yield training_job(planned.label, planned.recipe, planned.folder, partial(ended, planned))

    def ended(planned: PlannedRun, code: int, said: str) -> None:
        if code == BusyError.exit_code:
            busy[planned.folder.path] = _left_to_other(planned, said, console)
        elif jobs > 1 and code in NO_ROOM and not planned.folder.is_finished:
            full.append(planned)
            console.print(f"{planned.label}: there is no room for it now", highlight=False)
        else:
            _record(planned, said, code, side_by_side=jobs, console=console)

    run_side_by_side(made_ready(), at_once=jobs, total=len(waiting), console=console)
    if full:
        console.print(f"[bold]memory was full {jobs} at a time[/bold]: {len(full)} again, {jobs // 2} at a time")
        _run_elsewhere(full, set(), jobs // 2, busy, console)


def _record(planned: PlannedRun, reason: str, code: int, *, side_by_side: int, console: Console) -> None:
    """Keep how a run ended, and say it."""
    row, folder = planned.row, planned.folder
    outcome = Outcome.after(row.name, planned.seed, folder, reason, code, side_by_side=side_by_side)
    outcome.write(folder)
    if outcome.status == "finished":
        test = folder.scores().test or {}
        shown = "  ".join(f"{name} {score_named(name).text(test[name])}" for name in COMPARED if name in test)
        console.print(f"{planned.label}: {shown or 'finished'}", highlight=False)
    else:
        console.print(f"[red]{planned.label}: {outcome.status}[/red]: ", end="", highlight=False)
        console.print(reason, markup=False, highlight=False, soft_wrap=True)
