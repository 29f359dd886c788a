"""How long training waits for a checkpoint: copied and written on the spot, and copied for a thread that writes it.

    python benchmarks/checkpoints.py                          # the network of Glyphs, and ResNet-50
    python benchmarks/checkpoints.py --device cuda --json checkpoints.json

Each is the best weights and then the whole state, as after an evaluation that was the best so far. Both ways alternate
in one run, and the thread is done before the next begins. Medians are shown, of the clock and of the processor's time
of the training thread, which a machine that does other work as well disturbs less. Nothing is written unless --json
says where, but for files in a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from nearkin.data.cache import open_images
from nearkin.data.table import ImageTable
from nearkin.runs.folder import RunFolder
from nearkin.training import checkpoint
from nearkin.training.build import build_state
from nearkin.training.checkpoint import BackgroundWriter
from nearkin.training.device import describe_hardware, pick_device
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import TrainingState

NETWORKS = {"small": 128, "resnet50": 512}


def state_of(backbone: str, device: str) -> TrainingState:
    """A state after one step, on images that nobody looks at."""
    labels = np.repeat(np.arange(200), 2)
    names, splits = [f"class {label}" for label in labels], np.where(labels < 100, "train", "test").tolist()
    table = ImageTable.build("blank", np.zeros((400, 8, 8, 3), np.uint8), names, splits=splits)
    encoder = {"backbone": backbone, "dim": NETWORKS[backbone]}
    recipe = load_recipe({"encoder": encoder, "training": {"device": device}, "protocol": {}})
    state = build_state(recipe, open_images(table, cache_dir=None))
    for group in state.optimiser.param_groups:
        for weight in group["params"]:
            weight.grad = torch.zeros_like(weight)
    state.optimiser.step()
    return state


def taken(work: Callable[[], None]) -> tuple[float, float]:
    """Milliseconds by the clock, and of this thread's processor time."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start, own = time.perf_counter(), time.thread_time()
    work()
    return 1e3 * (time.perf_counter() - start), 1e3 * (time.thread_time() - own)


def measured(state: TrainingState, rounds: int) -> dict[str, float]:
    waited: dict[str, list[tuple[float, float]]] = {"on the spot": [], "by a thread": []}
    with tempfile.TemporaryDirectory() as place, BackgroundWriter() as writer:
        folder = RunFolder(place).begin(state.recipe)
        for _ in range(rounds + 1):
            for way, with_writer in (("on the spot", None), ("by a thread", writer)):
                state.step += 1
                state.best = {"step": state.step}

                def save(writer: BackgroundWriter | None = with_writer) -> None:
                    checkpoint.save_best(state, folder, writer)
                    checkpoint.save_last(state, folder, writer)

                waited[way].append(taken(save))
                writer.wait()
        size = folder.last_checkpoint.stat().st_size / 1e6
    figures = {"megabytes": size}
    for way, pairs in waited.items():  # the first round warms up
        clock, processor = np.median(pairs[1:], axis=0).tolist()
        figures |= {f"{way}, ms": clock, f"{way}, ms of the processor": processor}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    given = parser.parse_args()
    when = datetime.now(UTC).isoformat(timespec="seconds")
    hardware = describe_hardware(pick_device(given.device))
    record = {"command": " ".join(sys.argv), "date": when, "hardware": hardware, "torch": torch.__version__}
    print("; ".join(f"{key} {value}" for key, value in record.items()))
    rows = {}
    for backbone in NETWORKS:
        rows[backbone] = measured(state_of(backbone, given.device), given.rounds)
        print(
            backbone, "; ".join(f"{name} {value:.1f}" for name, value in rows[backbone].items()), sep=": ", flush=True
        )
    if given.json:
        given.json.write_text(json.dumps(record | {"rows": rows}, indent=2))


if __name__ == "__main__":
    main()
