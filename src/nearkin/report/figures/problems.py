"""How a method that solves a chain of problems went: the steps of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nearkin.report.figure_style import GREY, head, new_figure
from nearkin.report.figures._runs import Drawing, run_colour, shared_title, together
from nearkin.report.opened_run import CannotDrawError, OpenedRun
from nearkin.training.state import Event

_MOST_BOUNDARIES = 60
"""More problems than this are not kept apart by lines."""
_KINDS = {"problem": "sub-problem", "representatives": "set of representatives"}


def draw(runs: Sequence[OpenedRun]) -> Drawing:
    """A bar for the steps of each sub-problem (CCP) or set of representatives (PROFS)."""
    return together(runs, _with_problems, _figure)


def problem_events(run: OpenedRun) -> list[Event]:
    """The beginnings of problems; none for a method that has no such chain."""
    return [event for event in run.events if event.get("kind") in _KINDS]


def boundaries(run: OpenedRun) -> list[int]:
    """The steps at which a new problem was begun, the very first apart; none where they are too many to tell apart."""
    steps = [int(event["step"]) for event in problem_events(run) if event["step"] > 0]
    return steps if len(steps) <= _MOST_BOUNDARIES else []


def problem_steps(run: OpenedRun) -> list[tuple[int, int, bool]]:
    """``(number, steps, ended)`` of every problem; the last one may have been cut short by the end of the run."""
    events = problem_events(run)
    starts = [int(event["step"]) for event in events]
    end = max([starts[-1], *(int(row["step"] or 0) for row in run.evaluations)])
    numbers = [int(event.get("number", place + 1)) for place, event in enumerate(events)]
    found = [(number, until - start, True) for number, start, until in zip(numbers, starts, starts[1:], strict=False)]
    return [*found, (numbers[-1], end - starts[-1], False)] if end > starts[-1] else found


def _with_problems(run: OpenedRun) -> OpenedRun:
    if not problem_events(run):
        method = run.recipe.method.name
        none = "its training ended within the warm-up" if method == "ccp" else "only ccp and profs have them"
        raise CannotDrawError(f"the method is {method}; {none}")
    return run


def _figure(runs: Sequence[OpenedRun]) -> Any:
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(7.2, 2.4 * len(runs) + 0.9)
    head(figure, "Steps per sub-problem", shared_title(runs))
    axes = figure.subplots(len(runs), 1, squeeze=False)[:, 0]
    cut_short = False
    for axis, run in zip(axes, runs, strict=True):
        colour = run_colour(run)
        for place, steps, ended in problem_steps(run):
            axis.bar(place, steps, color=colour if ended else "white", edgecolor=colour, hatch="" if ended else "//")
            cut_short |= not ended
        first = problem_events(run)[0]
        # PROFS keeps only its last draws.
        since = f", counted from step {int(first['step']):,}" if first["step"] else ""
        axis.set_xlabel(f"number of the {_KINDS[first['kind']]}{since}")
        axis.set_ylabel("steps")
        for scale in (axis.xaxis, axis.yaxis):
            scale.set_major_locator(MaxNLocator(integer=True))
        if len(runs) > 1:
            axis.set_title(run.label, loc="left")
    if cut_short:
        unended = Patch(facecolor="white", edgecolor=GREY, hatch="//")
        figure.legend([unended], ["cut short by the end of the run"], loc="outside lower center")
    return figure
