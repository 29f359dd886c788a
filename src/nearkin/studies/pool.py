"""Several jobs at a time, each a process of its own: how a GPU that one run leaves idle is filled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from nearkin.errors import InterruptedRunError
from nearkin.evaluation.scores import score_named
from nearkin.recipe import Recipe
from nearkin.runs.folder import RunFolder
from nearkin.studies.starter import Process, Starter
from nearkin.training.interrupt import StopRequest
from nearkin.training.observers import SHOWN

LOG = "output.log"
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Job:
    """A command that does one thing, saves itself when it is asked to stop, and can be begun again."""

    label: str
    command: Sequence[str]
    """What follows ``python``."""
    log: Path
    """Where its output goes."""
    is_done: Callable[[], bool]
    ended: Callable[[int, str], None]
    """Told the exit code and what was said last, unless the job was stopped before it was done."""
    look: Callable[[], tuple[float, str] | None] = lambda: None
    """How much of it is done, and a note; None where nothing is new."""


@dataclass(frozen=True)
class _Running:
    job: Job
    process: Process
    bar: TaskID


def run_side_by_side(jobs: Iterator[Job], *, at_once: int, total: int, console: Console) -> None:
    """Run ``jobs``, ``total`` in all, ``at_once`` at a time; the next is asked for when there is room for it.

    On Ctrl-C or SIGTERM every job in hand saves itself, and :class:`InterruptedRunError` is raised.
    """
    running: list[_Running] = []
    asked_to_stop, more, cut_short, begun = False, True, False, 0
    with StopRequest() as stop, _progress(console) as progress, Starter(at_once) as starter:
        overall = progress.add_task("all", total=total, note=f"0 of {total}")
        try:
            while running or (more and not stop.requested):
                while more and len(running) < at_once and not stop.requested:
                    job = next(jobs, None)
                    if job is None:
                        more = False
                        break
                    begun += 1
                    console.print(f"begins: {job.label}", highlight=False)
                    bar = progress.add_task(job.label, total=1.0, note="starting")
                    running.append(_Running(job, starter.start(job.command, job.log), bar))
                if stop.requested and not asked_to_stop:
                    asked_to_stop = True
                    for each in running:
                        each.process.terminate()
                for each in list(running):
                    code = each.process.poll()
                    if code is None:
                        if (seen := each.job.look()) is not None:
                            progress.update(each.bar, completed=seen[0], note=seen[1])
                        continue
                    running.remove(each)
                    progress.remove_task(each.bar)
                    done = begun - len(running)
                    progress.update(overall, completed=done, note=f"{done} of {total}")
                    # A job that was asked to stop has not failed.
                    if each.job.is_done() or not stop.requested:
                        killed = f"killed by signal {-code}; it said: " if code < 0 else ""
                        each.job.ended(code, killed + last_words(each.job.log))
                    else:
                        cut_short = True
                time.sleep(POLL_SECONDS)
        finally:
            for each in running:
                each.process.kill()
                each.process.wait()
    if stop.requested and (cut_short or begun < total):
        raise InterruptedRunError("interrupted; the same command goes on")


def training_job(label: str, recipe: Recipe, folder: RunFolder, ended: Callable[[int, str], None]) -> Job:
    """``nearkin train`` with the recipe that the folder holds."""
    train = ["-m", "nearkin", "train", str(folder.recipe_file), "-o", str(folder.path)]
    looked = 0.0

    def look() -> tuple[float, str] | None:
        nonlocal looked
        file = folder.evaluations_file
        changed = file.stat().st_mtime if file.exists() else 0.0
        if changed <= looked:
            return None
        looked = changed
        return progress_of(recipe, folder)

    return Job(
        label,
        [*train, "--resume", "--verbose", "--no-picture"],
        folder.path / LOG,
        is_done=lambda: folder.is_finished,
        ended=ended,
        look=look,
    )


def progress_of(recipe: Recipe, folder: RunFolder) -> tuple[float, str]:
    """How much of a run is done, and its last evaluation in words."""
    row = folder.evaluations()[-1]
    share = share_done(recipe, row)
    parts = [f"epoch {row['epoch']:g}", f"step {row['step']:g}"]
    parts += [f"{name} {score_named(name).text(score)}" for name in SHOWN if (score := row.get(name)) is not None]
    if 0 < share < 1:
        left = round((row["seconds"] or 0.0) * (1 - share) / share)
        parts.append(f"{left // 60}:{left % 60:02d} left")
    return share, "  ".join(parts)


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


def last_words(log: Path) -> str:
    """What a job said of its error: the message behind ``error:``, or the last line there is."""
    text = log.read_text(encoding="utf-8", errors="replace").strip() if log.exists() else ""
    _, marked, message = f"\n{text}".rpartition("\nerror: ")
    if marked:
        return message.strip()
    return text.splitlines()[-1] if text else f"it said nothing (see {log})"


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
        disable=console.quiet or not console.is_terminal,
    )
