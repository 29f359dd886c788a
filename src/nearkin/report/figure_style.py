"""How nearkin's pictures look: colours, titles, framed images, and how a figure becomes a file."""

from __future__ import annotations

import io
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.disk import write_atomically

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
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377",
    "#ee7733", "#332288", "#99cc33", "#7b4b2a", "#009988", "#777777",
)  # fmt: skip
CLASS_MARKERS = ("o", "s", "^", "D", "v", "P")
GREY = "#888888"
RIGHT, WRONG, PLAIN, MARGIN = "#1a9850", "#d73027", "#444444", "#f2f2f2"
"""Frames of images: of the query's class, of another, of the query itself; and what a frame leaves free."""


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure of so many inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, file: Path, *, dpi: int) -> None:
    """Write a figure in the format that the file's name ends in; the same figure always gives the same bytes."""
    kind = file.suffix.removeprefix(".")
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    content = io.BytesIO()
    with warnings.catch_warnings():
        # A class name may hold characters that the figure's font lacks; a box in a caption is no reason for noise.
        warnings.filterwarnings("ignore", message=".*missing from font.*")
        figure.savefig(content, format=kind, dpi=dpi, facecolor="white", metadata=metadata)
    write_atomically(file, content.getvalue())


def head(figure: Any, *lines: str) -> None:
    """A figure's title, broken where it would be wider than the figure."""
    width = int(12.5 * figure.get_figwidth())
    figure.suptitle("\n".join(part for line in lines for part in textwrap.wrap(line, width)), fontsize=10)


def number(value: float, digits: int = 2) -> str:
    """A number with a minus sign that is as wide as its digits.

    >>> number(-0.5)
    '−0.50'
    """
    return f"{value:.{digits}f}".replace("-", "−")


def end_at_all(axis: Any, which: str = "y") -> None:
    """Scores end at 100 %: no tick beyond, and no more room there than a marker needs."""
    low, high = getattr(axis, f"get_{which}lim")()
    if high > 100:
        ticks = [tick for tick in getattr(axis, f"get_{which}ticks")() if low <= tick <= 100]
        getattr(axis, f"set_{which}ticks")(ticks)
        getattr(axis, f"set_{which}lim")(low, min(high, 100 + 0.06 * (100 - low)))


def class_style(index: int) -> dict[str, str]:
    """Colour and marker of the index-th class of a picture; beyond twelve the markers tell repeated colours apart."""
    turn, colour = divmod(index, len(CLASS_COLOURS))
    return {"color": CLASS_COLOURS[colour], "marker": CLASS_MARKERS[turn % len(CLASS_MARKERS)]}


def show_image(axis: Any, image: NDArray[np.uint8], colour: str) -> None:
    """An image in a square frame, so that high and wide ones take the same room."""
    height, width = image.shape[:2]
    half = max(height, width) / 2
    axis.imshow(image, interpolation="antialiased")
    axis.set_facecolor(MARGIN)
    axis.set_xlim(width / 2 - half - 0.5, width / 2 + half - 0.5)
    axis.set_ylim(height / 2 + half - 0.5, height / 2 - half - 0.5)
    axis.set_xticks([])
    axis.set_yticks([])
    for side in axis.spines.values():
        side.set_visible(True)
        side.set_color(colour)
        side.set_linewidth(2.5)


def shorten(name: str, length: int) -> str:
    """A name short enough for a caption, and safe there: matplotlib reads ``$`` as the start of a formula.

    >>> shorten("a very long name of a class", 18), shorten("5 $", 18)
    ('a very long name …', '5 \\\\$')
    """
    short = name if len(name) <= length else name[: length - 1] + "…"
    return short.replace("$", r"\$")
