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
RUNS = [json.loads(line) for file in sorted(RESULTS.glob("*.jsonl")) for line in file.open(encoding="utf-8")]
COLOURS = ("#777777", "#0072b2", "#d55e00")

LONG, PROFS, CCP = "sixty-epochs", "profs", "ccp-conventional"
CONVENTIONAL = "3000 steps, test classes monitored"


class Panel(NamedTuple):
    """Rows of one group of runs, the base first."""

    title: str
    study: str
    group: str
    rows: tuple[tuple[str, str], ...]
    """The name of a row and what to call it."""

    def curves(self, row: str) -> tuple[Sequence[float], np.ndarray[Any, np.dtype[np.float64]]]:
        """Epochs, and R@1 in per cent ``[seeds, epochs]``."""
        wanted = (self.study, self.group, row)
        curves = [run["evaluations"] for run in RUNS if (run["study"], run.get("group"), run["row"]) == wanted]
        epochs = curves[0]["epoch"]
        assert all(curve["epoch"] == epochs for curve in curves), f"{self.title}: {row}"
        return epochs, 100 * np.array([curve["R@1"] for curve in curves])


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
