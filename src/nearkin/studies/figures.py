"""The figure of a study: a dot for every row, or scores over what is varied; published values where they are known."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearkin.report.figure_style import GREY, RUN_COLOURS, STYLE, end_at_100, new_figure, save_figure
from nearkin.studies.papers import text_of
from nearkin.studies.tables import Column, RowResult, families

BASE, METHOD, BAND = "#555555", "#1f6fb4", "#ebebeb"


@dataclass(frozen=True)
class Panel:
    """One column of a study's rows, over the values of ``x`` where something is varied.

    A symbol ``series`` has a line for each of its values, else each row of the file is a line; ``even`` draws values at
    equal distances.
    """

    title: str
    column: Column
    results: Sequence[RowResult]
    x: str = ""
    series: str = ""
    even: bool = False


def draw(panels: Sequence[Panel], title: str, caption: str, file: Path) -> list[Path]:
    """Draw a study; nothing where no run has finished."""
    panels = [panel for panel in panels if any(result.value(panel.column) for result in panel.results)]
    if not panels:
        return []
    from matplotlib import rc_context

    rows = max(0 if panel.x else len(panel.results) for panel in panels)
    with rc_context(STYLE):
        figure = new_figure(5.4 * len(panels), 2.5 + (0.28 * rows or 2.2))
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, panel in zip(axes, panels, strict=True):
            (_draw_lines if panel.x else _draw_rows)(axis, panel)
            axis.set_title(panel.title)
        figure.suptitle(textwrap.fill(title, 58 * len(panels)), fontsize=11)
        figure.supxlabel(textwrap.fill(caption, 62 * len(panels)), fontsize=7, color="#555555")
        save_figure(figure, file, dpi=130)
    return [file]


def _draw_rows(axis: Any, panel: Panel) -> None:
    """A dot for every row with a bar for its spread and a small dot for each run, a method below its base."""
    rows = families(panel.results)
    most = max(result.repeats for result, _ in rows)
    for height, (result, depth) in enumerate(rows):
        ours, published = result.value(panel.column), result.published.get(panel.column)
        if published is not None:
            axis.plot(published.value, height, "D", color=GREY, fillstyle="none", label=_once(axis, "published"))
        if ours is None:
            continue
        value, colour = ours.scaled(panel.column.scale), METHOD if depth else BASE
        depths = [other for _, other in rows[height + 1 :]]
        below = next((count for count, other in enumerate(depths) if other <= depth), len(depths))
        if below:  # a grey band for the spread of a base, from its own line down to the last of its methods
            half, last = value.spread or 0.0, height + below + 0.4
            ends = value.mean - half, value.mean + half
            axis.fill_betweenx([height - 0.4, last], *ends, color=BAND, zorder=0.5, linewidth=0)
            axis.plot([value.mean] * 2, [height, last], "--", color=BASE, linewidth=0.9, zorder=0.6)
        axis.plot(value.values, [height] * len(value.values), ".", color=colour, alpha=0.4)
        style = {"fmt": "o", "color": colour, "capsize": 3, "markersize": 6, "label": _once(axis, "ours")}
        axis.errorbar(value.mean, height, xerr=value.spread, **style)
    notes = [f" ({result.repeats} of {most} runs)" if 0 < result.repeats < most else "" for result, _ in rows]
    titles = ["    " * depth + result.marked_title + note for (result, depth), note in zip(rows, notes, strict=True)]
    axis.set_yticks(range(len(rows)), titles, fontsize=9)
    axis.set(ylim=(len(rows) - 0.5, -0.5), xlabel=_label(panel.column))
    axis.grid(axis="x", alpha=0.3)
    axis.margins(x=0.08)
    end_at_100(axis, "x")
    if any(result.published for result in panel.results):
        axis.legend(loc="best")


def _draw_lines(axis: Any, panel: Panel) -> None:
    """A line for each series over the varied value; a row that does not vary it is a dashed line across."""
    x, column, series = panel.x, panel.column, {}  # type: ignore[var-annotated]
    for result in panel.results:
        at = result.row.at
        if x in at or not at:
            name = f"{panel.series} = {text_of(at[panel.series])}" if panel.series in at else result.row.series
            series.setdefault(name, []).append(result)
    values = sorted({float(result.row.at[x]) for result in panel.results if x in result.row.at})
    ticks = {value: float(number) if panel.even else value for number, value in enumerate(values)}
    for number, (name, members) in enumerate(series.items()):
        colour = RUN_COLOURS[number % len(RUN_COLOURS)]
        varied = {ticks[float(result.row.at[x])]: result for result in members if x in result.row.at}
        ours = [(at, value) for at, result in sorted(varied.items()) if (value := result.value(column))]
        if ours:
            means = [column.scale * value.mean for _, value in ours]
            spreads = [column.scale * (value.spread or 0.0) for _, value in ours]
            axis.errorbar([at for at, _ in ours], means, yerr=spreads, fmt="o-", color=colour, capsize=2, label=name)
        for result in members:
            if x not in result.row.at and (value := result.value(column)):
                axis.axhline(column.scale * value.mean, color=colour, linestyle="--", linewidth=1.2, label=name)
        theirs = {at: result.published[column].value for at, result in varied.items() if column in result.published}
        if theirs:
            style = {"color": colour, "fillstyle": "none", "label": f"{name}, published"}
            axis.plot(*zip(*theirs.items(), strict=True), "D", **style)
    if panel.even or len(values) <= 6:
        tilt = 45 if len(values) > 8 else 0
        axis.set_xticks(list(ticks.values()), [text_of(value) for value in ticks], rotation=tilt)
    axis.set(xlabel=x, ylabel=_label(column))
    axis.grid(alpha=0.3)
    axis.legend(loc="best")


def _label(column: Column) -> str:
    return f"{column.heading} (%)" if column.scale == 100 else column.heading


def _once(axis: Any, name: str) -> str | None:
    """A label, unless the legend has it already."""
    return None if name in axis.get_legend_handles_labels()[1] else name
