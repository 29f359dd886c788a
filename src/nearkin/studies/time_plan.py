"""How long a study will take, said before it begins: from its finished runs, or else from a few timed steps."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nearkin.errors import NearkinError
from nearkin.recipe import PartSection, Recipe
from nearkin.report.formats import counted
from nearkin.studies.pool import share_done
from nearkin.studies.study import PlannedRun
from nearkin.studies.timed_steps import run_seconds
from nearkin.training.device import describe_hardware, pick_device
from nearkin.training.time_estimate import in_words

ASK_BEYOND = 15 * 60
"""Seconds; whoever starts more than this without having been told would not expect it."""


@dataclass(frozen=True)
class TimePlan:
    """How many runs there are, and how long those that are left will roughly take."""

    runs: int
    finished: int
    seconds: float | None
    """None where it could not be estimated, for instance because the data are missing."""
    how: str
    """How the time was estimated, or why it was not."""

    @property
    def is_long(self) -> bool:
        return self.seconds is not None and self.seconds > ASK_BEYOND

    @property
    def text(self) -> str:
        """The time in words, with what it rests on."""
        if self.finished == self.runs:
            return "nothing is left to run"
        return f"unknown: {self.how}" if self.seconds is None else f"about {in_words(self.seconds)}, {self.how}"


def plan_time(
    runs: Sequence[PlannedRun],
    *,
    jobs: int = 1,
    anew: Collection[Path] = (),
    measure: Callable[[Recipe], float] = run_seconds,
) -> TimePlan:
    """The time that the unfinished of ``runs`` will take, ``jobs`` at a time.

    Runs with the data and the budget of finished ones take as long as those did, a row's own before others'. Without
    any, one run stands for all with its data and budget, and a few of its training steps are timed.

    Args:
        runs: every run of a study, finished or not.
        jobs: runs at a time; the time is divided by them, as if they did not slow each other down.
        anew: folders of runs that will be begun anew, whatever they hold.
        measure: seconds of a whole run with a recipe.
    """
    waiting = [run for run in runs if run.folder.path in anew or not run.folder.is_finished]
    done = [run for run in runs if run not in waiting]
    total, timed, finished, problem = 0.0, [], 0, ""
    for budget in dict.fromkeys(_budget(run.recipe) for run in waiting):
        mine = [run for run in waiting if _budget(run.recipe) == budget]
        took = [(_method(run.recipe), _seconds(run, jobs)) for run in done if _budget(run.recipe) == budget]
        known = [(method, seconds) for method, seconds in took if seconds is not None]
        finished += len(known)
        fixed = 0.0
        if not known:
            # Proxy losses and plain training first: their steps are the same in all rows, methods add to them.
            chosen = min(mine, key=lambda run: run.recipe.method.name != "plain")
            try:
                fixed = measure(chosen.recipe) / jobs
            except (NearkinError, ValueError, RuntimeError) as error:
                problem = str(error).splitlines()[0]
                continue
            timed.append(chosen.recipe.objective.name)
        for run in mine:
            alike = [seconds for method, seconds in known if method == _method(run.recipe)]
            left = 1.0 if run.folder.path in anew else 1.0 - _share_done(run)
            total += left * (statistics.fmean(alike or [seconds for _, seconds in known]) if known else fixed)
    sources = [counted(finished, "finished run")] if finished else []
    sources += [f"a few timed steps of {' and of '.join(dict.fromkeys(timed))}"] if timed else []
    if not sources:
        return TimePlan(len(runs), len(done), None if waiting else 0.0, problem)
    several = f"; {jobs} at a time" if jobs > 1 else ""
    missing = f"; without what cannot be timed ({problem})" if problem else ""
    how = f"a rough guess from {' and '.join(sources)} on this machine{several}{missing}"
    return TimePlan(len(runs), len(done), total, how)


def _budget(recipe: Recipe) -> Hashable:
    """The same for runs that take as long but for their loss and method."""
    training = recipe.training
    length = (training.epochs, training.max_steps, training.batch_size)
    return recipe.data, recipe.encoder.backbone, length, recipe.protocol.name


def _method(recipe: Recipe) -> tuple[PartSection, PartSection]:
    return recipe.objective, recipe.method


def _seconds(run: PlannedRun, jobs: int) -> float | None:
    """The machine's time for a finished run, of which several may be made at once; None of other hardware."""
    try:
        scores = run.folder.scores()
        here = describe_hardware(pick_device(run.recipe.training.device))
        # Runs side by side are given fewer threads each, on the same hardware.
        then, now = (re.sub(r", \d+ threads", "", hardware) for hardware in (scores.conditions.hardware, here))
        return float(scores.seconds) / max(jobs, run.outcome.side_by_side) if then == now else None
    except (NearkinError, ValueError, TypeError):
        return None


def _share_done(run: PlannedRun) -> float:
    try:
        rows = run.folder.evaluations()
    except (NearkinError, ValueError):
        return 0.0
    return share_done(run.recipe, rows[-1]) if rows else 0.0
