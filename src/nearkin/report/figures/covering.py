"""The covering radius over the steps, beside the score and the distance between classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nearkin.report.figure_style import GREY, head, new_figure
from nearkin.report.figures._runs import Drawing, run_colour, shared_title, together
from nearkin.report.figures.curves import draw_curve, evaluated_on, group_legend, seed_groups
from nearkin.report.figures.problems import boundaries
from nearkin.report.opened_run import CannotDrawError, OpenedRun


def draw(runs: Sequence[OpenedRun]) -> Drawing:
    """All runs on the same axes, dashed lines where a new sub-problem begins."""
    return together(runs, _measured, _figure)


def is_measured(run: OpenedRun) -> bool:
    return any(row.get("covering_radius") is not None for row in run.evaluations)


def _measured(run: OpenedRun) -> OpenedRun:
    if not is_measured(run):
        raise CannotDrawError("it was not measured: train with protocol.covering=true")
    return run


def _figure(runs: Sequence[OpenedRun]) -> Any:
    score = runs[0].select_by
    panels = {score: f"{score} (%)", "covering_radius": "covering radius"}
    panels["inter_class_distance"] = "distance between classes"
    groups = seed_groups(runs)
    figure = new_figure(7.2, 6.6)
    head(figure, "Covering radius over the steps", shared_title(runs))
    axes = figure.subplots(len(panels), 1, sharex=True)
    dashed = False
    for axis, (column, name) in zip(axes, panels.items(), strict=True):
        for group in groups:
            draw_curve(axis, group, column, "step")
        for run in runs:
            lines = boundaries(run)
            axis.vlines(lines, 0, 1, transform=axis.get_xaxis_transform(), lw=0.9, ls="--", alpha=0.6,
                        color=GREY if len(runs) == 1 else run_colour(run))  # fmt: skip
            dashed |= bool(lines)
        axis.set_ylabel(name)
        axis.grid(True, axis="y")
    axes[0].set_title(f"on the {evaluated_on(runs)}", loc="left")
    axes[-1].set_xlabel("step (dashed: a new sub-problem begins)" if dashed else "step")
    if len(runs) > 1:
        group_legend(figure, groups)
    return figure
