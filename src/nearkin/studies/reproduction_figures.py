"""Figures of a reproduced table: ours over what is varied, and the published values where they are known."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.data.benchmarks import benchmarks
from nearkin.report.figure_style import GREY, RUN_COLOURS, STYLE, new_figure, save_figure
from nearkin.runs.folder import RunFolder
from nearkin.studies.digits import FILE, draw_digits, load_moments
from nearkin.studies.papers import PaperTable, text_of
from nearkin.studies.reproduction_table import Column, LineResult


def draw_table(table: PaperTable, results: Sequence[LineResult], caption: str, folder: Path) -> list[Path]:
    """Draw a table or figure as ``<table>.png``; nothing where no run has finished."""
    done = [result for result in results if result.seeds]
    if not done:
        return []
    if table.drawing == "digits":
        return _draw_digits(table, done, folder)
    from matplotlib import rc_context

    x = table.draw.get("x", ())
    across = ([x] if isinstance(x, str) else list(x)) if table.drawing == "results" else [""]
    data = list(dict.fromkeys(result.line.data for result in done))
    panels = [(source, symbol) for source in data for symbol in across]
    most = max(sum(result.line.data == source for result in results) for source in data)
    tall = 1.4 + 0.28 * most if table.drawing in ("scores", "bars") else 3.6
    with rc_context(STYLE):
        figure = new_figure(5.4 * len(panels), tall + 1.1)
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (source, symbol) in zip(axes, panels, strict=True):
            _draw_panel(axis, table, [result for result in results if result.line.data == source], symbol)
            axis.set_title(benchmarks()[source].title if source in benchmarks() else Path(source).name)
        figure.suptitle(textwrap.fill(table.heading, 58 * len(panels)), fontsize=11)
        figure.supxlabel(textwrap.fill(caption, 62 * len(panels)), fontsize=7, color="#555555")
        file = folder / f"{table.item.key}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        save_figure(figure, file, dpi=130)
    return [file]


def _draw_panel(axis: Any, table: PaperTable, results: Sequence[LineResult], x: str) -> None:
    # The reality check is about MAP@R, of the models one by one.
    metric = "MAP@R" if table.mlrc else str(table.draw.get("metric", "R@1"))
    columns = results[0].columns
    column = next((each for each in columns if each.metric == metric), columns[0])
    if table.drawing == "steps":
        _draw_steps(axis, results)
    elif table.drawing == "curves":
        _draw_curves(axis, results, metric)
    elif table.drawing == "results":
        _draw_lines(axis, table, results, x, column)
    elif table.drawing == "plane":
        _draw_plane(axis, table, results, column)
    else:
        _draw_scores(axis, results, column)


def _draw_lines(axis: Any, table: PaperTable, results: Sequence[LineResult], x: str, column: Column) -> None:
    """A line for each series over the varied value; a row that does not vary it is a dashed line across."""
    split_by, even = str(table.draw.get("series")), x in table.draw.get("even", ())
    series: dict[str, list[LineResult]] = {}
    for result in results:
        row = result.line.row
        if x in row.at or not row.at:
            by = row.series if split_by not in row.at else f"{split_by} = {text_of(row.at[split_by])}"
            series.setdefault(by, []).append(result)
    values = sorted({_value(result, x) for result in results if x in result.line.row.at})
    ticks = {value: float(number) if even else value for number, value in enumerate(values)}
    for number, (name, members) in enumerate(series.items()):
        colour = RUN_COLOURS[number % len(RUN_COLOURS)]
        varied = sorted((result for result in members if x in result.line.row.at), key=lambda result: _value(result, x))
        ours = {ticks[_value(result, x)]: result.ours[column] for result in varied if column in result.ours}
        if ours:
            means, spreads = [each.mean for each in ours.values()], [each.spread or 0.0 for each in ours.values()]
            axis.errorbar(list(ours), means, yerr=spreads, fmt="o-", color=colour, capsize=2, label=name)
        for result in members:
            if result not in varied and column in result.ours:
                axis.axhline(result.ours[column].mean, color=colour, linestyle="--", linewidth=1.2, label=name)
        theirs = [
            (ticks[_value(result, x)], result.published[column].value)
            for result in varied
            if column in result.published
        ]
        if theirs:
            axis.plot(*zip(*theirs, strict=True), "D", color=colour, fillstyle="none", label=f"{name}, published")
    if even or len(values) <= 6:
        tilt = 45 if len(values) > 8 else 0
        axis.set_xticks([ticks[value] for value in values], [text_of(value) for value in values], rotation=tilt)
    axis.set(xlabel=x, ylabel=_axis_label(column))
    axis.grid(alpha=0.3)
    axis.legend(loc="best")


def _value(result: LineResult, symbol: str) -> float:
    return float(result.line.row.at[symbol])


def _draw_plane(axis: Any, table: PaperTable, results: Sequence[LineResult], column: Column) -> None:
    """Two varied values as a grid, the score as colour and number."""
    across, down = str(table.draw["x"]), str(table.draw["y"])
    columns, rows = (sorted({_value(result, symbol) for result in results}) for symbol in (across, down))
    grid = np.full((len(rows), len(columns)), np.nan)
    for result in results:
        if column in result.ours:
            grid[rows.index(_value(result, down)), columns.index(_value(result, across))] = result.ours[column].mean
    image = axis.imshow(grid, origin="lower", aspect="auto", cmap="viridis")
    middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
    for (row, across_index), value in np.ndenumerate(grid):
        if not np.isnan(value):
            colour = "white" if value < middle else "black"
            axis.text(across_index, row, f"{value:.1f}", ha="center", va="center", fontsize=8, color=colour)
    axis.set_xticks(range(len(columns)), [text_of(value) for value in columns])
    axis.set_yticks(range(len(rows)), [text_of(value) for value in rows])
    axis.set(xlabel=across, ylabel=down)
    axis.figure.colorbar(image, ax=axis, label=_axis_label(column), shrink=0.9)


def _draw_scores(axis: Any, results: Sequence[LineResult], column: Column) -> None:
    """A line of the figure for every row: ours as a dot with its spread, the published value as a diamond."""
    for height, result in enumerate(results):
        ours, published = result.ours.get(column), result.published.get(column)
        if ours is not None and published is not None:
            axis.plot([ours.mean, published.value], [height, height], color="#cccccc", linewidth=2, zorder=0)
        if published is not None:
            axis.plot(published.value, height, "D", color=GREY, fillstyle="none", label=_once(axis, "published"))
        if ours is not None:
            style = {"fmt": "o", "color": RUN_COLOURS[0], "capsize": 3, "label": _once(axis, "ours")}
            axis.errorbar(ours.mean, height, xerr=ours.spread, **style)
    axis.set_yticks(range(len(results)), [result.line.row.title for result in results])
    axis.set(ylim=(len(results) - 0.4, -0.6), xlabel=_axis_label(column))
    axis.grid(axis="x", alpha=0.3)
    axis.margins(x=0.08)
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.06), ncols=2)


def _draw_curves(axis: Any, results: Sequence[LineResult], metric: str) -> None:
    """A score at every evaluation, a line for each run."""
    for number, result in enumerate(results):
        for path in result.folders if result.seeds else []:
            rows = [row for row in RunFolder(path).evaluations() if row.get(metric) is not None]
            label = _once(axis, result.line.row.series)
            values = [100 * float(row[metric] or 0.0) for row in rows]
            colour = RUN_COLOURS[number % len(RUN_COLOURS)]
            axis.plot([row["epoch"] for row in rows], values, color=colour, label=label, linewidth=1.4)
    axis.set(xlabel="epoch", ylabel=f"{metric} (%)")
    axis.grid(alpha=0.3)
    axis.legend(loc="best")


def _draw_steps(axis: Any, results: Sequence[LineResult]) -> None:
    """How many steps the sub-problems took, as a histogram for each row."""
    taken: dict[str, list[int]] = {}
    for result in (result for result in results if result.seeds):
        for event in (event for path in result.folders for event in RunFolder(path).events()):
            if event["kind"] == "problem" and event["number"] > 1:
                taken.setdefault(result.line.row.title, []).append(int(event["steps_before"]))
    if not taken:
        axis.text(0.5, 0.5, "no sub-problem has ended", ha="center", transform=axis.transAxes)
        return
    axis.hist(list(taken.values()), bins=12, label=list(taken), color=RUN_COLOURS[: len(taken)])
    axis.set(xlabel="steps of a sub-problem", ylabel="sub-problems")
    axis.legend(loc="best")


def _draw_digits(table: PaperTable, done: Sequence[LineResult], folder: Path) -> list[Path]:
    files = []
    for result in done:
        for path in result.folders:
            if RunFolder(path).is_finished and (path / FILE).exists():
                several = f"-{path.name}" if len(result.seeds) > 1 else ""
                file = folder / f"{table.item.key}-{result.line.row.name}{several}.png"
                source = RunFolder(path).recipe().data.source
                title = f"{table.heading}\n{result.line.row.title}, {Path(source).name}"
                files.append(draw_digits(load_moments(path / FILE), file, title=title))
    return files


def _axis_label(column: Column) -> str:
    return f"{column.label} (%)" if column.is_share else column.label


def _once(axis: Any, name: str) -> str | None:
    """A label, unless the legend has it already."""
    return None if name in axis.get_legend_handles_labels()[1] else name
