"""Draws the pictures of the methods' pages from the package's own losses, samplers and methods, in two dimensions.

    python docs/figures/draw_methods.py            # all of them, into this folder
    python docs/figures/draw_methods.py vcpa mpa

Each has a file in ``method_pictures``: a function that computes what it shows, and one that
draws it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from method_pictures import ccp, isa, isa_penalties, mpa, profs, vcpa

FOLDER = Path(__file__).parent
DRAW: dict[str, Callable[[Path], None]] = {
    "ccp": ccp.draw,
    "isa": isa.draw,
    "isa-penalties": isa_penalties.draw,
    "profs": profs.draw,
    "vcpa": vcpa.draw,
    "mpa": mpa.draw,
}


def main(names: list[str], folder: Path = FOLDER) -> None:
    """Draw these pictures, or all."""
    for name in names or DRAW:
        DRAW[name](folder / f"method-{name}.png")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
