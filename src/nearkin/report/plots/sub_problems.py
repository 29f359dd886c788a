"""How a method that solves a chain of problems went: covering radius over the steps, and steps per problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nearkin.errors import NearkinError
from nearkin.evaluation.protocol import SELECTED_ON_TEST
from nearkin.report.opened_run import CannotDrawError, OpenedRun
from nearkin.report.plots._page import GREY, Drawing, NotDrawn, Picture, head, run_colour, shared_title
from nearkin.report.plots.curves import group_legend, seed_groups

_MOST_LINES = 60
_KINDS = {"problem": "sub-problem", "representatives": "set of representatives"}


def draw_covering(runs: Sequence[OpenedRun]) -> Drawing:
    """``covering``: the chosen score, the covering radius and the distance between classes over the steps."""
    measured = []
    for run in runs:
        try:
            if not any(row.get("covering_radius") is not None for row in run.evaluations):
                raise CannotDrawError("it was not measured: train with protocol.covering=true")
            measured.append(run)
        except NearkinError as error:
            yield NotDrawn("covering", str(error), run)
    if measured:
        yield Picture("covering", _covering_figure(measured))


def draw_steps(runs: Sequence[OpenedRun]) -> Drawing:
    """``problems``: a bar for the steps of each sub-problem (CCP) or set of representatives (PROFS)."""
    present = []
    for run in runs:
        try:
            if not any(event.get("kind") in _KINDS for event in run.events):
                method = run.recipe.method.name
                none = "its training ended within the warm-up" if method == "ccp" else "only ccp and profs have them"
                raise CannotDrawError(f"the method is {method}; {none}")
            present.append((run, problem_steps(run)))
        except NearkinError as error:
            yield NotDrawn("problems", str(error), run)
    if present:
        yield Picture("problems", _steps_figure(present))


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


def _covering_figure(runs: Sequence[OpenedRun]) -> Any:
    from matplotlib.figure import Figure

    score = runs[0].select_by
    panels = {score: f"{score} (%)", "covering_radius": "covering radius"}
    panels["inter_class_distance"] = "distance between classes"
    groups = seed_groups(runs)
    figure = Figure(figsize=(7.2, 6.6), layout="constrained")
    head(figure, "Covering radius over the steps", shared_title(runs))
    axes = figure.subplots(len(panels), 1, sharex=True)
    dashed = False
    for axis, (column, name) in zip(axes, panels.items(), strict=True):
        for group in groups:
            group.draw(axis, column, "step")
        for run in runs:
            lines = boundaries(run)
            if len(lines) <= _MOST_LINES:
                axis.vlines(lines, 0, 1, transform=axis.get_xaxis_transform(), lw=0.9, ls="--", alpha=0.6,
                            color=GREY if len(runs) == 1 else run_colour(run))  # fmt: skip
                dashed |= bool(lines)
        axis.set_ylabel(name)
        axis.grid(True, axis="y")
    parts = dict.fromkeys("test" if run.recipe.protocol.name in SELECTED_ON_TEST else "validation" for run in runs)
    axes[0].set_title(f"on the {' or '.join(parts)} classes", loc="left")
    axes[-1].set_xlabel("step (dashed: a new sub-problem begins)" if dashed else "step")
    if len(runs) > 1:
        group_legend(figure, groups)
    return figure


def _steps_figure(present: Sequence[tuple[OpenedRun, list[tuple[int, int, bool]]]]) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7.2, 2.4 * len(present) + 0.9), layout="constrained")
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
