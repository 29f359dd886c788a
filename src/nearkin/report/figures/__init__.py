"""Figures of runs. Each file here is one figure, which has the file's name.

A file defines ``draw_run(run)`` for a figure of one run, or ``draw_runs(runs)`` for one figure of several runs, with a
``check(run)`` that raises where a run has nothing to show in it. Both return a matplotlib figure.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from nearkin.catalogue import plot_names
from nearkin.data.cache import Progress
from nearkin.disk import check_writable, make_folder
from nearkin.errors import DataError, NearkinError, RecipeError, did_you_mean
from nearkin.report.figure_style import STYLE, save_figure
from nearkin.report.opened_run import OpenedRun, ViewOptions, open_runs
from nearkin.runs.folder import RunFolder


def draw_figure(name: str, runs: Sequence[OpenedRun]) -> Iterator[tuple[OpenedRun | None, Any]]:
    """The matplotlib figure ``name``: one of all runs, or one of each with its run.

    Where a figure cannot be drawn, its error is yielded instead.
    """
    module = figure_module(name)
    if hasattr(module, "draw_run"):
        for run in runs:
            yield run, _figure_or_error(module.draw_run, run)
        return
    errors = [_figure_or_error(module.check, run) for run in runs]
    yield from ((run, error) for run, error in zip(runs, errors, strict=True) if error is not None)
    if shown := [run for run, error in zip(runs, errors, strict=True) if error is None]:
        yield None, _figure_or_error(module.draw_runs, shown)


def figure_module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")


def _figure_or_error(draw: Callable[[Any], Any], shown: OpenedRun | Sequence[OpenedRun]) -> Any:
    import matplotlib

    try:
        with matplotlib.rc_context(STYLE):
            return draw(shown)
    except NearkinError as error:
        return error


def save_figures(
    paths: Sequence[str | Path],
    *,
    only: Sequence[str] = (),
    output: Path | None = None,
    file_format: str = "png",
    view: ViewOptions | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[str, OpenedRun | None, Path | NearkinError]]:
    """Draw and write the figures of the runs at ``paths``, all or those named by ``only``, one after the other.

    They go to ``output``, by default ``RUN/plots``. Bad options, and runs that do not share their data, raise before
    anything is drawn.

    Yields:
        The figure's name, its run where it is of one, and its file or the error that says why there is none.
    """
    names = plot_names()
    for name in only:
        if name not in names:
            raise RecipeError(f"unknown figure {name!r}: {did_you_mean(name, names)}")
    distinct = list({Path(path).expanduser().resolve(): Path(path) for path in reversed(paths)}.values())[::-1]
    if len(distinct) > 1 and output is None:
        raise RecipeError("a figure of several runs belongs to none of their folders: name a folder with --output")
    for path in distinct:
        below = sorted(file.parent for file in path.glob("*/*/recipe.yaml")) if path.is_dir() else []
        if below and not RunFolder(path).is_begun:  # all of a study's runs in one figure would be too many
            hint = f"name those to draw, such as {below[0]}; nearkin report {path} shows them all"
            raise DataError(f"{path} is not a run but holds {len(below)}: {hint}")
    runs = open_runs(distinct, view, progress=progress)
    folder = output or runs[0].folder.path / "plots"
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"{folder} is a file: give a folder with --output")
    check_writable(folder)
    return _save(runs, [name for name in names if not only or name in only], folder, file_format)


def _save(
    runs: Sequence[OpenedRun], names: Sequence[str], folder: Path, file_format: str
) -> Iterator[tuple[str, OpenedRun | None, Path | NearkinError]]:
    make_folder(folder)
    run_names = [run.name for run in runs]
    for name in names:
        for run, figure in draw_figure(name, runs):
            if isinstance(figure, NearkinError):
                yield name, run, figure
                continue
            suffix = ""
            if run is not None and len(runs) > 1:
                suffix = f"-{run.name}" + ("" if run_names.count(run.name) == 1 else f"-{runs.index(run) + 1}")
            file = folder / f"{name}{suffix}.{file_format}"
            save_figure(figure, file, dpi=150)
            yield name, run, file
