"""How nearkin's figures look: colours, titles, framed images, and how a figure becomes a file."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nearkin.data.table import split_class_name
from nearkin.disk import write_atomically

if TYPE_CHECKING:
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
"""Colours that colour-blind readers can tell apart (Okabe and Ito's, and one more)."""
CLASS_COLOURS = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377",
    "#ee7733", "#332288", "#99cc33", "#7b4b2a", "#009988", "#777777",
)  # fmt: skip
CLASS_MARKERS = ("o", "s", "^", "D", "v", "P")
GREY = "#888888"
RIGHT, WRONG, PLAIN, MARGIN = "#1a9850", "#d73027", "#444444", "#f2f2f2"
"""Frames of hits of the query's class, of other hits, of the query itself; and the background inside a frame."""
Cell = tuple[NDArray[np.uint8], str, str]
"""An image, the colour of its frame, and its caption."""


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, file: Path, *, dpi: int) -> None:
    """Write a figure in the format of the file's suffix."""
    write_atomically(file, figure_bytes(figure, file.suffix.removeprefix("."), dpi=dpi))


def figure_bytes(figure: Any, file_format: str, *, dpi: int) -> bytes:
    """A figure as png, pdf or svg. The same figure always gives the same bytes."""
    import matplotlib

    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(file_format)
    content = io.BytesIO()
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # A class name may hold characters that the font lacks; a box in a caption is no reason for a warning.
        warnings.filterwarnings("ignore", message=".*missing from font.*")
        figure.savefig(content, format=file_format, dpi=dpi, facecolor="white", metadata=metadata)
    return content.getvalue()


def set_title(figure: Any, *lines: str) -> None:
    """A figure's title, with lines broken to its width."""
    width = int(12.5 * figure.get_figwidth())
    figure.suptitle("\n".join(part for line in lines for part in textwrap.wrap(line, width)), fontsize=10)


def number(value: float) -> str:
    """A number with two digits and a minus sign as wide as a digit."""
    return f"{value:.2f}".replace("-", "−")


def end_at_100(axis: Any, which: str = "y") -> None:
    """End an axis of scores in per cent at 100, with just enough room for a marker there."""
    low, high = getattr(axis, f"get_{which}lim")()
    if high > 100:
        ticks = [tick for tick in getattr(axis, f"get_{which}ticks")() if low <= tick <= 100]
        getattr(axis, f"set_{which}ticks")(ticks)
        getattr(axis, f"set_{which}lim")(low, min(high, 100 + 0.06 * (100 - low)))


def class_style(index: int) -> dict[str, Any]:
    """Colour and marker of the index-th class of a figure; when the colours repeat, the marker changes."""
    turn, colour = divmod(index, len(CLASS_COLOURS))
    return {"color": CLASS_COLOURS[colour], "marker": CLASS_MARKERS[turn % len(CLASS_MARKERS)]}


def show_row(axis: Any, cells: Sequence[Cell], *, name: str = "", columns: int = 0) -> None:
    """Images in a row of square frames, with a name at the left; ``columns`` leaves room for more images.

    A wrong image also has a cross.
    """
    from matplotlib.patches import Rectangle

    for column, (image, edge, caption) in enumerate(cells):
        left, (height, width) = 1.1 * column, image.shape[:2]
        axis.add_patch(Rectangle((left, 0), 1, 1, facecolor=MARGIN, edgecolor=edge, lw=2.5))
        half_width, half_height = (0.48 * side / max(height, width) for side in (width, height))
        middle = left + 0.5
        extent = (middle - half_width, middle + half_width, 0.5 - half_height, 0.5 + half_height)
        axis.imshow(image, extent=extent, interpolation="antialiased", zorder=2)
        axis.text(middle, -0.06, caption, ha="center", va="top", fontsize=6)
        if edge == WRONG:
            box = {"boxstyle": "square,pad=0.1", "facecolor": WRONG, "edgecolor": "none"}
            style = {"fontsize": 9, "color": "white", "weight": "bold", "bbox": box, "zorder": 3}
            axis.text(left + 0.93, 0.93, "×", ha="right", va="top", **style)
    axis.set_xlim(-0.05, 1.1 * (columns or max(len(cells), 1)) - 0.05)
    axis.set_ylim(-0.05, 1.05)
    axis.set_aspect("equal")
    axis.set_axis_off()
    axis.text(-0.12, 0.5, name, ha="right", va="center", fontsize=8)


def shorten(name: str, length: int) -> str:
    """A name short enough for a caption, with ``$`` escaped, which matplotlib reads as the start of a formula.

    >>> shorten("a very long name of a class", 18), shorten("5 $", 18)
    ('a very long name …', '5 \\\\$')
    """
    short = name if len(name) <= length else name[: length - 1] + "…"
    return short.replace("$", r"\$")


def run_title(run: OpenedRun) -> str:
    step = f" (step {run.step})" if run.folder.last_checkpoint.exists() else ""
    return f"{shared_title([run])}, {run.view.checkpoint} weights{step}"


def shared_title(runs: Sequence[OpenedRun]) -> str:
    """What the runs of one figure have in common."""
    first, names = runs[0], dict.fromkeys(run.recipe.protocol.name for run in runs)
    data = shorten(Path(first.recipe.data.source).stem, 40)
    protocols = f"{' and '.join(names)} protocol{'s' if len(names) > 1 else ''}"
    if len(runs) > 1:
        return f"{data}, {protocols}"
    return f"{data}: {first.label}, {protocols}, seed {first.recipe.training.seed}"


def run_colour(run: OpenedRun) -> str:
    """The run's colour in every figure. Runs that differ only in their seed share it."""
    return RUN_COLOURS[run.family % len(RUN_COLOURS)]


def class_caption(name: str, length: int = 24) -> str:
    """A class name short enough for a caption; a nested one begins with its last part."""
    last, above = split_class_name(name)
    return shorten(f"{last} ({above})" if above else last, length)


def class_name(run: OpenedRun, label: int, length: int = 24) -> str:
    return class_caption(run.data.table.class_names[label], length)
