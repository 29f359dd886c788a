"""What pictures say of their runs, and how a plot hands back its figures or the reasons why there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from nearkin.errors import NearkinError
from nearkin.report.figure_style import RUN_COLOURS, shorten, show_image
from nearkin.report.opened_run import OpenedRun

Drawing = Iterator[tuple[OpenedRun | None, Any]]
"""Matplotlib figures, or the errors that say why there are none, with the run where one is of a single run."""

T = TypeVar("T")


def one_by_one(runs: Sequence[OpenedRun], figure_of: Callable[[OpenedRun], Any]) -> Drawing:
    """A figure for each run."""
    for run in runs:
        try:
            yield run, figure_of(run)
        except NearkinError as error:
            yield run, error


def together(
    runs: Sequence[OpenedRun], shown_of: Callable[[OpenedRun], T], figure_of: Callable[[Sequence[T]], Any]
) -> Drawing:
    """One figure for what there is to show of all runs; ``shown_of`` raises for a run that has nothing."""
    shown = []
    for run in runs:
        try:
            shown.append(shown_of(run))
        except NearkinError as error:
            yield run, error
    if shown:
        yield None, figure_of(shown)


def run_title(run: OpenedRun) -> str:
    """Data set, loss, method, protocol, seed and the weights that are shown."""
    step = f" (step {run.step})" if run.folder.last_checkpoint.exists() else ""
    return f"{shared_title([run])}, {run.view.checkpoint} weights{step}"


def shared_title(runs: Sequence[OpenedRun]) -> str:
    """What the runs of one picture have in common."""
    first, names = runs[0], dict.fromkeys(run.recipe.protocol.name for run in runs)
    data = shorten(Path(first.recipe.data.source).stem, 40)
    protocols = f"{' and '.join(names)} protocol{'s' if len(names) > 1 else ''}"
    alone = f"{data}: {first.label}, {protocols}, seed {first.recipe.training.seed}"
    return alone if len(runs) == 1 else f"{data}, {protocols}"


def run_colour(run: OpenedRun) -> str:
    """The run's colour, in every picture the same; runs that differ only in their seed share it."""
    return RUN_COLOURS[run.family % len(RUN_COLOURS)]


def class_name(run: OpenedRun, label: int, length: int = 24) -> str:
    return shorten(run.data.table.class_names[label], length)


def show_examples(axes: Sequence[Any], run: OpenedRun, label: int, colour: str) -> None:
    """Training images of a class, from the left; places that a small class leaves stay empty."""
    rows = run.examples(label, len(axes))
    for axis, row in zip(axes, rows, strict=False):
        show_image(axis, run.data.images[row], colour)
    for axis in axes[len(rows) :]:
        axis.set_axis_off()
