"""Several training runs at a time, each a process of its own: how a GPU that one run leaves idle is filled."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from nearkin.errors import BusyError, InterruptedRunError
from nearkin.recipe import Recipe
from nearkin.runs.folder import RunFolder
from nearkin.training.interrupt import StopRequest
from nearkin.training.observers import SHOWN

COMMAND = (sys.executable, "-m", "nearkin")
LOG = "output.log"
POLL_SECONDS = 0.2


class Trainable(Protocol):
    """What is run: a recipe, the folder it goes to, and what people call it."""

    @property
    def recipe(self) -> Recipe: ...

    @property
    def folder(self) -> RunFolder: ...

    @property
    def label(self) -> str: ...


T = TypeVar("T", bound=Trainable)


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    log: Path
    task: TaskID
    looked: float = field(default=0.0)


def train_side_by_side(
    runs: Sequence[T],
    *,
    at_once: int,
    begin: Callable[[T], None],
    end: Callable[[T, int, str], None],
    console: Console,
) -> None:
    """Train ``runs`` with ``nearkin train``, ``at_once`` at a time.

    ``begin`` is called before a run starts and leaves its recipe in its folder, or says that another process is at it,
    which ends the run; ``end`` gets the exit code and what the run said last. On Ctrl-C or SIGTERM every run in hand
    saves itself, and :class:`InterruptedRunError` is raised.
    """
    waiting = list(reversed(runs))
    running: list[tuple[T, _Running]] = []
    asked_to_stop = False
    with StopRequest() as stop, _progress(console) as progress:
        overall = progress.add_task("all runs", total=len(runs), note=f"0 of {len(runs)}")
        try:
            while running or (waiting and not stop.requested):
                while waiting and len(running) < at_once and not stop.requested:
                    run = waiting.pop()
                    try:
                        begin(run)
                    except BusyError as error:
                        end(run, error.exit_code, str(error))
                        continue
                    console.print(f"begins: {run.label}", highlight=False)
                    running.append((run, _start(run, progress, at_once)))
                if stop.requested and not asked_to_stop:
                    asked_to_stop = True
                    for _, job in running:
                        job.process.terminate()
                still = []
                for run, job in running:
                    code = job.process.poll()
                    if code is None:
                        _look(run, job, progress)
                        still.append((run, job))
                        continue
                    progress.remove_task(job.task)
                    # A run that was asked to stop has not failed.
                    if run.folder.is_finished or not stop.requested:
                        killed = f"killed by signal {-code}; it said: " if code < 0 else ""
                        end(run, code, killed + last_words(job.log))
                running = still
                done = len(runs) - len(waiting) - len(running)
                progress.update(overall, completed=done, note=f"{done} of {len(runs)}")
                time.sleep(POLL_SECONDS)
        finally:
            for _, job in running:
                job.process.kill()
                job.process.wait()
    if stop.requested and not all(run.folder.is_finished for run in runs):
        raise InterruptedRunError("interrupted; the same command goes on")


def last_words(log: Path) -> str:
    """What a run said of its error: the message behind ``error:``, or the last line there is."""
    text = log.read_text(encoding="utf-8", errors="replace").strip() if log.exists() else ""
    _, marked, message = f"\n{text}".rpartition("\nerror: ")
    if marked:
        return message.strip()
    return text.splitlines()[-1] if text else f"it said nothing (see {log})"


def share_done(recipe: Recipe, row: dict[str, float | None]) -> float:
    """How much of a run is done at an evaluation, between 0 and 1.

    >>> share_done(Recipe(), {"epoch": 5.0, "step": 300.0})
    0.25
    """
    training = recipe.training
    share = (row["epoch"] or 0.0) / max(training.epochs, 1)
    if training.max_steps is not None:
        share = max(share, (row["step"] or 0.0) / training.max_steps)
    return min(share, 1.0)


def _start(run: Trainable, progress: Progress, at_once: int) -> _Running:
    folder = run.folder
    log = folder.path / LOG
    command = [
        *COMMAND,
        "train",
        str(folder.recipe_file),
        "-o",
        str(folder.path),
        "--resume",
        "--verbose",
        "--no-picture",
    ]
    environment = dict(os.environ)
    # Each run would otherwise start as many threads as there are cores, and they would wait for each other.
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // at_once)))
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    return _Running(process, log, progress.add_task(run.label, total=1.0, note="starting"))


def _look(run: Trainable, job: _Running, progress: Progress) -> None:
    """Show what the run has written since it was last looked at."""
    file = run.folder.evaluations_file
    changed = file.stat().st_mtime if file.exists() else 0.0
    if changed <= job.looked:
        return
    job.looked = changed
    row = run.folder.evaluations()[-1]
    share = share_done(run.recipe, row)
    parts = [f"epoch {row['epoch']:g}", f"step {row['step']:g}"]
    parts += [f"{name} {100 * score:.1f}" for name in SHOWN if (score := row.get(name)) is not None]
    if 0 < share < 1:
        left = round((row["seconds"] or 0.0) * (1 - share) / share)
        parts.append(f"{left // 60}:{left % 60:02d} left")
    progress.update(job.task, completed=share, note="  ".join(parts))


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
        disable=console.quiet or not console.is_terminal,
    )
