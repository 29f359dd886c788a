"""Images per second of a whole training loop, beside the same network on one batch that is already there.

    python benchmarks/training.py                            # CUDA: ResNet-50, 224 pixels, bf16, batches of 180 and 32
    python benchmarks/training.py --recipe cub/vit --batches 120   # another network, without its weights
    python benchmarks/training.py --device cpu --threads 2   # the network and the images of Glyphs
    python benchmarks/training.py --json training.json       # keep the figures

The loop is nearkin's own (``fit``) with sampler, crops, loss, optimiser and the watch over losses. The bare step is the
encoder's forward and backward pass and the optimiser's step, over and over on one batch on the device, without a loss
worth the name. Rounds of both alternate within one run, so that whatever else the machine does meets both; each of the
loop's begins with steps that are not counted, as batches were prepared while the bare steps ran. Medians are shown,
of the clock and of the processors' time, which a machine that does other work as well disturbs less.
On a GPU the bare step's kernels are also added up (torch.profiler): what it would take with a host of no cost. Images
are noise of the shapes of CUB-200-2011 (256 × 256 to 400 pixels) in packs such as the decoded cache has; no data set is
needed. The time to the first step is that of a process of its own, from its start. Nothing is written unless --json
says where.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from nearkin.data.cache import OpenedImages, PackedImages, read_packs, write_packs
from nearkin.data.table import ImageTable
from nearkin.errors import Notice
from nearkin.recipe import Recipe
from nearkin.runs.data import open_data
from nearkin.runs.folder import RunFolder
from nearkin.training.build import build_state
from nearkin.training.device import autocast, describe_hardware, pick_device
from nearkin.training.loop import fit
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer, TrainingState

IMAGES, CLASSES = 1800, 100
STEPS_ONLY = [
    "training.warmup_epochs=0",
    "training.epochs=1000",
    "training.evaluate_every_steps=1000000",
    "training.checkpoint_minutes=1000",
    "protocol.name=everything",
]
NOT_COUNTED = 8  # steps: more than a loader prepares beforehand


class EnoughError(Exception):
    """Ends a training that has been measured."""


def write_images(folder: Path) -> None:
    """Noise in the shapes of photographs whose shorter side is 256."""
    rng = np.random.default_rng(0)

    def images() -> Iterator[tuple[str, np.ndarray]]:
        for number in range(IMAGES):
            sides = (256, int(rng.integers(256, 401)))
            shape = sides if number % 4 else sides[::-1]
            yield f"{number:032x}", rng.integers(0, 256, (*shape, 3), dtype=np.uint8)

    write_packs(folder, images())


def packed(folder: Path) -> OpenedImages:
    entries = read_packs(folder)
    names = [f"class {number * CLASSES // IMAGES}" for number in range(IMAGES)]
    files = [Path(digest) for digest in sorted(entries)]
    table = ImageTable.build("noise", files, names, splits=["train"] * IMAGES)
    return OpenedImages(table, PackedImages([entries[str(file)] for file in files]))


@dataclass
class Setting:
    recipe: Recipe
    data: Callable[[], OpenedImages]

    def state(self) -> TrainingState:
        return build_state(self.recipe, self.data())


def gpu_setting(folder: Path, name: str, batch: int, cache: str) -> Setting:
    recipe = load_recipe(
        name,
        [
            *STEPS_ONLY,
            "encoder.weights=null",
            "training.precision=bf16",
            "training.device=cuda",
            f"training.batch_size={batch}",
            f"data.cache={cache}",
        ],
    )
    return Setting(recipe, lambda: packed(folder))


def cpu_setting() -> Setting:
    recipe = load_recipe("glyphs/demo", [*STEPS_ONLY, "training.device=cpu"])
    data = open_data(recipe.data)
    return Setting(recipe, lambda: data)


Taken = tuple[float, float]
"""Seconds of a step by the clock, and of all processors together."""


def now(device: torch.device) -> Taken:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def since(start: Taken, device: torch.device, steps: int) -> Taken:
    end = now(device)
    return (end[0] - start[0]) / steps, (end[1] - start[1]) / steps


class Bare:
    """The encoder's passes and the optimiser's step on one batch that stays on the device."""

    def __init__(self, setting: Setting) -> None:
        self.state = setting.state()
        state = self.state
        state.encoder.train()
        weights = [weight for weight in state.encoder.parameters() if weight.requires_grad]
        fused = True if state.device.type == "cuda" else None
        self.optimiser = torch.optim.AdamW(weights, lr=1e-5, fused=fused)
        size = state.transform.size
        self.count = min(state.recipe.training.batch_size, len(state.labels))
        shape = (self.count, size, size, 3)
        self.images = torch.randint(0, 256, shape, dtype=torch.uint8).to(state.device)

    def step(self) -> None:
        with autocast(self.state.device, self.state.dtype):
            embeddings = self.state.encoder(self.images)
        self.optimiser.zero_grad(set_to_none=True)
        embeddings[:, 0].sum().backward()
        self.optimiser.step()

    def seconds(self, steps: int) -> Taken:
        start = now(self.state.device)
        for _ in range(steps):
            self.step()
        return since(start, self.state.device, steps)

    def kernel_seconds(self, steps: int = 5) -> float | None:
        if self.state.device.type != "cuda":
            return None
        self.seconds(2)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            self.seconds(steps)
        return sum(event.self_device_time_total for event in profiler.key_averages()) / 1e6 / steps


class Rounds(Observer):
    """An observer that times rounds of the loop's steps, and the bare ones between them."""

    def __init__(self, bare: Bare, rounds: int, steps: int) -> None:
        self.bare, self.rounds, self.steps = bare, rounds, steps
        self.loop: list[Taken] = []
        self.alone: list[Taken] = []
        self.done = -NOT_COUNTED
        self.start = (0.0, 0.0)

    def on_step(self, state: TrainingState, loss: float, images: int) -> None:
        self.done += 1
        if self.done == 0:
            self.start = now(state.device)
        elif self.done == self.steps:
            self.loop.append(since(self.start, state.device, self.steps))
            self.alone.append(self.bare.seconds(self.steps))
            self.done = -NOT_COUNTED
            if len(self.loop) > self.rounds:  # the first round warms up
                raise EnoughError


@dataclass
class Figures:
    batch: int
    images: str
    loop_per_second: float
    bare_per_second: float
    processor_share: float
    """Of the processors' time in the loop, what the bare steps take: the ratio that other programs disturb least."""
    kernels_per_second: float | None

    @property
    def cells(self) -> list[str]:
        kernels = self.kernels_per_second
        against = ["–", "–"] if kernels is None else [f"{kernels:,.0f}", f"{self.loop_per_second / kernels:.1%}"]
        share = f"{self.loop_per_second / self.bare_per_second:.1%}"
        rates = [f"{rate:,.0f}" for rate in (self.loop_per_second, self.bare_per_second)]
        return [str(self.batch), self.images, *rates, share, f"{self.processor_share:.1%}", *against]


HEADINGS = ["batch", "images", "loop/s", "bare/s", "of bare", "CPU time", "kernels/s", "of kernels"]


def measured(setting: Setting, name: str, rounds: int, steps: int) -> Figures:
    bare = Bare(setting)
    observer = Rounds(bare, rounds, steps)
    with tempfile.TemporaryDirectory() as folder:
        state = setting.state()
        with contextlib.suppress(EnoughError):
            fit(state, RunFolder(folder).begin(state.recipe), observer)
    loop, alone = (np.median(taken[1:], axis=0).tolist() for taken in (observer.loop, observer.alone))
    kernels = bare.kernel_seconds()
    rates = bare.count / loop[0], bare.count / alone[0]
    return Figures(bare.count, name, *rates, alone[1] / loop[1], kernels and bare.count / kernels)


def to_first_step(arguments: list[str]) -> float:
    """Seconds from the start of a process to the end of its first step."""
    start = time.time()
    command = [sys.executable, __file__, *arguments, "--first-step"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(answer.stdout.split()[-1]) - start


class Ending(Observer):
    """An observer that ends a training at its first step and says when that was."""

    def on_step(self, state: TrainingState, loss: float, images: int) -> None:
        now(state.device)
        print(time.time())
        raise EnoughError


def line(cells: list[str]) -> str:
    return "".join(f"{cell:>11}" for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="of a round; default: 40 on a GPU, 10 on a CPU")
    parser.add_argument("--recipe", default="cub/proxy_anchor", help="on a GPU; default: cub/proxy_anchor")
    parser.add_argument("--batches", type=int, nargs="*", default=[180, 32], help="on a GPU")
    parser.add_argument("--caches", nargs="*", default=["device", "disk"], help="on a GPU: values of data.cache")
    parser.add_argument("--threads", type=int, help="CPU threads; default: torch's")
    parser.add_argument("--folder", type=Path, help="keeps the images there; default: a temporary folder")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    parser.add_argument("--first-step", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore", Notice)
    if given.threads:
        torch.set_num_threads(given.threads)
    device = pick_device(given.device)
    if given.first_step:
        setting = gpu_setting(given.folder, given.recipe, 180, "device") if device.type == "cuda" else cpu_setting()
        try:
            with tempfile.TemporaryDirectory() as folder:
                fit(setting.state(), RunFolder(folder).begin(setting.recipe), Ending())
        except EnoughError:
            return
    when = datetime.now(UTC).isoformat(timespec="seconds")
    record = {"command": " ".join(sys.argv), "date": when, "hardware": describe_hardware(device)}
    record |= {"torch": torch.__version__}
    print("; ".join(f"{key} {value}" for key, value in record.items()), line(HEADINGS), sep="\n")
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        if device.type == "cuda":
            if not list(folder.glob("*.safetensors")):
                write_images(folder)
            settings = {(b, c): gpu_setting(folder, given.recipe, b, c) for b in given.batches for c in given.caches}
        else:
            setting = cpu_setting()
            settings = {(setting.recipe.training.batch_size, "Glyphs"): setting}
        for (_, name), setting in settings.items():
            figures = measured(setting, name, given.rounds, given.steps or (40 if device.type == "cuda" else 10))
            rows.append(asdict(figures))
            print(line(figures.cells), flush=True)
            if device.type == "cuda":
                torch.cuda.empty_cache()
        arguments = ["--device", given.device, "--folder", str(folder), "--recipe", given.recipe]
        arguments += ["--threads", str(given.threads)] if given.threads else []
        first = to_first_step(arguments)
    print(f"from the start of a process to its first step, images decoded before: {first:.1f} s")
    if given.json:
        given.json.write_text(json.dumps(record | {"rows": rows, "first_step_seconds": first}, indent=2))


if __name__ == "__main__":
    main()
