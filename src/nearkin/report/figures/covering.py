"""The covering radius over the steps, with the score and the distance between classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nearkin.report.figure_style import GREY, new_figure, run_colour, set_title, shared_title
from nearkin.report.figures.curves import draw_curve, evaluated_on, group_legend, seed_groups
from nearkin.report.opened_run import NothingToShowError, OpenedRun

_BEGINNINGS = ("problem", "representatives")
"""Events of CCP and PROFS with which a sub-problem begins."""
_MOST_BOUNDARIES = 60
"""More sub-problems than this are not separated by lines."""


def check(run: OpenedRun) -> None:
    if all(row.get("covering_radius") is None for row in run.evaluations):
        raise NothingToShowError("it was not measured: train with protocol.covering=true")


def draw_runs(runs: Sequence[OpenedRun]) -> Any:
    """All runs on the same axes, with a dashed line where a new sub-problem begins."""
    score = runs[0].select_by
    panels = {score: f"{score} (%)", "covering_radius": "covering radius"}
    panels["inter_class_distance"] = "distance between classes"
    groups = seed_groups(runs)
    figure = new_figure(7.2, 6.6)
    set_title(figure, "Covering radius over the steps", shared_title(runs))
    axes = figure.subplots(len(panels), 1, sharex=True)
    dashed = False
    for axis, (column, name) in zip(axes, panels.items(), strict=True):
        for group in groups:
            draw_curve(axis, group, column, "step")
        for run in runs:
            steps = [int(e["step"]) for e in run.events if e.get("kind") in _BEGINNINGS and e["step"]]
            if 0 < len(steps) <= _MOST_BOUNDARIES:
                axis.vlines(steps, 0, 1, transform=axis.get_xaxis_transform(), lw=0.9, ls="--", alpha=0.6,
                            color=GREY if len(runs) == 1 else run_colour(run))  # fmt: skip
                dashed = True
        axis.set_ylabel(name)
        axis.grid(True, axis="y")
    axes[0].set_title(f"on the {evaluated_on(runs)}", loc="left")
    axes[-1].set_xlabel("step (dashed: a new sub-problem begins)" if dashed else "step")
    if len(runs) > 1:
        group_legend(figure, groups)
    return figure
