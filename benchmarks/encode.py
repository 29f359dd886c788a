"""Photos from files to embeddings, EfficientNet-lite0: a run in torch next to its exported file in onnxruntime.

    python benchmarks/encode.py                     # 128 photos, three rounds; needs the extras lite and onnx
    python benchmarks/encode.py --json encode.json  # keep the figures

Decoding is included, as in `nearkin embed` and in `encode` of an exported file. Sides: the encoder in torch as a run
embeds with it, and the ONNX file. Each figure is a process of its own and rounds alternate;
processor time is shown beside the clock's, as other work on the machine moves it less. The last column is the smallest
cosine of an embedding to torch's.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from nearkin.data.image_inputs import ImageInputs
from nearkin.data.transforms import Transform
from nearkin.encoders import build_encoder
from nearkin.runs.export import PixelsToEmbeddings, write_onnx
from nearkin.runs.model import Settings, load_exported
from nearkin.training.embedding import embed_images

SIDES = ("torch", "onnxruntime")
TRANSFORM = Transform(name="standard")


def encoder():
    torch.manual_seed(0)
    options = {"pooling": "avg+max", "weights": "imagenet", "channels_last": True}
    return build_encoder("efficientnet_lite0", dim=256, **options).eval()


def write_photos(folder: Path, count: int) -> None:
    """Waves and noise in the sizes of photos: 500 pixels and a third more, as JPEG."""
    for place in range(count):
        rng = np.random.default_rng(place)
        y, x = np.mgrid[0:375, 0:500] / 20.0
        waves = [np.sin(x * rng.uniform(0.1, 2) + y * rng.uniform(0.1, 2) + rng.uniform(0, 6)) for _ in range(3)]
        pixels = 128 + 80 * np.stack(waves, -1) + rng.normal(0, 15, (375, 500, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{place:04}.jpg", quality=90)


def export(folder: Path) -> None:
    sizes = {"size": TRANSFORM.size, "resize": TRANSFORM.resize, "squash": False, "shorter_side": 256}
    settings = Settings(identity="benchmark", dim=256, normalisation="l2", **sizes)
    write_onnx(PixelsToEmbeddings(encoder(), TRANSFORM), settings, folder / "onnxruntime.onnx")


def photos(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jpg"))


def encode_of(side: str, folder: Path, batch_size: int) -> Callable[[list[Path]], np.ndarray]:
    if side == "torch":
        module = encoder()
        return lambda paths: embed_images(module, ImageInputs(paths, shorter_side=256), TRANSFORM).numpy()
    model = load_exported(folder / f"{side}.onnx", threads=torch.get_num_threads())
    return lambda paths: model.embed(ImageInputs(paths, shorter_side=256), batch_size)


def measure(side: str, folder: Path, arguments: argparse.Namespace) -> dict[str, float]:
    paths, encode = photos(folder), encode_of(side, folder, arguments.batch_size)
    np.save(folder / f"{side}.npy", encode(paths))
    clock, processor = [], []
    for _ in range(arguments.repeats):
        began, busy = time.perf_counter(), time.process_time()
        encode(paths)
        clock.append(time.perf_counter() - began)
        processor.append(time.process_time() - busy)
    return {
        "images_per_second": len(paths) / statistics.median(clock),
        "cpu_ms_per_image": 1e3 * statistics.median(processor) / len(paths),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=128, help="photos; default 128")
    parser.add_argument("--batch-size", type=int, default=64, help="of onnxruntime; default 64, as in encode")
    parser.add_argument("--repeats", type=int, default=3, help="times in a process; default 3")
    parser.add_argument("--rounds", type=int, default=3, help="processes for every side; default 3")
    parser.add_argument("--threads", type=int, help="default: torch's")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    parser.add_argument("--side", nargs=2, metavar=("SIDE", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.side:
        side, folder = arguments.side
        print(json.dumps(measure(side, Path(folder), arguments)))
        return
    setting = {
        "command": " ".join(sys.argv),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "onnxruntime": importlib.import_module("onnxruntime").__version__,
    }
    print("; ".join(f"{key} {value}" for key, value in setting.items()))
    figures: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder), arguments.images)
        export(Path(folder))
        for _ in range(arguments.rounds):
            for side in SIDES:
                command = [sys.executable, *sys.argv, "--side", side, folder]
                told = subprocess.run(command, capture_output=True, text=True, check=True)
                figures[side].append(json.loads(told.stdout.splitlines()[-1]))
        embeddings = {side: np.load(Path(folder) / f"{side}.npy") for side in SIDES}
    print(f"{'':18}{'images/s':>10}{'spread':>16}{'CPU ms/image':>14}{'ratio':>8}{'cosine':>10}")
    own = statistics.median(each["images_per_second"] for each in figures["torch"])
    results = []
    for side, found in figures.items():
        speeds = [each["images_per_second"] for each in found]
        speed, busy = statistics.median(speeds), statistics.median(each["cpu_ms_per_image"] for each in found)
        cosine = float((embeddings[side] * embeddings["torch"]).sum(axis=1).min())
        spread = f"{min(speeds):.1f} to {max(speeds):.1f}"
        print(f"{side:18}{speed:10.1f}{spread:>16}{busy:14.1f}{speed / own:7.2f}×{cosine:10.6f}")
        results.append({"side": side, "rounds": found, "smallest_cosine": cosine, **setting})
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
