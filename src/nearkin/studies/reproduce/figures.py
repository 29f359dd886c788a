"""Pictures of a reproduced table: ours over what is varied, and what is published where it is known."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nearkin.data.benchmarks import benchmarks
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
    from matplotlib.figure import Figure

    from nearkin.report.plots._style import STYLE

    data = list(dict.fromkeys(line.planned.data for line in done))
    panels = [(source, x) for source in data for x in (table.draw.x if table.draw.kind == "lines" else ("",))]
    bars = table.draw.kind in ("scores", "bars")
    tall = 1.4 + 0.28 * max(sum(line.planned.data == source for line in lines) for source in data) if bars else 3.6
    with rc_context(STYLE):
        figure = Figure(figsize=(5.4 * len(panels), tall + 1.1), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (source, x) in zip(axes, panels, strict=True):
            _draw_panel(axis, table, [line for line in lines if line.planned.data == source], x)
            axis.set_title(benchmarks()[source].title if source in benchmarks() else Path(source).name)
        figure.suptitle(_wrapped(heading(table), 58 * len(panels)), fontsize=11)
        figure.supxlabel(_wrapped(caption(table, lines, settings)[0], 62 * len(panels)), fontsize=7, color="#555555")
        file = Path(folder) / f"{table.item.key}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=130, facecolor="white")
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
    from nearkin.report.plots._style import RUN_COLOURS

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
        ours = [line for line in varied if column in line.ours]
        if ours:
            axis.errorbar(
                [places[_value(line, x)] for line in ours],
                [line.ours[column].mean for line in ours],
                yerr=[line.ours[column].spread or 0.0 for line in ours],
                fmt="o-",
                color=colour,
                capsize=2,
                label=name,
            )
        for line in members:
            if line not in varied and column in line.ours:
                axis.axhline(line.ours[column].mean, color=colour, linestyle="--", linewidth=1.2, label=name)
        published = [line for line in varied if column in line.published]
        if published:
            across = [places[_value(line, x)] for line in published]
            heights = [line.published[column].value for line in published]
            axis.plot(across, heights, "D", color=colour, fillstyle="none", label=f"{name}, published")
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
    import numpy as np

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
    from nearkin.report.plots._style import GREY, RUN_COLOURS

    titles = [line.planned.row.title for line in lines]
    for place, line in enumerate(lines):
        ours, published = line.ours.get(column), line.published.get(column)
        if ours is not None and published is not None:
            axis.plot([ours.mean, published.value], [place, place], color="#cccccc", linewidth=2, zorder=0)
        if published is not None:
            label = "published" if not _labelled(axis, "published") else None
            axis.plot(published.value, place, "D", color=GREY, fillstyle="none", label=label)
        if ours is not None:
            label = "ours" if not _labelled(axis, "ours") else None
            axis.errorbar(ours.mean, place, xerr=ours.spread, fmt="o", color=RUN_COLOURS[0], capsize=3, label=label)
    axis.set_yticks(range(len(titles)), titles)
    axis.set_ylim(len(titles) - 0.4, -0.6)
    axis.set_xlabel(_axis_label(column))
    axis.grid(axis="x", alpha=0.3)
    axis.margins(x=0.08)
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.06), ncols=2)


def _draw_curves(axis: Any, lines: Sequence[Reproduced], metric: str) -> None:
    """A score at every evaluation, a line for each run."""
    from nearkin.report.plots._style import RUN_COLOURS

    for number, line in enumerate(lines):
        for path in line.folders if line.finished else []:
            rows = [row for row in RunFolder(path).evaluations() if row.get(metric) is not None]
            label = line.planned.row.series if not _labelled(axis, line.planned.row.series) else None
            values = [100 * float(row[metric] or 0.0) for row in rows]
            colour = RUN_COLOURS[number % len(RUN_COLOURS)]
            axis.plot([row["epoch"] for row in rows], values, color=colour, label=label, linewidth=1.4)
    axis.set(xlabel="epoch", ylabel=f"{metric} (%)")
    axis.grid(alpha=0.3)
    axis.legend(loc="best")


def _draw_steps(axis: Any, lines: Sequence[Reproduced]) -> None:
    """How many steps the sub-problems took, as a histogram for each row."""
    from nearkin.report.plots._style import RUN_COLOURS

    taken = {line.planned.row.title: steps for line in lines if line.finished and (steps := _steps_of(line))}
    if not taken:
        axis.text(0.5, 0.5, "no sub-problem has ended", ha="center", transform=axis.transAxes)
        return
    axis.hist(list(taken.values()), bins=12, label=list(taken), color=RUN_COLOURS[: len(taken)])
    axis.set(xlabel="steps of a sub-problem", ylabel="sub-problems")
    axis.legend(loc="best")


def _steps_of(line: Reproduced) -> list[int]:
    events = [event for path in line.folders for event in RunFolder(path).events()]
    return [int(event["steps_before"]) for event in events if event["kind"] == "problem" and event["number"] > 1]


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


def _labelled(axis: Any, name: str) -> bool:
    return name in axis.get_legend_handles_labels()[1]


def _wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width))
