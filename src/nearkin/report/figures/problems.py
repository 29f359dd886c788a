"""Steps of each sub-problem (CCP) or set of representatives (PROFS)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nearkin.report.figure_style import GREY, new_figure, run_colour, set_title, shared_title
from nearkin.report.opened_run import NothingToShowError, OpenedRun
from nearkin.training.state import Event

_EVENTS = {"problem": "sub-problem", "representatives": "set of representatives"}


def check(run: OpenedRun) -> None:
    if not problem_events(run):
        method = run.recipe.method.name
        reason = "its training ended within the warm-up" if method == "ccp" else "only ccp and profs have them"
        raise NothingToShowError(f"the method is {method}; {reason}")


def draw_runs(runs: Sequence[OpenedRun]) -> Any:
    """A bar for the steps of each, a panel for each run."""
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(7.2, 2.4 * len(runs) + 0.9)
    set_title(figure, "Steps per sub-problem", shared_title(runs))
    axes = figure.subplots(len(runs), 1, squeeze=False)[:, 0]
    cut_short = False
    for axis, run in zip(axes, runs, strict=True):
        colour = run_colour(run)
        for number, steps, ended in problem_steps(run):
            axis.bar(number, steps, color=colour if ended else "white", edgecolor=colour, hatch="" if ended else "//")
            cut_short |= not ended
        first = problem_events(run)[0]
        # PROFS keeps only its last draws.
        since = f", counted from step {int(first['step']):,}" if first["step"] else ""
        axis.set_xlabel(f"number of the {_EVENTS[first['kind']]}{since}")
        axis.set_ylabel("steps")
        for scale in (axis.xaxis, axis.yaxis):
            scale.set_major_locator(MaxNLocator(integer=True))
        if len(runs) > 1:
            axis.set_title(run.label, loc="left")
    if cut_short:
        unended = Patch(facecolor="white", edgecolor=GREY, hatch="//")
        figure.legend([unended], ["cut short by the end of the run"], loc="outside lower center")
    return figure


def problem_events(run: OpenedRun) -> list[Event]:
    """The beginnings of sub-problems; none for a method that has no such chain."""
    return [event for event in run.events if event.get("kind") in _EVENTS]


def problem_steps(run: OpenedRun) -> list[tuple[int, int, bool]]:
    """``(number, steps, ended)`` of every sub-problem; the end of the run may have cut the last one short."""
    events = problem_events(run)
    starts = [int(event["step"]) for event in events]
    end = max([starts[-1], *(int(row["step"] or 0) for row in run.evaluations)])
    numbers = [int(event.get("number", index + 1)) for index, event in enumerate(events)]
    steps = [(number, until - start, True) for number, start, until in zip(numbers, starts, starts[1:], strict=False)]
    return [*steps, (numbers[-1], end - starts[-1], False)] if end > starts[-1] else steps
