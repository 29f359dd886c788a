"""How long a study will take, said before it begins: from its finished runs, or else from a few timed steps."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nearkin.errors import NearkinError
from nearkin.recipe import Recipe
from nearkin.studies.pool import share_done
from nearkin.studies.study import PlannedRun
from nearkin.studies.timed_steps import run_seconds
from nearkin.training.device import describe_hardware, pick_device

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
        return f"unknown: {self.how}" if self.seconds is None else f"{duration(self.seconds)}, {self.how}"


@dataclass(frozen=True)
class _Known:
    """What a finished run took, and how many ran beside it."""

    recipe: Recipe
    seconds: float
    side_by_side: int


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
    total, timed, counted, problem = 0.0, [], 0, ""
    for budget in dict.fromkeys(_budget(run.recipe) for run in waiting):
        mine = [run for run in waiting if _budget(run.recipe) == budget]
        known = [each for run in done if _budget(run.recipe) == budget and (each := _known(run)) is not None]
        counted += len(known)
        fixed = 0.0
        if not known:
            # Proxy losses and plain training first: their steps are the same in all rows, methods add to them.
            chosen = min(mine, key=lambda run: run.recipe.method.name != "plain")
            try:
                fixed = measure(chosen.recipe)
            except (NearkinError, ValueError, RuntimeError) as error:
                problem = str(error).splitlines()[0]
                continue
            timed.append(chosen.recipe.objective.name)
        for run in mine:
            left = 1.0 if run.folder.path in anew else 1.0 - _share_done(run)
            total += left * (fixed / jobs if fixed else _seconds_of(run.recipe, known, jobs))
    sources = [f"{counted} finished {'run' if counted == 1 else 'runs'}"] if counted else []
    sources += [f"a few timed steps of {' and of '.join(dict.fromkeys(timed))}"] if timed else []
    if not sources:
        return TimePlan(len(runs), len(done), None if waiting else 0.0, problem)
    several = f"; {jobs} at a time" if jobs > 1 else ""
    missing = f"; without what cannot be timed ({problem})" if problem else ""
    return TimePlan(
        len(runs), len(done), total, f"a rough guess from {' and '.join(sources)} on this machine{several}{missing}"
    )


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(3), duration(50), duration(1000), duration(3 * 3600 + 1500), duration(3 * 86400)
    ('less than 10 s', 'about 50 s', 'about 17 min', 'about 3 h 25 min', 'about 3 days')
    """
    if seconds < 10:
        return "less than 10 s"
    if seconds < 90:
        return f"about {10 * round(seconds / 10)} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"about {minutes} min"
    hours, rest = divmod(5 * round(minutes / 5), 60)
    if hours < 48:
        return f"about {hours} h" + (f" {rest} min" if rest else "")
    return f"about {round(hours / 24)} days"


def _budget(recipe: Recipe) -> Hashable:
    """The same for runs that take as long but for their loss and method."""
    training = recipe.training
    length = (training.epochs, training.max_steps, training.batch_size)
    return recipe.data, recipe.encoder.backbone, length, recipe.protocol.name


def _known(run: PlannedRun) -> _Known | None:
    """What a run took, unless it was on other hardware."""
    try:
        scores = run.folder.scores()
        here = describe_hardware(pick_device(run.recipe.training.device))
        if _without_threads(scores.conditions.hardware) != _without_threads(here):
            return None
        return _Known(run.recipe, float(scores.seconds), run.outcome.side_by_side)
    except (NearkinError, ValueError, TypeError):
        return None


def _seconds_of(recipe: Recipe, known: Sequence[_Known], jobs: int) -> float:
    """The machine's time for a run, of which several may be made at once."""
    alike = [each for each in known if (each.recipe.objective, each.recipe.method) == (recipe.objective, recipe.method)]
    return statistics.fmean(each.seconds / max(jobs, each.side_by_side) for each in alike or known)


def _share_done(run: PlannedRun) -> float:
    try:
        rows = run.folder.evaluations()
    except (NearkinError, ValueError):
        return 0.0
    return share_done(run.recipe, rows[-1]) if rows else 0.0


def _without_threads(hardware: str) -> str:
    """Runs side by side are given fewer threads each, on the same hardware."""
    return re.sub(r", \d+ threads", "", hardware)
