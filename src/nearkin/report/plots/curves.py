"""Loss and scores over the epochs; runs that differ only in their seed as one line with a band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.evaluation.protocol import SELECTED_ON_TEST
from nearkin.report.opened_run import OpenedRun
from nearkin.report.plots._runs import Drawing, run_colour, shared_title, together
from nearkin.report.plots._style import end_at_all, head, new_figure

__all__ = ["draw"]

MOST_SCORES = 3


@dataclass(frozen=True)
class Group:
    """Runs of one recipe with different seeds."""

    label: str
    runs: list[OpenedRun]

    def curve(self, column: str, over: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Epochs or steps ``[T]`` at which every run of the group has a value, and the values ``[runs, T]``."""
        tracks = [
            {row[over]: value for row in run.evaluations if (value := row.get(column)) is not None} for run in self.runs
        ]
        shared = sorted(at for at in tracks[0] if at is not None and all(at in track for track in tracks))
        values = [[track[at] for at in shared] for track in tracks]
        return np.array(shared, dtype=np.float64), np.array(values, dtype=np.float64)

    def draw(self, axis: Any, column: str, over: str) -> None:
        """The mean as a line and, of several runs, the standard deviation as a band; scores in per cent."""
        at, values = self.curve(column, over)
        values = values * percent(column)
        mean, colour = values.mean(0), run_colour(self.runs[0])
        axis.plot(at, mean, color=colour, lw=1.8, marker="o" if len(at) <= 25 else None, markersize=3)
        if len(values) > 1:
            band = values.std(0, ddof=1)
            axis.fill_between(at, mean - band, mean + band, color=colour, alpha=0.18, lw=0)


def draw(runs: Sequence[OpenedRun]) -> Drawing:
    """All runs on the same axes, the evaluation that the protocol chooses marked with a star."""
    return together(runs, _evaluated, _figure)


def seed_groups(runs: Sequence[OpenedRun]) -> list[Group]:
    """Runs whose recipes differ in nothing but the seed belong together."""
    families: dict[int, list[OpenedRun]] = {}
    for run in runs:
        families.setdefault(run.family, []).append(run)
    names = [members[0].title for members in families.values()]
    groups = []
    for members, name in zip(families.values(), names, strict=True):
        label = name if names.count(name) == 1 else members[0].label
        if len(members) > 1:
            label += f", mean ± std of {len(members)} seeds"
        if len({run.recipe.protocol.name for run in runs}) > 1:
            label += f", {members[0].recipe.protocol.name} protocol"
        groups.append(Group(label, members))
    return groups


def scored_on(runs: Sequence[OpenedRun]) -> str:
    """Which classes the evaluations are of."""
    return " or ".join(
        dict.fromkeys("test" if run.recipe.protocol.name in SELECTED_ON_TEST else "validation" for run in runs)
    )


def percent(column: str) -> float:
    """Scores are shown in per cent, losses and distances as they are."""
    return 100.0 if "@" in column else 1.0


def group_legend(figure: Any, groups: Sequence[Group], *, starred: str = "") -> None:
    """A line for each group below the figure, and what a star means where there are stars."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=run_colour(group.runs[0]), lw=1.8) for group in groups]
    labels = [group.label for group in groups]
    if starred:
        handles.append(Line2D([], [], color="black", marker="*", markersize=9, ls="none"))
        labels.append(starred)
    figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(labels)))


def score_columns(runs: Sequence[OpenedRun]) -> list[str]:
    """The score that each run is chosen by, then R@1, MAP@R and nDCG: those that were measured, three at most."""
    measured = list(dict.fromkeys(key for run in runs for row in run.evaluations for key in row if "@" in key))
    wanted = [*(run.select_by for run in runs), "R@1", "MAP@R", *(key for key in measured if key.startswith("nDCG"))]
    return [key for key in dict.fromkeys(wanted) if key in measured][:MOST_SCORES]


def _evaluated(run: OpenedRun) -> OpenedRun:
    _ = run.evaluations  # raises where there is none
    return run


def _figure(runs: Sequence[OpenedRun]) -> Any:
    from matplotlib.ticker import MaxNLocator

    groups, scores = seed_groups(runs), score_columns(runs)
    panels = 1 + len(scores)
    columns = min(2, panels)
    rows = -(-panels // columns)
    figure = new_figure(4.0 * columns, 2.6 * rows + 0.9)
    figure.set_layout_engine("constrained", w_pad=0.12)
    head(figure, "Loss and scores over the epochs", shared_title(runs))
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True).ravel()
    starred = False
    for axis, column in zip(axes, ["loss", *scores], strict=False):
        for group in groups:
            group.draw(axis, column, "epoch")
        starred |= column != "loss" and _draw_stars(axis, runs, column)
        axis.set_xlabel("epoch")
        axis.set_ylabel("training loss" if column == "loss" else f"{column} (%)")
        axis.set_title(_panel_title(runs, column), loc="left")
        axis.tick_params(labelbottom=True)
        axis.grid(True)
        axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=2))
        if column == "loss":
            _fit_loss_scale(axis)
        else:
            end_at_all(axis)
    for axis in axes[panels:]:
        axis.set_axis_off()
    by = " or ".join(dict.fromkeys(run.select_by for run in runs))
    group_legend(figure, groups, starred=f"best evaluation, by {by}" if starred else "")
    return figure


def _draw_stars(axis: Any, runs: Sequence[OpenedRun], column: str) -> bool:
    """A star at each run's best evaluation; True where there is one."""
    drawn = False
    for run in runs:
        best = run.best_evaluation
        if best is not None and (value := best.get(column)) is not None:
            look = {"marker": "*", "markersize": 12, "mec": "white", "mew": 0.8, "zorder": 4}
            axis.plot(best["epoch"], percent(column) * value, color=run_colour(run), **look)
            drawn = True
    return drawn


def _panel_title(runs: Sequence[OpenedRun], column: str) -> str:
    if column == "loss":
        return "Loss, mean since the last evaluation"
    return f"{column} on the {scored_on(runs)} classes"


def _fit_loss_scale(axis: Any) -> None:
    """Losses of different kinds can differ by orders of magnitude; on a linear axis the small ones would be flat."""
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=np.float64) for line in axis.lines] or [np.ones(1)])
    values = values[np.isfinite(values)]
    if len(values) and values.min() > 0 and values.max() > 20 * values.min():
        axis.set_yscale("log")
