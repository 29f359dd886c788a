"""What the methods cost on top of their base loss: time of a training step, and of one re-initialisation of CCP.

    python benchmarks/methods.py                         # CUDA where there is one, else the CPU with a small network
    python benchmarks/methods.py --json methods.json     # keep the figures

Steps go through the one training loop's ``train_step`` with a batch that is already there, so the images' way from the
disk is not in them. Rounds of the rows alternate, so that whatever else the machine does meets all of them alike; the
median is shown. The re-initialisation is that of Stanford Online Products: 11,318 classes, a pool of 7 images and 4
proxies each, 512 dimensions, embeddings given. Nothing is written unless --json says where.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from nearkin.data.cache import open_images
from nearkin.data.loader import TrainingLoader
from nearkin.data.table import ImageTable
from nearkin.proxies import greedy_k_center
from nearkin.training.build import build_state
from nearkin.training.device import describe_hardware, pick_device
from nearkin.training.loop import HealthCheck, train_step
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import TrainingState

CCP = ("method.name=ccp", "method.steps_per_problem=1000000", "training.proxy_lr_multiplier=1")
PAIRS = ("training.sampler=balanced", "objective.name=contrastive")
# Name: (base, overrides).
ROWS: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "proxy_anchor": (None, ()),
    "proxy_isa": ("proxy_anchor", ("objective.name=proxy_isa", "objective.memory_size=5864")),
    "vcpa, 10 Newton steps": ("proxy_anchor", ("objective.name=vcpa",)),
    "mpa_ap, 10 proxies": ("proxy_anchor", ("objective.name=mpa_ap",)),
    "contrastive": (None, PAIRS),
    "contrastive, ccp": ("contrastive", (*PAIRS, *CCP)),
    "contrastive, profs": ("contrastive", (*PAIRS, "method.name=profs")),
    "contrastive, profs + hncm": ("contrastive", (*PAIRS, "method.name=profs", "method.hard_negative_classes=true")),
}


def synthetic(classes: int, per_class: int, side: int) -> ImageTable:
    pixels = np.random.default_rng(0).integers(0, 256, (classes * per_class, side, side, 3), dtype=np.uint8)
    names = [f"class {number}" for number in np.repeat(np.arange(classes), per_class)]
    return ImageTable.build("synthetic", pixels, names, splits=["train"] * len(names))


class Stepper:
    """One row of the table, and the same batch over and over."""

    def __init__(self, table: ImageTable, base: list[str], overrides: tuple[str, ...]) -> None:
        recipe = load_recipe("cub/proxy_anchor", [*base, *overrides])
        self.state: TrainingState = build_state(recipe, open_images(table, cache_dir=None))
        self.state.method.start(self.state)
        self.health = HealthCheck(self.state)
        with TrainingLoader(
            self.state.data.images, self.state.labels, self.state.transform, self.state.sampler, seed=0, workers=2
        ) as loader:
            self.batch = next(iter(loader))
        here = {"images": self.batch.images.to(self.state.device), "labels": self.batch.labels.to(self.state.device)}
        self.batch = replace(self.batch, **here)
        begin_epoch = getattr(self.state.objective, "begin_epoch", None)
        self.state.step = 3 * self.state.sampler.batches_per_epoch + 1  # ISA's memory and filter are on by then
        if begin_epoch is not None:
            begin_epoch(3)

    def step(self) -> None:
        start = self.state.step
        train_step(self.state, self.batch, self.health)
        self.state.step = start


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def steps(device: torch.device, *, rounds: int, in_a_row: int, base: list[str], table: ImageTable) -> dict[str, float]:
    steppers = {name: Stepper(table, base, overrides) for name, (_, overrides) in ROWS.items()}
    times: dict[str, list[float]] = {name: [] for name in steppers}
    for turn in range(rounds + 1):
        for name, stepper in steppers.items():
            wait(device)
            start = time.perf_counter()
            for _ in range(in_a_row):
                stepper.step()
            wait(device)
            if turn:  # the first round warms up
                times[name].append(1e3 * (time.perf_counter() - start) / in_a_row)
    return {name: statistics.median(taken) for name, taken in times.items()}


def reinitialisation(device: torch.device, *, rounds: int) -> float:
    pool = torch.nn.functional.normalize(torch.randn(11_318, 7, 512, device=device), dim=2)
    held = torch.nn.functional.normalize(torch.randn(11_318, 4, 512, device=device), dim=2)
    times = []
    for _ in range(rounds + 2):
        wait(device)
        start = time.perf_counter()
        greedy_k_center(pool, held, 4)
        wait(device)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    given = parser.parse_args()
    device = pick_device(given.device)
    base = [
        f"training.device={device.type}",
        "training.warmup_epochs=0",
        "protocol.test_share=0",
        "training.batch_size=180",
    ]
    classes, side, in_a_row = 100, 256, 10
    if device.type == "cpu":
        base += ["encoder.backbone=small", "encoder.dim=128", "data.image_size=64", "training.batch_size=60"]
        classes, side, in_a_row = 20, 72, 2
    table = synthetic(classes, 8, side)
    medians = steps(device, rounds=given.rounds, in_a_row=in_a_row, base=base, table=table)
    rows = []
    print(f"{describe_hardware(device)}; torch {torch.__version__}; {' '.join(base)}")
    for name, (base_row, _) in ROWS.items():
        more = None if base_row is None else 100 * (medians[name] / medians[base_row] - 1)
        rows.append({"row": name, "step_ms": medians[name], "base": base_row, "more_percent": more})
        print(f"{name:28s} {medians[name]:8.2f} ms" + ("" if more is None else f"   {more:+5.1f} % on {base_row}"))
    restart = reinitialisation(device, rounds=given.rounds)
    print(f"greedy k-centre, 11,318 classes, b = 7, K = 4, 512-d: {restart:.2f} ms")
    if given.json:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        record = {"command": " ".join(sys.argv), "date": when, "hardware": describe_hardware(device)}
        record |= {"torch": torch.__version__, "settings": base}
        given.json.write_text(json.dumps(record | {"steps": rows, "reinitialisation_ms": restart}, indent=2))


if __name__ == "__main__":
    main()
