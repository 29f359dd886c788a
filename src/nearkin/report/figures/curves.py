"""Loss and scores over the epochs; runs that differ only in their seed are one line with a band."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.evaluation.scores import is_score, score_named
from nearkin.report.figure_style import RUN_COLOURS, end_at_100, new_figure, run_colour, set_title, shared_title
from nearkin.report.opened_run import OpenedRun
from nearkin.report.run_groups import RunGroup

Values = NDArray[np.float64]

MOST_SCORES = 3
_EVALUATED_ON = {"validation": "validation classes", "mlrc": "validation classes", "in-distribution": "test images"}
_DASHES = ("-", "--", ":", "-.")


def check(run: OpenedRun) -> None:
    _ = run.evaluations  # raises where there is none


def draw_runs(runs: Sequence[OpenedRun]) -> Any:
    """All runs on the same axes, with a star at the evaluation that the protocol selects."""
    from matplotlib.ticker import MaxNLocator

    groups, scores = seed_groups(runs), score_columns(runs)
    panels = 1 + len(scores)
    columns = min(2, panels)
    rows = -(-panels // columns)
    figure = new_figure(4.0 * columns, 2.6 * rows + 0.9)
    figure.set_layout_engine("constrained", w_pad=0.12)
    set_title(figure, "Loss and scores over the epochs", shared_title(runs))
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True).ravel()
    starred = False
    for axis, column in zip(axes, ["loss", *scores], strict=False):
        for group in groups:
            draw_curve(axis, group, column, "epoch")
            for epoch, value in best(group.runs, column) if column != "loss" else ():
                style = {"marker": "*", "markersize": 12, "mec": "white", "mew": 0.8, "zorder": 4}
                axis.plot(epoch, value, color=run_colour(group.runs[0]), **style)
                starred = True
        axis.set_xlabel("epoch")
        if column == "loss":
            axis.set_ylabel("training loss")
            axis.set_title("Loss, mean since the last evaluation", loc="left")
            if needs_log_scale([value for line in axis.lines for value in line.get_ydata()]):
                axis.set_yscale("log")
        else:
            axis.set_ylabel(f"{column} (%)")
            axis.set_title(f"{column} on the {evaluated_on(runs)}", loc="left")
            end_at_100(axis)
        axis.tick_params(labelbottom=True)
        axis.grid(True)
        axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=2))
    for axis in axes[panels:]:
        axis.set_axis_off()
    by = " or ".join(dict.fromkeys(run.select_by for run in runs))
    group_legend(figure, groups, starred=f"best evaluation, by {by}" if starred else "")
    return figure


def seed_groups(runs: Sequence[OpenedRun]) -> list[RunGroup]:
    """Runs whose recipes differ only in the seed, with a label for each group."""
    families: dict[int, list[OpenedRun]] = {}
    for run in runs:
        families.setdefault(run.family, []).append(run)
    titles = [members[0].title for members in families.values()]
    groups = []
    for first, *others in families.values():
        label = first.title if titles.count(first.title) == 1 else first.label
        if others:
            label += f", mean ± std of {1 + len(others)} seeds"
        if len({run.recipe.protocol.name for run in runs}) > 1:
            label += f", {first.recipe.protocol.name} protocol"
        groups.append(RunGroup(label, (first, *others)))
    return groups


def curve(runs: Sequence[OpenedRun], column: str, over: str) -> tuple[Values, Values, Values]:
    """Epochs or steps at which every run has a value, with the values' mean and sample deviation (one run: NaN)."""
    tracks = [{row[over]: value for row in run.evaluations if (value := row.get(column)) is not None} for run in runs]
    shared = sorted(at for at in tracks[0] if at is not None and all(at in track for track in tracks))
    values = _scale(column) * np.array([[track[at] for at in shared] for track in tracks], dtype=np.float64)
    spread = values.std(0, ddof=1) if len(runs) > 1 else np.full(len(shared), np.nan)
    return np.array(shared, dtype=np.float64), values.mean(0), spread


def best(runs: Sequence[OpenedRun], column: str) -> list[tuple[float, float]]:
    """The epoch of the best evaluation of each run, and the value there."""
    rows = (run.best_evaluation or {} for run in runs)
    pairs = ((row.get("epoch"), row.get(column)) for row in rows)
    return [(at, _scale(column) * value) for at, value in pairs if at is not None and value is not None]


def draw_curve(axis: Any, group: RunGroup, column: str, over: str) -> None:
    """The mean as a line and, of several runs, the standard deviation as a band."""
    at, mean, spread = curve(group.runs, column, over)
    first = group.runs[0]
    marker = "o" if len(at) <= 25 else None
    axis.plot(at, mean, color=run_colour(first), lw=1.8, ls=_dash(first), marker=marker, markersize=3)
    if len(group.runs) > 1:
        axis.fill_between(at, mean - spread, mean + spread, color=run_colour(first), alpha=0.18, lw=0)


def _dash(run: OpenedRun) -> str:
    """Where the colours repeat, the dashes differ."""
    return _DASHES[run.family // len(RUN_COLOURS) % len(_DASHES)]


def evaluated_on(runs: Sequence[OpenedRun]) -> str:
    """What the evaluations of the curves were on, in words."""
    return " or ".join(dict.fromkeys(_EVALUATED_ON.get(run.recipe.protocol.name, "test classes") for run in runs))


def group_legend(figure: Any, groups: Sequence[RunGroup], *, starred: str = "") -> None:
    """A line for each group below the figure, and the meaning of the stars."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=run_colour(group.runs[0]), ls=_dash(group.runs[0]), lw=1.8) for group in groups]
    handles += [Line2D([], [], color="black", marker="*", markersize=9, ls="none")] * bool(starred)
    labels = [*(group.title for group in groups), *[starred] * bool(starred)]
    figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(labels)))


def score_columns(runs: Sequence[OpenedRun]) -> list[str]:
    """At most three measured scores: the one that each run is selected by, then R@1, MAP@R and nDCG."""
    measured = list(dict.fromkeys(key for run in runs for row in run.evaluations for key in row if _scale(key) > 1))
    wanted = [*(run.select_by for run in runs), "R@1", "MAP@R", *(key for key in measured if key.startswith("nDCG"))]
    return [key for key in dict.fromkeys(wanted) if key in measured][:MOST_SCORES]


def _scale(column: str) -> float:
    """Most scores are shown in per cent, losses and distances as they are."""
    return 100.0 if is_score(column) and score_named(column).in_percent else 1.0


def needs_log_scale(values: Sequence[float]) -> bool:
    """Different losses can differ by orders of magnitude; on a linear axis the small ones would be flat."""
    finite = [value for value in values if np.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) > 20 * min(finite)
