"""Draws the diagram of docs/architecture.md, which is written in mermaid, for the site, which has no script for it.

    python docs/figures/draw_flow.py

Stations and arrows are read from the page; where each station stands is said here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

DOCS = Path(__file__).resolve().parents[1]
PLACES = {
    "source": (0, 2),
    "table": (1, 2),
    "cache": (2, 2),
    "sampler": (2, 1),
    "loader": (3, 2),
    "encoder": (4, 2),
    "loss": (4, 1),
    "loop": (4, 0),
    "scores": (3, 0.5),
    "run": (2, 0),
    "report": (1, 0.4),
    "studies": (0, 0.4),
    "index": (1, -0.3),
    "serving": (0, -0.3),
}


class Arrow(NamedTuple):
    start: str
    end: str
    label: str
    dotted: bool


def stations_and_arrows(page: str) -> tuple[dict[str, str], list[Arrow]]:
    """What a page's mermaid block names: stations with their texts, and the arrows between them."""
    (diagram,) = re.findall(r"```mermaid\n(.*?)```", page, flags=re.S)
    stations = {name: text.replace("<br>", "\n") for name, text in re.findall(r'(\w+)\["(.*?)"\]', diagram)}
    arrows = []
    for line in re.sub(r'\[".*?"\]', "", diagram).splitlines():
        parts = re.split(r'\s*(-\.->|-->)(?:\|"(.*?)"\|)?\s*', line.strip())
        for i in range(0, len(parts) - 3, 3):
            arrows.append(Arrow(parts[i], parts[i + 3], parts[i + 2] or "", parts[i + 1] == "-.->"))
    return stations, arrows


def draw(path: Path) -> None:
    stations, arrows = stations_and_arrows((DOCS / "architecture.md").read_text(encoding="utf-8"))
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(-0.5, 4.5), ylim=(-0.5, 2.3))
    axes.axis("off")
    box = {"boxstyle": "round,pad=0.45", "facecolor": "#eef4fa", "edgecolor": "#5b7fa6"}
    drawn = {
        name: axes.text(*PLACES[name], text, ha="center", va="center", fontsize=9, bbox=box, zorder=2)
        for name, text in stations.items()
    }
    for arrow in arrows:
        style = {"arrowstyle": "->", "color": "#555555", "linestyle": ":" if arrow.dotted else "-"}
        ends = {"patchA": drawn[arrow.start].get_bbox_patch(), "patchB": drawn[arrow.end].get_bbox_patch()}
        axes.annotate("", PLACES[arrow.end], PLACES[arrow.start], arrowprops={**style, **ends}, zorder=1)
        middle = [(a + b) / 2 for a, b in zip(PLACES[arrow.start], PLACES[arrow.end], strict=True)]
        if arrow.label:
            axes.text(
                *middle, arrow.label, ha="center", va="center", fontsize=8, color="#555555", backgroundcolor="white"
            )
    figure.savefig(path, dpi=150, bbox_inches="tight", metadata={"Software": None})


if __name__ == "__main__":
    draw(DOCS / "figures" / "flow.png")
