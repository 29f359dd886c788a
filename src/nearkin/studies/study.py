"""A study: rows × seeds, each a whole run in a folder of its own → outcomes → one table.

A study can be stopped and started again at any time: finished runs are kept, unfinished ones resume, and a run that
fails is recorded with its reason while the others continue.
"""

from __future__ import annotations

import contextlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from nearkin.data.cache import OpenedImages
from nearkin.data.source import is_benchmark
from nearkin.disk import make_folder, sole_writer_of, write_atomically
from nearkin.errors import BusyError, DataError, InterruptedRunError, NearkinError, OutOfMemoryError, RecipeError
from nearkin.evaluation.scores import score_named
from nearkin.recipe import Recipe
from nearkin.report.differences import COMPARED
from nearkin.report.published import Published
from nearkin.report.table import Table, counted, csv_text, markdown
from nearkin.runs.data import Announce, notice_changed_images, open_data, report_on
from nearkin.runs.folder import OUTCOME_FILE, Outcome, RunFolder
from nearkin.runs.run import run
from nearkin.runs.scores import collapse_mark
from nearkin.studies.worker_pool import LOG, Job, run_in_parallel
from nearkin.training.build import data_of
from nearkin.training.observers import ConsoleObserver, hours_minutes_seconds
from nearkin.training.recipe_check import validate_all
from nearkin.training.trackers import trackers

OUT_OF_MEMORY = (OutOfMemoryError.exit_code, -9)
"""Exit codes of a run that found memory full: its own, or the system's."""


@dataclass(frozen=True)
class Row:
    """A recipe that is run once per seed."""

    name: str
    title: str
    recipe: Recipe
    base: str | None = None
    """The row it is compared with, as C2-CCP is with C2."""
    mlrc: bool = False
    """Whether it is a reality check: with every seed there is one run per class fold."""
    data: str = ""
    """The data set that it is shown under, where a table has several."""
    published: tuple[Published, ...] = ()
    problem: str | None = None
    """Why it cannot be run here: data, weights or the method itself are missing."""
    command: str | None = None
    """The command that trains it alone."""
    at: Mapping[str, Any] = field(default_factory=dict)
    """Values of what a figure varies, by symbol."""
    series: str = ""
    """What a figure calls the line that it is a point of."""
    folder: str = ""
    """Where its runs are, below the folder of the study; by default its name."""

    @property
    def path(self) -> str:
        return self.folder or self.name


@dataclass(frozen=True)
class PlannedRun:
    """One row with one seed, and of a reality check one fold."""

    row: Row
    seed: int
    folder: RunFolder
    fold: int | None = None

    @property
    def recipe(self) -> Recipe:
        """The row's recipe with this seed. Every seed holds out other validation classes: one draw ranks rows badly."""
        recipe = self.row.recipe.with_changes({"training.seed": self.seed})
        protocol = recipe.protocol
        if self.fold is not None:
            return recipe.with_changes({"protocol.name": "mlrc", "protocol.fold": self.fold})
        if self.seed and protocol.name == "validation" and protocol.validation_seed is None:
            return recipe.with_changes({"protocol.validation_seed": protocol.split_seed + self.seed})
        return recipe

    @property
    def label(self) -> str:
        fold = "" if self.fold is None else f"fold {self.fold}, "
        return f"{self.row.title}, {fold}seed {self.seed}"

    @property
    def outcome(self) -> Outcome:
        return Outcome.read(self.row.name, self.seed, self.folder)

    def was_changed(self, *, allow: bool) -> bool:
        """Whether the folder holds a run of another recipe; an error unless that is allowed."""
        if not self.folder.is_begun:
            return False
        try:
            self.folder.check_same_recipe(self.recipe)
        except (RecipeError, DataError) as error:
            if allow:
                return True
            raise type(error)(f"{error}, or run what has changed again with --overwrite") from error
        return False


class Study(ABC):
    """Rows × seeds that answer one question, in a folder where they can be resumed."""

    rows: Sequence[Row]
    seeds: Sequence[int]
    folder: Path

    def runs(self) -> list[PlannedRun]:
        """Every run, finished or not."""
        return planned_runs(self.rows, self.folder, self.seeds)

    def size(self) -> str:
        """The number of runs, in words."""
        rows, seeds = counted(len(self.rows), "row"), counted(len(self.seeds), "seed")
        return f"{rows} × {seeds} = {counted(len(self.runs()), 'run')}"

    def plan(self) -> list[str]:
        """What will be run, in words."""
        done = sum(run.folder.is_finished and not run.was_changed(allow=True) for run in self.runs())
        return [f"Plan: {self.size()}, {done} of them finished already, into {self.folder}"]

    def run(
        self,
        *,
        jobs: int = 1,
        overwrite: bool = False,
        console: Console | None = None,
        announce: Announce | None = None,
    ) -> list[Outcome]:
        """Train what is left.

        Ctrl-C and SIGTERM raise :class:`InterruptedRunError`; calling again resumes.

        Args:
            jobs: runs at a time. One is trained in this process, several in processes of their own, to fill a GPU.
            overwrite: start runs with another recipe than their folder's again, which is otherwise an error.
            console: where progress goes.
            announce: called with the report on the data.
        """
        if jobs < 1:
            raise RecipeError(f"jobs must be at least 1, got {jobs}")
        console, runs = console or Console(quiet=True), self.runs()
        changed = {planned.folder.path for planned in runs if planned.was_changed(allow=overwrite)}
        waiting = [planned for planned in runs if planned.folder.path in changed or not planned.folder.is_finished]
        validate_all({f"row {planned.row.name!r}": planned.recipe for planned in waiting})
        if announce is not None and waiting and not is_benchmark(waiting[0].recipe.data.source):
            with contextlib.suppress(DataError):  # the run itself records what is wrong with its data
                opened(waiting[0].recipe, console, announce)
        if len(waiting) < len(runs):
            console.print(f"{len(runs) - len(waiting)} of {len(runs)} runs are finished already", highlight=False)
        runner = _Runner(console, changed, len(waiting), jobs)
        try:
            if jobs == 1:
                runner.run_here(waiting)
            else:
                runner.run_in_processes(waiting, jobs)
        except (InterruptedRunError, KeyboardInterrupt) as stop:
            done = sum(planned.folder.is_finished for planned in runs)
            message = f"interrupted with {done} of {len(runs)} runs finished; the same command resumes from here"
            raise InterruptedRunError(message) from stop
        notice_changed_images([planned.folder for planned in runs])
        outcomes = [(planned.folder.path, planned.outcome) for planned in runs]
        ended = [runner.busy.get(path, known) if known.status == "unfinished" else known for path, known in outcomes]
        return self.finish(ended, console)

    def finish(self, outcomes: list[Outcome], console: Console) -> list[Outcome]:
        """Called when the runs have ended: a reality check then scores its models as one."""
        return outcomes

    @abstractmethod
    def table(self) -> Table:
        """What the folder holds so far."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """The content of the table for programs."""

    @abstractmethod
    def write(self) -> list[Path]:
        """Write table, record and figures into the folder."""

    def failure(self, outcomes: Sequence[Outcome]) -> tuple[str, int] | None:
        """The message and exit code where some run did not finish."""
        problems = [outcome for outcome in outcomes if outcome.status != "finished"]
        if not problems:
            return None
        worst = min(problems, key=lambda outcome: outcome.status != "failed")
        return f"{len(problems)} of {len(outcomes)} runs did not finish: {worst.reason}", worst.exit_code or 1

    def next_steps(self) -> list[str]:
        """Commands to run next."""
        return []


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    make_folder(folder)
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in texts]


def write_table(folder: Path, name: str, table: Table, record: Mapping[str, Any]) -> list[Path]:
    """Write a table as ``<name>.md``, ``.csv`` and ``.json``."""
    plain = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    return write_texts(folder, {f"{name}.md": markdown(table), f"{name}.csv": csv_text(table), f"{name}.json": plain})


def planned_runs(rows: Sequence[Row], folder: str | Path, seeds: Sequence[int]) -> list[PlannedRun]:
    """One seed of all rows, then the next, in ``folder/<row>/seed-<seed>``.

    The models of a reality check are in ``folder/<row>/fold-<fold>/seed-<seed>``. Each has its own seed: with one seed
    all would start from the same projection, and their concatenation would be little better than one of them.
    """
    names = [row.path for row in rows]
    if not rows or len(set(names)) < len(names):
        raise RecipeError(f"a study needs rows with different names, got {', '.join(names) or 'none'}")
    if not seeds or len(set(seeds)) < len(seeds):
        raise RecipeError(f"a study needs seeds, each once, got {list(seeds)}")
    runs = []
    for repeat, seed in enumerate(seeds):
        for row in rows:
            path = Path(folder) / row.path
            if not row.mlrc:
                runs.append(PlannedRun(row, seed, RunFolder(path / f"seed-{seed}")))
                continue
            for fold in range(folds := row.recipe.protocol.folds):
                seed_of_fold = seeds[0] + repeat * folds + fold
                folder_of_fold = RunFolder(path / f"fold-{fold}" / f"seed-{seed_of_fold}")
                runs.append(PlannedRun(row, seed_of_fold, folder_of_fold, fold))
    return runs


def opened(recipe: Recipe, console: Console, announce: Announce | None = None) -> OpenedImages:
    """The images of a recipe, decoded; ``announce`` is called with the report on them."""
    with ConsoleObserver(console) as observer:
        data = open_data(data_of(recipe), progress=observer.decoding)
    if announce is not None:
        announce(report_on(recipe, data))
    return data


class _Runner:
    """Trains runs in this process or in processes of their own, and records how each ended."""

    def __init__(self, console: Console, changed: set[Path], total: int, jobs: int) -> None:
        self.console, self.changed, self.total, self.jobs = console, changed, total, jobs
        self.ended, self.started = 0, time.monotonic()
        self.busy: dict[Path, Outcome] = {}

    def run_here(self, runs: Sequence[PlannedRun]) -> None:
        for number, planned in enumerate(runs, 1):
            self.console.print(f"[bold]run {number} of {len(runs)}[/bold]: {planned.label}", highlight=False)
            reason, code = "", 0
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()  # or a run would report the memory of a larger one before it
            try:
                self._make_ready(planned)
                with ConsoleObserver(self.console) as bar:
                    bar.others += trackers(planned.recipe, planned.folder.path)
                    run(planned.recipe, planned.folder, bar, resume=planned.folder.is_begun, progress=bar.decoding)
            except InterruptedRunError:
                raise
            except BusyError as error:
                self._leave(planned, str(error))
                continue
            except NearkinError as error:
                reason, code = str(error), error.exit_code
            except ValueError as error:  # a loss refuses embeddings that are not finite
                reason, code = f"{type(error).__name__}: {error}", 1
            self._record(planned, reason, code, 1)

    def run_in_processes(self, waiting: Sequence[PlannedRun], jobs: int) -> None:
        """``jobs`` at a time; runs that find memory full are tried again later with half as many."""
        full: list[PlannedRun] = []

        def training_jobs() -> Iterator[Job]:
            for planned in waiting:
                folder = planned.folder
                try:
                    self._make_ready(planned)
                    with sole_writer_of(folder.path):
                        if not folder.is_begun:
                            folder.begin(planned.recipe)
                except BusyError as error:
                    self._leave(planned, str(error))
                    continue
                train = ["-m", "nearkin", "train", str(folder.recipe_file), "-o", str(folder.path)]
                command = [*train, "--resume", "--verbose", "--no-figure"]
                is_done = partial(getattr, folder, "is_finished")
                yield Job(planned.label, command, folder.path / LOG, is_done, partial(on_end, planned))

        def on_end(planned: PlannedRun, code: int, message: str) -> None:
            if code == BusyError.exit_code:
                self._leave(planned, message)
            elif jobs > 1 and code in OUT_OF_MEMORY and not planned.folder.is_finished:
                full.append(planned)
                self.console.print(f"{planned.label}: memory is full, tried again later", highlight=False)
            else:
                self._record(planned, message, code, jobs)

        run_in_parallel(training_jobs(), at_once=jobs, total=len(waiting), console=self.console)
        if full:
            self.changed = set()
            self.console.print(f"[bold]memory was full with {jobs} at a time[/bold]: {len(full)} again, {jobs // 2}")
            self.run_in_processes(full, jobs // 2)

    def _make_ready(self, planned: PlannedRun) -> None:
        with sole_writer_of(planned.folder.path):
            if planned.folder.path in self.changed:
                planned.folder.clear()
            (planned.folder.path / OUTCOME_FILE).unlink(missing_ok=True)

    def _leave(self, planned: PlannedRun, reason: str) -> None:
        """Leave a run to the other process that writes to it."""
        self.console.print(f"{planned.label}: {reason}", markup=False, highlight=False, soft_wrap=True)
        self.busy[planned.folder.path] = replace(planned.outcome, reason=reason, exit_code=BusyError.exit_code)

    def _record(self, planned: PlannedRun, reason: str, code: int, at_once: int) -> None:
        """Keep how a run ended, and print it."""
        folder, console = planned.folder, self.console
        outcome = Outcome.after(planned.row.name, planned.seed, folder, reason, code, parallel_runs=at_once)
        outcome.write(folder)
        self.ended += 1
        if outcome.status != "finished":
            console.print(f"[red]{planned.label}: {outcome.status}[/red]: ", end="", highlight=False)
            console.print(reason, markup=False, highlight=False, soft_wrap=True)
            return
        test = folder.scores().test or {}
        shown = "  ".join(f"{name} {score_named(name).text(test[name])}" for name in COMPARED if name in test)
        collapsed = collapse_mark([folder.scores()])
        console.print(f"{planned.label}: {shown or 'finished'}{collapsed}", highlight=False)
        rounds = -(-self.total // self.jobs) - 1
        if self.ended == 1 and rounds:
            left = hours_minutes_seconds(rounds * (time.monotonic() - self.started))
            console.print(f"The other {counted(self.total - 1, 'run')} will take about {left}", highlight=False)
