"""Draws R@1 over the epochs of long training, each method beside its base, from the runs in ``results/``.

    python docs/figures/draw_long_training.py

Thin lines are seeds, thick ones their means.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parents[1] / "results" / "cub"
COLOURS = ("#777777", "#0072b2", "#d55e00")

LONG, PROFS, CCP = "2026-11-17-sixty-epochs.json", "2026-11-16-profs.json", "2026-11-16-ccp-conventional.json"
CONVENTIONAL = "3000 steps, test classes monitored"


class Panel(NamedTuple):
    """Rows of one group of runs, the base first."""

    title: str
    file: str
    group: str
    rows: tuple[tuple[str, str], ...]
    """The name of a row and what to call it."""

    def curves(self, row: str) -> tuple[Sequence[float], np.ndarray[Any, np.dtype[np.float64]]]:
        """Epochs, and R@1 in per cent ``[seeds, epochs]``."""
        every = json.loads((RESULTS / self.file).read_text(encoding="utf-8"))
        found = [run["evaluations"] for run in every if (run["group"], run["row"]) == (self.group, row)]
        epochs = [each["epoch"] for each in found[0]]
        assert all([each["epoch"] for each in curve] == epochs for curve in found), f"{self.title}: {row}"
        return epochs, 100 * np.array([[each["R@1"] for each in curve] for curve in found])


ISA_ROWS = (("proxy_anchor", "Proxy-Anchor"), ("proxy_isa", "Proxy-ISA"))
PANELS = (
    Panel("Proxy-Anchor, official", LONG, "Proxy-Anchor, official", (("proxy_anchor", "Proxy-Anchor"),)),
    Panel("ISA, rate halved every 5", LONG, "ISA, halved every 5", ISA_ROWS),
    Panel("ISA, rate halved every 10", LONG, "ISA, halved every 10", ISA_ROWS),
    Panel("MPA", LONG, "MPA", (("proxy_anchor", "Proxy-Anchor"), ("mpa", "MPA"), ("mpa_dw", "MPA-DW"))),
    Panel(
        *("VCPA, one seed", LONG, "VCPA"),
        (("proxy_anchor", "Proxy-Anchor"), ("vcpa", "VCPA"), ("vcpa_present", "by present classes")),
    ),
    Panel(
        *("PROFS, margin loss", PROFS, "60 epochs, an evaluation every three"),
        (("margin", "hard pairs"), ("m_profs", "PROFS"), ("m_profs_hncm", "with HNCM")),
    ),
    Panel(
        *("PROFS, triplet loss", PROFS, "60 epochs, an evaluation every three"),
        (("triplet", "hard pairs"), ("t_profs", "PROFS")),
    ),
    *(
        Panel(f"CCP with {loss}", CCP, CONVENTIONAL, ((loss.lower(), loss), (f"{loss.lower()}_ccp", f"{loss}-CCP")))
        for loss in ("C2", "MS", "C1")
    ),
)


def draw(path: Path) -> None:
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(13, 5.6), layout="constrained")
        places = figure.subplots(2, 5, sharex=True, sharey=True)
        for axes, panel in zip(places.flat, PANELS, strict=True):
            draw_panel(axes, panel)
        figure.supxlabel("epoch", fontsize=10)
        figure.supylabel("R@1 on the test classes", fontsize=10)
        # What is drawn is written into the file, for the test that says when the runs have changed.
        figure.savefig(path, dpi=130, metadata={"Software": None, "Description": description()})


def draw_panel(axes: Axes, panel: Panel) -> None:
    for (row, name), colour in zip(panel.rows, COLOURS, strict=False):
        epochs, scores = panel.curves(row)
        for each in scores:
            axes.plot(epochs, each, color=colour, alpha=0.3, linewidth=0.8)
        axes.plot(epochs, scores.mean(0), color=colour, linewidth=2, label=name)
    axes.set(title=panel.title, ylim=(54, 69.5), xticks=range(0, 61, 20))
    axes.grid(axis="y", color="#eeeeee")
    axes.legend(frameon=False, fontsize=8, loc="lower center")


def description() -> str:
    """Best and last of each mean curve, in words."""
    lines = []
    for panel in PANELS:
        for row, name in panel.rows:
            mean = panel.curves(row)[1].mean(0)
            lines.append(f"{panel.title}: {name} {mean.max():.2f}, {mean[-1]:.2f}")
    return "; ".join(lines)


if __name__ == "__main__":
    draw(FOLDER / "long-training.png")
