"""What the pictures share: colours, titles, rows of images, and how a picture or the lack of it is handed back."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearkin.errors import NearkinError
from nearkin.report.neighbours import shorten, show_image
from nearkin.report.opened_run import OpenedRun

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "svg.hashsalt": "nearkin",
    "pdf.fonttype": 42,
}
RUN_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933")
"""Colours that also people who see red and green alike can tell apart (Okabe and Ito's, and one more)."""
CLASS_COLOURS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
    "#ee7733",
    "#332288",
    "#99cc33",
    "#7b4b2a",
    "#009988",
    "#777777",
)
CLASS_MARKERS = ("o", "s", "^", "D", "v", "P")
GREY = "#888888"


@dataclass(frozen=True)
class Picture:
    """A figure under the name of its file; ``run`` where it shows one run alone."""

    name: str
    figure: Any
    run: OpenedRun | None = None


@dataclass(frozen=True)
class NotDrawn:
    """A picture that could not be drawn, and why; ``run`` where that holds for one run of several."""

    name: str
    reason: str
    run: OpenedRun | None = None


Drawing = Iterator[Picture | NotDrawn]


def one_by_one(name: str, runs: Sequence[OpenedRun], draw: Callable[[OpenedRun], Any]) -> Drawing:
    """A picture for each run, or the reason why there is none."""
    for run in runs:
        try:
            yield Picture(name, draw(run), run)
        except NearkinError as error:
            yield NotDrawn(name, str(error), run)


def head(figure: Any, *lines: str) -> None:
    """A figure's title, broken where it would be wider than the figure."""
    width = int(12.5 * figure.get_figwidth())
    figure.suptitle("\n".join(part for line in lines for part in textwrap.wrap(line, width)), fontsize=10)


def data_name(run: OpenedRun) -> str:
    return shorten(Path(run.recipe.data.source).stem, 40)


def run_title(run: OpenedRun) -> str:
    """Data set, loss, method, protocol, seed and the weights that are shown."""
    recipe = run.recipe
    step = f" (step {run.step})" if run.folder.last_checkpoint.exists() else ""
    return (
        f"{data_name(run)}: {run.label}, {recipe.protocol.name} protocol, seed {recipe.training.seed}, "
        f"{run.look.checkpoint} weights{step}"
    )


def shared_title(runs: Sequence[OpenedRun]) -> str:
    """What the runs of one picture have in common."""
    if len(runs) == 1:
        return f"{data_name(runs[0])}: {runs[0].label}, {protocols(runs)}, seed {runs[0].recipe.training.seed}"
    return f"{data_name(runs[0])}, {protocols(runs)}"


def protocols(runs: Sequence[OpenedRun]) -> str:
    names = dict.fromkeys(run.recipe.protocol.name for run in runs)
    return f"{' and '.join(names)} protocol{'s' if len(names) > 1 else ''}"


def run_colour(run: OpenedRun) -> str:
    """The run's colour, in every picture the same; runs that differ only in their seed share it."""
    return RUN_COLOURS[run.family % len(RUN_COLOURS)]


def number(value: float, digits: int = 2) -> str:
    """A number with a minus sign that is as wide as its digits.

    >>> number(-0.5)
    '−0.50'
    """
    return f"{value:.{digits}f}".replace("-", "−")


def end_at_all(axis: Any, which: str = "y") -> None:
    """Scores end at 100 %: no tick beyond, and no more room there than a mark needs."""
    low, high = getattr(axis, f"get_{which}lim")()
    if high > 100:
        ticks = [tick for tick in getattr(axis, f"get_{which}ticks")() if low <= tick <= 100]
        getattr(axis, f"set_{which}ticks")(ticks)
        getattr(axis, f"set_{which}lim")(low, min(high, 100 + 0.06 * (100 - low)))


def class_style(index: int) -> dict[str, str]:
    """Colour and marker of the index-th class of a picture; beyond twelve the markers tell repeated colours apart."""
    turn, colour = divmod(index, len(CLASS_COLOURS))
    return {"color": CLASS_COLOURS[colour], "marker": CLASS_MARKERS[turn % len(CLASS_MARKERS)]}


def image_row(axes: Sequence[Any], images: Sequence[Any], colour: str) -> None:
    """Images from the left; places that a small class leaves stay empty."""
    for place, axis in enumerate(axes):
        if place < len(images):
            show_image(axis, images[place], colour)
        else:
            axis.set_axis_off()


def class_name(run: OpenedRun, label: int, length: int = 24) -> str:
    return shorten(run.data.table.class_names[label], length)
