"""Pictures of a reproduced table: ours over what is varied, and what is published where it is known."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.data.benchmarks import benchmarks
from nearkin.report.figure_style import GREY, RUN_COLOURS, STYLE, new_figure, save_figure
from nearkin.runs.folder import RunFolder
from nearkin.studies.reproduce.digits import FILE, draw_digits, load_moments
from nearkin.studies.reproduce.papers import PaperTable, text_of
from nearkin.studies.reproduce.results import Column, Reproduced, columns_of
from nearkin.studies.reproduce.rows import Settings
from nearkin.studies.reproduce.tables import caption, heading


def draw_table(table: PaperTable, lines: Sequence[Reproduced], settings: Settings, folder: str | Path) -> list[Path]:
    """Draw a table or figure as ``<table>.png``; nothing where no run has finished."""
    done = [line for line in lines if line.finished]
    if not done:
        return []
    if table.draw.kind == "digits":
        return _draw_digits(table, done, settings, Path(folder))
    from matplotlib import rc_context

    data = list(dict.fromkeys(line.planned.data for line in done))
    panels = [(source, x) for source in data for x in (table.draw.x if table.draw.kind == "lines" else ("",))]
    bars = table.draw.kind in ("scores", "bars")
    tall = 1.4 + 0.28 * max(sum(line.planned.data == source for line in lines) for source in data) if bars else 3.6
    with rc_context(STYLE):
        figure = new_figure(5.4 * len(panels), tall + 1.1)
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (source, x) in zip(axes, panels, strict=True):
            _draw_panel(axis, table, [line for line in lines if line.planned.data == source], x)
            axis.set_title(benchmarks()[source].title if source in benchmarks() else Path(source).name)
        figure.suptitle(textwrap.fill(heading(table), 58 * len(panels)), fontsize=11)
        below = textwrap.fill(caption(table, lines, settings)[0], 62 * len(panels))
        figure.supxlabel(below, fontsize=7, color="#555555")
        file = Path(folder) / f"{table.item.key}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        save_figure(figure, file, dpi=130)
    return [file]


def _draw_panel(axis: Any, table: PaperTable, lines: Sequence[Reproduced], x: str) -> None:
    # The reality check is about MAP@R, of the models one by one.
    metric = "MAP@R" if table.mlrc else table.draw.metric
    (columns,) = columns_of(table, [line.planned for line in lines]).values()
    column = next((each for each in columns if each.metric == metric), columns[0])
    if table.draw.kind == "steps":
        _draw_steps(axis, lines)
    elif table.draw.kind == "curves":
        _draw_curves(axis, lines, table.draw.metric)
    elif table.draw.kind == "lines":
        _draw_lines(axis, table, lines, x, column)
    elif table.draw.kind == "plane":
        _draw_plane(axis, table, lines, column)
    else:
        _draw_scores(axis, lines, column)


def _draw_lines(axis: Any, table: PaperTable, lines: Sequence[Reproduced], x: str, column: Column) -> None:
    """A line for each series over the varied value; a row that does not vary it is a dashed line across."""
    draw = table.draw
    series: dict[str, list[Reproduced]] = {}
    for line in lines:
        row = line.planned.row
        if x in row.at or not row.at:
            split = draw.series is not None and draw.series in row.at
            by = f"{draw.series} = {text_of(row.at[str(draw.series)])}" if split else row.series
            series.setdefault(by, []).append(line)
    values = sorted({_value(line, x) for line in lines if x in line.planned.row.at})
    places = {value: float(number) if x in draw.even else value for number, value in enumerate(values)}
    for number, (name, members) in enumerate(series.items()):
        colour = RUN_COLOURS[number % len(RUN_COLOURS)]
        varied = sorted((line for line in members if x in line.planned.row.at), key=lambda line: _value(line, x))
        ours = {places[_value(line, x)]: line.ours[column] for line in varied if column in line.ours}
        if ours:
            means, spreads = [each.mean for each in ours.values()], [each.spread or 0.0 for each in ours.values()]
            axis.errorbar(list(ours), means, yerr=spreads, fmt="o-", color=colour, capsize=2, label=name)
        for line in members:
            if line not in varied and column in line.ours:
                axis.axhline(line.ours[column].mean, color=colour, linestyle="--", linewidth=1.2, label=name)
        theirs = [
            (places[_value(line, x)], line.published[column].value) for line in varied if column in line.published
        ]
        if theirs:
            axis.plot(*zip(*theirs, strict=True), "D", color=colour, fillstyle="none", label=f"{name}, published")
    if x in draw.even or len(values) <= 6:
        tilt = 45 if len(values) > 8 else 0
        axis.set_xticks([places[value] for value in values], [text_of(value) for value in values], rotation=tilt)
    axis.set(xlabel=x, ylabel=_axis_label(column))
    axis.grid(alpha=0.3)
    axis.legend(loc="best")


def _value(line: Reproduced, symbol: str) -> float:
    return float(line.planned.row.at[symbol])


def _draw_plane(axis: Any, table: PaperTable, lines: Sequence[Reproduced], column: Column) -> None:
    """Two varied values as a grid, the score as colour and number."""
    across, down = table.draw.x[0], str(table.draw.y)
    columns, rows = (sorted({_value(line, symbol) for line in lines}) for symbol in (across, down))
    grid = np.full((len(rows), len(columns)), np.nan)
    for line in lines:
        if column in line.ours:
            grid[rows.index(_value(line, down)), columns.index(_value(line, across))] = line.ours[column].mean
    image = axis.imshow(grid, origin="lower", aspect="auto", cmap="viridis")
    middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
    for (row, place), value in np.ndenumerate(grid):
        if not np.isnan(value):
            colour = "white" if value < middle else "black"
            axis.text(place, row, f"{value:.1f}", ha="center", va="center", fontsize=8, color=colour)
    axis.set_xticks(range(len(columns)), [text_of(value) for value in columns])
    axis.set_yticks(range(len(rows)), [text_of(value) for value in rows])
    axis.set(xlabel=across, ylabel=down)
    axis.figure.colorbar(image, ax=axis, label=_axis_label(column), shrink=0.9)


def _draw_scores(axis: Any, lines: Sequence[Reproduced], column: Column) -> None:
    """A line of the picture for every row: ours as a dot with its spread, the published value as a diamond."""
    for place, line in enumerate(lines):
        ours, published = line.ours.get(column), line.published.get(column)
        if ours is not None and published is not None:
            axis.plot([ours.mean, published.value], [place, place], color="#cccccc", linewidth=2, zorder=0)
        if published is not None:
            axis.plot(published.value, place, "D", color=GREY, fillstyle="none", label=_once(axis, "published"))
        if ours is not None:
            style = {"fmt": "o", "color": RUN_COLOURS[0], "capsize": 3, "label": _once(axis, "ours")}
            axis.errorbar(ours.mean, place, xerr=ours.spread, **style)
    axis.set_yticks(range(len(lines)), [line.planned.row.title for line in lines])
    axis.set(ylim=(len(lines) - 0.4, -0.6), xlabel=_axis_label(column))
    axis.grid(axis="x", alpha=0.3)
    axis.margins(x=0.08)
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.06), ncols=2)


def _draw_curves(axis: Any, lines: Sequence[Reproduced], metric: str) -> None:
    """A score at every evaluation, a line for each run."""
    for number, line in enumerate(lines):
        for path in line.folders if line.finished else []:
            rows = [row for row in RunFolder(path).evaluations() if row.get(metric) is not None]
            label = _once(axis, line.planned.row.series)
            values = [100 * float(row[metric] or 0.0) for row in rows]
            colour = RUN_COLOURS[number % len(RUN_COLOURS)]
            axis.plot([row["epoch"] for row in rows], values, color=colour, label=label, linewidth=1.4)
    axis.set(xlabel="epoch", ylabel=f"{metric} (%)")
    axis.grid(alpha=0.3)
    axis.legend(loc="best")


def _draw_steps(axis: Any, lines: Sequence[Reproduced]) -> None:
    """How many steps the sub-problems took, as a histogram for each row."""
    taken: dict[str, list[int]] = {}
    for line in (line for line in lines if line.finished):
        for event in (event for path in line.folders for event in RunFolder(path).events()):
            if event["kind"] == "problem" and event["number"] > 1:
                taken.setdefault(line.planned.row.title, []).append(int(event["steps_before"]))
    if not taken:
        axis.text(0.5, 0.5, "no sub-problem has ended", ha="center", transform=axis.transAxes)
        return
    axis.hist(list(taken.values()), bins=12, label=list(taken), color=RUN_COLOURS[: len(taken)])
    axis.set(xlabel="steps of a sub-problem", ylabel="sub-problems")
    axis.legend(loc="best")


def _draw_digits(table: PaperTable, done: Sequence[Reproduced], settings: Settings, folder: Path) -> list[Path]:
    files = []
    for line in done:
        for path in line.folders:
            if RunFolder(path).is_finished and (path / FILE).exists():
                several = f"-{path.name}" if len(line.seeds) > 1 else ""
                file = folder / f"{table.item.key}-{line.planned.row.name}{several}.png"
                what = settings.stand_ins.get(line.planned.data, line.planned.data)
                title = f"{heading(table)}\n{line.planned.row.title}, {Path(what).name}"
                files.append(draw_digits(load_moments(path / FILE), file, title=title))
    return files


def _axis_label(column: Column) -> str:
    return f"{column.label} (%)" if column.is_share else column.label


def _once(axis: Any, name: str) -> str | None:
    """A label, unless the legend has it already."""
    return None if name in axis.get_legend_handles_labels()[1] else name
