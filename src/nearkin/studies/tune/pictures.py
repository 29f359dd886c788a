"""Pictures of a search: how the best came about, the score over every parameter, and over a plane of two."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.errors import MissingExtraError, require
from nearkin.report.figure_style import GREY, RUN_COLOURS, STYLE, new_figure, save_figure
from nearkin.studies.tune.space import Dimension, shown
from nearkin.studies.tune.tables import conditions_of, title_of
from nearkin.studies.tune.trials import Trial, Tuning

Array = NDArray[np.float64]

FINISHED, BEST = RUN_COLOURS[0], RUN_COLOURS[1]
_FEWEST_FOR_A_SURFACE = 6


def draw_tuning(tuning: Tuning) -> list[Path]:
    """Draw ``history.png`` and ``parameters.png``, and ``plane.png`` where two numbers are searched; nothing without a
    finished trial."""
    if not tuning.ranking:
        return []
    from matplotlib import rc_context

    drawn = []
    with rc_context(STYLE):
        figures = {"history": _history(tuning), "parameters": _parameters(tuning)}
        if len([each for each in tuning.plan.space if each.is_numeric]) == 2:
            figures["plane"] = _plane(tuning)
        for name, figure in figures.items():
            width = int(15 * figure.get_figwidth())
            if figure.legends:  # above the axes too, so that a title of the figure would lie across it
                figure.legends[0].set_title(title_of(tuning), prop={"size": 10})
            else:
                figure.suptitle(title_of(tuning), fontsize=10)
            below = "\n".join(textwrap.fill(line, width) for line in conditions_of(tuning))
            figure.supxlabel(below, fontsize=7, color="#555555")
            file = tuning.folder / f"{name}.png"
            save_figure(figure, file, dpi=130)
            drawn.append(file)
    return drawn


def _history(tuning: Tuning) -> Any:
    """Every trial's score in the order they were begun, and a line for the best so far."""
    figure = new_figure(6.4, 3.8)
    axis = figure.subplots()
    scores = [_percent(trial) if trial.status == "finished" else math.nan for trial in tuning.trials]
    reached = np.fmax.accumulate(scores)
    numbers = [trial.number for trial in tuning.trials]
    axis.step(numbers, reached, where="post", color=BEST, linewidth=1.4, label="best so far")
    _dots(axis, tuning, [float(number) for number in numbers])
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set(xlabel="trial", ylabel=_score_label(tuning))
    axis.grid(axis="y", alpha=0.3)
    _legend(figure, axis)
    return figure


def _parameters(tuning: Tuning) -> Any:
    """The score over each parameter alone, the best trial marked."""
    space = tuning.plan.space
    across = 2 if len(space) == 4 else min(3, len(space))
    down = math.ceil(len(space) / across)
    figure = new_figure(max(4.8, 3.2 * across), 2.9 * down + 0.9)
    axes = figure.subplots(down, across, sharey=True, squeeze=False)
    for axis in axes.flat[len(space) :]:
        axis.set_axis_off()
    best = tuning.ranking[0]
    for place, (axis, dimension) in enumerate(zip(axes.flat, space, strict=False)):
        _dots(axis, tuning, [_coordinate(dimension, trial) for trial in tuning.trials])
        axis.plot(_coordinate(dimension, best), _percent(best), "*", color=BEST, markersize=13, label="best")
        _set_axis(axis, "x", dimension)
        axis.grid(axis="y", alpha=0.3)
        if place % across == 0:
            axis.set_ylabel(_score_label(tuning))
    _legend(figure, axes.flat[0])
    return figure


def _plane(tuning: Tuning) -> Any:
    """The score as colour over two parameters: a cell for every pair of listed values, or else a smooth surface."""
    x, y = (each for each in tuning.plan.space if each.is_numeric)
    figure = new_figure(6.2, 5.0)
    axis = figure.subplots()
    listed = x.values is not None and y.values is not None
    cells = listed and (tuning.plan.sampler == "grid" or bool(x.choices and y.choices))
    colours = (_cells if cells else _surface)(axis, tuning, x, y)
    _set_axis(axis, "x", x)
    _set_axis(axis, "y", y)
    if cells:
        axis.set(xlim=_cell_edges(x)[[0, -1]], ylim=_cell_edges(y)[[0, -1]])
    figure.colorbar(colours, ax=axis, label=_score_label(tuning), shrink=0.9)
    return figure


def _cells(axis: Any, tuning: Tuning, x: Dimension, y: Dimension) -> Any:
    """The best score of every pair of values, written into its cell; in brackets where the trial was given up."""
    columns, rows = x.values or [], y.values or []
    scores = np.full((len(rows), len(columns)), np.nan)
    given_up = np.zeros(scores.shape, dtype=bool)
    known = [trial for trial in tuning.trials if trial.score is not None and trial.values]
    for trial in sorted(known, key=lambda trial: (trial.status == "finished", trial.score)):
        cell = rows.index(trial.values[y.key]), columns.index(trial.values[x.key])
        scores[cell], given_up[cell] = _percent(trial), trial.status != "finished"
    colours = axis.pcolormesh(_cell_edges(x), _cell_edges(y), scores, cmap="viridis")
    middle = (np.nanmin(scores) + np.nanmax(scores)) / 2
    for (row, column), score in np.ndenumerate(scores):
        if not np.isnan(score):
            text = f"({score:.1f})" if given_up[row, column] else f"{score:.1f}"
            at = _place(x, columns[column]), _place(y, rows[row])
            colour = "white" if score < middle else "black"
            axis.text(*at, text, ha="center", va="center", fontsize=8, color=colour)
    here = (_coordinate(dimension, tuning.ranking[0]) for dimension in (x, y))
    axis.plot(*here, "s", color=BEST, fillstyle="none", markersize=26, markeredgewidth=2)
    return colours


def _surface(axis: Any, tuning: Tuning, x: Dimension, y: Dimension) -> Any:
    """Finished trials as dots, above the surface that a Gaussian process fits to them."""
    from matplotlib.colors import Normalize

    done = [trial for trial in tuning.trials if trial.status == "finished" and trial.same_as is None]
    at = np.array([[_coordinate(x, trial), _coordinate(y, trial)] for trial in done])
    scores = np.array([_percent(trial) for trial in done])
    low, high = float(scores.min()), max(float(scores.max()), float(scores.min()) + 1e-6)
    scale = Normalize(low, high)
    if len(done) >= _FEWEST_FOR_A_SURFACE:
        points = np.stack([_unit(x, at[:, 0]), _unit(y, at[:, 1])], axis=1)
        steps = np.linspace(0, 1, 61)
        grid = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
        said = "surface: a Gaussian process, fitted to the finished trials"
        try:
            fitted = fit_surface(points, scores, grid).reshape(61, 61).clip(low, high)
            levels = np.linspace(low, high, 13)
            lines = _from_unit(x, steps), _from_unit(y, steps)
            axis.contourf(*lines, fitted, levels=levels, cmap="viridis", norm=scale)
            axis.contour(*lines, fitted, levels=levels[1:-1:2], colors="white", linewidths=0.5, alpha=0.7)
        except MissingExtraError as error:
            said = f"no surface: {error}"
        axis.set_title(textwrap.fill(said, 80), fontsize=8, color="#555555")
    others = [trial for trial in tuning.trials if trial.status in ("pruned", "diverged") and trial.values]
    style = {"edgecolors": "black", "linewidths": 0.8, "zorder": 4, "clip_on": False, "label": "finished"}
    dots = axis.scatter(at[:, 0], at[:, 1], c=scores, cmap="viridis", norm=scale, s=34, **style)
    if others:
        places = zip(*((_coordinate(x, trial), _coordinate(y, trial)) for trial in others), strict=True)
        axis.plot(*places, "x", color="black", markersize=5, label="given up", zorder=3, clip_on=False)
    best = tuning.ranking[0]
    here = _coordinate(x, best), _coordinate(y, best)
    axis.plot(*here, "*", color=BEST, markeredgecolor="black", markersize=15, label="best", zorder=5, clip_on=False)
    _legend(axis.figure, axis)
    return dots


def fit_surface(points: Array, scores: Array, at: Array) -> Array:
    """A smooth function through noisy values: the mean of a Gaussian process, whose lengths and noise are fitted.

    Args:
        points: ``[N, 2]``, where the values were measured, in the unit square.
        scores: ``[N]``.
        at: ``[M, 2]``, where they are wanted.

    Returns:
        ``[M]``.

    Example:
        >>> points = np.array([[x, y] for x in (0.0, 0.5, 1.0) for y in (0.0, 0.5, 1.0)])
        >>> fit_surface(points, points.sum(axis=1), np.array([[0.25, 0.75]])).round(1)
        array([1.])
    """
    process = require("sklearn.gaussian_process", "plot")
    kernels = process.kernels
    kernel = kernels.RBF([0.5, 0.5], (0.1, 2.0)) + kernels.WhiteKernel(0.1, (1e-3, 1.0))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*close to the specified.*bound")  # flat along an axis, or no noise
        fitted = process.GaussianProcessRegressor(kernel, normalize_y=True).fit(points, scores).predict(at)
    return np.asarray(fitted, dtype=np.float64)


def _dots(axis: Any, tuning: Tuning, places: Sequence[float]) -> None:
    """A dot for every trial: filled when it finished, hollow when it was given up, a cross below without a score."""
    styles: dict[str, dict[str, Any]] = {
        "finished": {"marker": "o", "color": FINISHED, "alpha": 0.8},
        "given up": {"marker": "o", "color": GREY, "fillstyle": "none"},
        "no score": {"marker": "x", "color": GREY, "transform": axis.get_xaxis_transform()},
    }
    kinds: dict[str, list[tuple[float, float]]] = {name: [] for name in styles}
    for place, trial in zip(places, tuning.trials, strict=True):
        kind = "no score" if trial.score is None else "finished" if trial.status == "finished" else "given up"
        kinds[kind].append((place, 0.02 if trial.score is None else _percent(trial)))
    for name, dots in kinds.items():
        if dots:
            axis.plot(*zip(*dots, strict=True), linestyle="none", markersize=5, label=name, **styles[name])


def _percent(trial: Trial) -> float:
    return math.nan if trial.score is None else 100 * trial.score


def _coordinate(dimension: Dimension, trial: Trial) -> float:
    return _place(dimension, trial.values[dimension.key]) if trial.values else math.nan


def _place(dimension: Dimension, value: Any) -> float:
    """Where a value lies on its axis: choices one beside the other, numbers where they are."""
    return float(dimension.choices.index(value)) if dimension.choices else float(value)


def _unit(dimension: Dimension, places: Array) -> Array:
    low, high = _ends(dimension)
    return np.log(places / low) / np.log(high / low) if dimension.log else (places - low) / (high - low)


def _from_unit(dimension: Dimension, units: Array) -> Array:
    low, high = _ends(dimension)
    return np.asarray(low * (high / low) ** units if dimension.log else low + (high - low) * units)


def _ends(dimension: Dimension) -> tuple[float, float]:
    ends = (0, len(dimension.choices) - 1) if dimension.choices else (dimension.low, dimension.high)
    return float(ends[0]), float(ends[1])


def _cell_edges(dimension: Dimension) -> Array:
    places = np.array([_place(dimension, value) for value in dimension.values or ()])
    return np.append(places - 0.5, places[-1] + 0.5)


def _set_axis(axis: Any, which: str, dimension: Dimension) -> None:
    axis.set(**{f"{which}label": dimension.key})
    line = getattr(axis, f"{which}axis")
    if dimension.choices:
        names = [textwrap.shorten(shown(choice), 16, placeholder="…") for choice in dimension.choices]
        turned = which == "x" and sum(map(len, names)) > 26
        line.set_ticks(range(len(names)), names, **({"rotation": 30, "ha": "right"} if turned else {}))
        axis.set(**{f"{which}lim": (-0.5, len(names) - 0.5)})
        return
    if dimension.log:
        from matplotlib.ticker import LogFormatterMathtext, NullFormatter

        axis.set(**{f"{which}scale": "log"})
        low, high = _ends(dimension)
        if high / low >= 10:  # labels between the powers of ten would lie across each other
            line.set_major_formatter(LogFormatterMathtext())
            line.set_minor_formatter(NullFormatter())
    elif isinstance(dimension.low, int):
        line.get_major_locator().set_params(integer=True)
    # All that was searched, whether or not a trial lies there; a little more, so that dots at the ends are whole.
    axis.set(**{f"{which}lim": _from_unit(dimension, np.array([-0.03, 1.03]))})


def _legend(figure: Any, axis: Any) -> None:
    figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=4)


def _score_label(tuning: Tuning) -> str:
    return f"{tuning.select_by} on validation (%)"
