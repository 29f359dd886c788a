"""Images per second of an encoder: nearkin, the same network in plain torch, and onnxruntime.

    python benchmarks/embed.py                        # EfficientNet-lite0, 32 images at a time, three rounds
    python benchmarks/embed.py vit_tiny resnet50      # others
    python benchmarks/embed.py --json embed.json      # keep the figures

Plain torch has convolution, batch-norm and ReLU one after the other, channels last, and torch's own linear layers, in
inference mode, with the system's allocator as it comes. onnxruntime gets that network by torch.onnx and folds it itself
(packages onnx and onnxruntime; left out where they are not installed). Crops are there already: what is timed is the
network from pixels in float32 to embeddings. Every figure is a process of its own, and rounds alternate. Processor time
is shown beside the clock's, as other work on the machine moves it less. The last column is how far embeddings are from
nearkin's, at most.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from photos import make_layers_plain

from nearkin.encoders import build_encoder
from nearkin.training.device import keep_freed_memory

SIDES = ("nearkin", "plain torch", "onnxruntime")


def encoder(backbone: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return build_encoder(backbone, dim=256, pooling="avg+max", channels_last="vit" not in backbone).eval()


def network_of(side: str, backbone: str, file: Path, threads: int) -> Callable[[np.ndarray], np.ndarray]:
    if side == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        return lambda images: session.run(None, {"images": images})[0]
    if side == "nearkin":
        keep_freed_memory(torch.device("cpu"))
    else:
        make_layers_plain()
    module = encoder(backbone)

    def embed(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return module(torch.from_numpy(images)).numpy()

    return embed


def measure(side: str, backbone: str, folder: Path, arguments: argparse.Namespace) -> dict[str, float]:
    embed = network_of(side, backbone, folder / "network.onnx", torch.get_num_threads())
    shape = (arguments.images, 3, 224, 224)
    images = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    np.save(folder / f"{side}.npy", embed(images))
    embed(images)
    clock, processor = [], []
    for _ in range(arguments.repeats):
        began, busy = time.perf_counter(), time.process_time()
        embed(images)
        clock.append(time.perf_counter() - began)
        processor.append(time.process_time() - busy)
    return {
        "images_per_second": arguments.images / statistics.median(clock),
        "cpu_ms_per_image": 1e3 * statistics.median(processor) / arguments.images,
    }


def export(backbone: str, file: Path) -> None:
    torch.onnx.export(
        encoder(backbone),
        (torch.zeros(2, 3, 224, 224),),
        str(file),
        input_names=["images"],
        dynamic_axes={"images": {0: "count"}},
        dynamo=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backbones", nargs="*", default=["efficientnet_lite0"], help="default: efficientnet_lite0")
    parser.add_argument("--images", type=int, default=32, help="images at a time; default 32")
    parser.add_argument("--repeats", type=int, default=5, help="batches that are timed in a process; default 5")
    parser.add_argument("--rounds", type=int, default=3, help="processes for every side; default 3")
    parser.add_argument("--threads", type=int, help="default: torch's")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    parser.add_argument("--side", nargs=3, metavar=("SIDE", "BACKBONE", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.side:
        side, backbone, folder = arguments.side
        print(json.dumps(measure(side, backbone, Path(folder), arguments)))
        return
    has_onnx = all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))
    sides = SIDES if has_onnx else SIDES[:2]
    setting = {
        "command": " ".join(sys.argv),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "onnxruntime": importlib.import_module("onnxruntime").__version__ if has_onnx else "not installed",
    }
    print("; ".join(f"{key} {value}" for key, value in setting.items()))
    make_layers_plain()  # for the file of onnxruntime; every other side is a process of its own
    results = [result for backbone in arguments.backbones for result in compare(backbone, sides, arguments)]
    if arguments.json:
        arguments.json.write_text(json.dumps([{**result, **setting} for result in results], indent=2) + "\n")


def compare(backbone: str, sides: Sequence[str], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    figures: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as folder:
        if "onnxruntime" in sides:
            export(backbone, Path(folder) / "network.onnx")
        for _ in range(arguments.rounds):
            for side in sides:
                command = [sys.executable, *sys.argv, "--side", side, backbone, folder]
                output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                figures[side].append(json.loads(output.splitlines()[-1]))
        embeddings = {side: np.load(Path(folder) / f"{side}.npy") for side in sides}
    print(f"{backbone:18}{'images/s':>10}{'CPU ms/image':>14}{'ratio':>8}{'spread':>16}{'difference':>12}")
    nearkin = statistics.median(each["cpu_ms_per_image"] for each in figures["nearkin"])
    results = []
    for side, rounds in figures.items():
        busy = [each["cpu_ms_per_image"] for each in rounds]
        speed, middle = statistics.median(each["images_per_second"] for each in rounds), statistics.median(busy)
        apart = float(np.abs(embeddings[side] - embeddings["nearkin"]).max())
        spread = f"{min(busy):.1f} to {max(busy):.1f}"
        print(f"{side:18}{speed:10.1f}{middle:14.1f}{middle / nearkin:7.2f}×{spread:>16}{apart:12.1e}")
        results.append({"backbone": backbone, "side": side, "rounds": rounds, "largest_difference": apart})
    return results


if __name__ == "__main__":
    main()
