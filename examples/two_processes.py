"""Train with two processes, started by torchrun: one run, each with half of every batch and half of the proxies.

    torchrun --nproc-per-node=2 examples/two_processes.py
    python examples/two_processes.py --output runs/example-one      # one process, for comparison

Half a minute on two CPU cores; of several GPUs each process takes one. It is what
`torchrun --nproc-per-node=2 -m nearkin train glyphs/demo` does.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import nearkin
from nearkin.training.state import Observer


class Curve(Observer):
    """An observer that prints losses; only the first process has one to tell."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, state: object, loss: float, images: int) -> None:
        self.losses.append(loss)
        if len(self.losses) % 10 == 1:
            print(f"step {len(self.losses):4}  loss {loss:.4f}  ({images} images)")


def main(arguments: list[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/example-two"), help="a folder that all processes see")
    parser.add_argument("--recipe", default="glyphs/demo")
    parser.add_argument("changes", nargs="*", help="keys of the recipe; default: training.max_steps=50")
    given = parser.parse_args(arguments)
    recipe = nearkin.load_recipe(given.recipe, given.changes or ["training.max_steps=50"])
    curve = Curve()
    scores = nearkin.run(recipe, given.output, curve, overwrite=True)
    if os.environ.get("RANK", "0") == "0":  # torchrun numbers its processes
        processes = os.environ.get("WORLD_SIZE", "1")
        print(f"{processes} processes, {scores.steps} steps: R@1 {scores.test['R@1']:.1%}; run folder {given.output}")
    return curve.losses


if __name__ == "__main__":
    main()
