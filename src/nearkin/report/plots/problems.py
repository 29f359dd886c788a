"""How a method that solves a chain of problems went: the steps of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nearkin.report.opened_run import CannotDrawError, OpenedRun
from nearkin.report.plots._runs import Drawing, run_colour, shared_title, together
from nearkin.report.plots._style import GREY, head, new_figure

__all__ = ["draw"]

_KINDS = {"problem": "sub-problem", "representatives": "set of representatives"}


def draw(runs: Sequence[OpenedRun]) -> Drawing:
    """A bar for the steps of each sub-problem (CCP) or set of representatives (PROFS)."""
    return together(runs, _problems, _figure)


def boundaries(run: OpenedRun) -> list[int]:
    """The steps at which a new problem was begun, the very first apart."""
    return [int(event["step"]) for event in run.events if event.get("kind") in _KINDS and event["step"] > 0]


def problem_steps(run: OpenedRun) -> list[tuple[int, int, bool]]:
    """``(number, steps, ended)`` of every problem; the last one may have been cut short by the end of the run."""
    events = [event for event in run.events if event.get("kind") in _KINDS]
    starts = [int(event["step"]) for event in events]
    end = max([starts[-1], *(int(row["step"] or 0) for row in run.evaluations)])
    numbers = [int(event.get("number", place + 1)) for place, event in enumerate(events)]
    found = [(number, until - start, True) for number, start, until in zip(numbers, starts, starts[1:], strict=False)]
    return [*found, (numbers[-1], end - starts[-1], False)] if end > starts[-1] else found


def _problems(run: OpenedRun) -> tuple[OpenedRun, list[tuple[int, int, bool]]]:
    if not any(event.get("kind") in _KINDS for event in run.events):
        method = run.recipe.method.name
        none = "its training ended within the warm-up" if method == "ccp" else "only ccp and profs have them"
        raise CannotDrawError(f"the method is {method}; {none}")
    return run, problem_steps(run)


def _figure(present: Sequence[tuple[OpenedRun, list[tuple[int, int, bool]]]]) -> Any:
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(7.2, 2.4 * len(present) + 0.9)
    head(figure, "Steps per sub-problem", shared_title([run for run, _ in present]))
    axes = figure.subplots(len(present), 1, squeeze=False)[:, 0]
    cut_short = False
    for axis, (run, bars) in zip(axes, present, strict=True):
        colour = run_colour(run)
        for place, steps, ended in bars:
            axis.bar(place, steps, color=colour if ended else "white", edgecolor=colour, hatch="" if ended else "//")
            cut_short |= not ended
        kind = next(event["kind"] for event in run.events if event.get("kind") in _KINDS)
        first = next(int(event["step"]) for event in run.events if event.get("kind") in _KINDS)
        # PROFS keeps only its last draws.
        axis.set_xlabel(f"number of the {_KINDS[kind]}" + (f", counted from step {first:,}" if first else ""))
        axis.set_ylabel("steps")
        for scale in (axis.xaxis, axis.yaxis):
            scale.set_major_locator(MaxNLocator(integer=True))
        if len(present) > 1:
            axis.set_title(run.label, loc="left")
    if cut_short:
        unended = Patch(facecolor="white", edgecolor=GREY, hatch="//")
        figure.legend([unended], ["cut short by the end of the run"], loc="outside lower center")
    return figure
