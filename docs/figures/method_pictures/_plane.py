"""What the pictures share: colours, panels that are saved when they are drawn, the unit circle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor

COLOURS = ("#0072b2", "#d55e00", "#009e73")
GREY, LIGHT = "#777777", "#dddddd"


@contextmanager
def figure(path: Path, panels: int, width: float = 10.0, height: float = 3.6) -> Iterator[tuple[Figure, list[Axes]]]:
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "0"}):
        made = Figure(figsize=(width, height), layout="constrained")
        yield made, list(made.subplots(1, panels, squeeze=False)[0])
        made.savefig(path, dpi=150, bbox_inches="tight", metadata={"Software": None})


def plane(axes: Axes, title: str, limit: float = 1.35) -> None:
    axes.add_patch(Circle((0, 0), 1, fill=False, color=LIGHT))
    axes.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal", xticks=[], yticks=[], title=title)
    axes.spines[:].set_visible(False)


def at_angles(degrees: Tensor) -> Tensor:
    radians = torch.deg2rad(degrees)
    return torch.stack([radians.cos(), radians.sin()], dim=1)
