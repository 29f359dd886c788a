"""Images in memory to embeddings by torch and by onnxruntime, backbone by backbone, and what writing the file takes.

    python benchmarks/runtimes.py                        # one thread; needs the extras lite and onnx
    python benchmarks/runtimes.py --json runtimes.json   # keep the figures

It is what `runtime="auto"` of nearkin.load stands on: where onnxruntime is faster, and from how many images on writing
its file pays. Sides alternate in one process, and the figure is the least processor time of four rounds. Weights are
random, which makes no difference to the time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from nearkin.data.transforms import Transform
from nearkin.encoders import build_encoder
from nearkin.errors import require
from nearkin.exports.graph import PixelsToEmbeddings
from nearkin.exports.model import Settings, load_exported
from nearkin.exports.torch_files import write_onnx
from nearkin.training.embedding import embed_images

CASES = (
    ("efficientnet_lite0", {"channels_last": True}, 224, 24),
    ("resnet50", {"channels_last": True}, 224, 8),
    ("bn_inception", {}, 224, 8),
    ("small", {"channels_last": True}, 48, 256),
    ("resnetv2_20", {}, 32, 256),
)
ROUNDS = 3


def measured(backbone: str, options: dict[str, object], size: int, images: int) -> dict[str, float]:
    torch.manual_seed(0)
    encoder = build_encoder(backbone, dim=128, **options).eval()
    transform = Transform(name="benchmark", size=size, resize=size + size // 7)
    settings = Settings(
        identity="", dim=128, normalisation="l2", size=size, resize=transform.resize, squash=False, shorter_side=256
    )
    with tempfile.TemporaryDirectory() as folder:
        file, began = Path(folder) / "encoder.onnx", time.process_time()
        write_onnx(PixelsToEmbeddings(encoder, transform), settings, file)
        written = time.process_time() - began
        exported = load_exported(file, threads=1)
    rng = np.random.default_rng(0)
    given = [rng.integers(0, 256, (size + 40, size + 60, 3), dtype=np.uint8) for _ in range(images)]
    least = {"torch": np.inf, "onnxruntime": np.inf}
    device = torch.device("cpu")
    for _ in range(1 + ROUNDS):
        for side in least:
            began = time.process_time()
            if side == "torch":
                embed_images(encoder, given, transform, batch_size=64, workers=1, device=device)
            else:
                exported.encode(given)
            spent = 1000 * (time.process_time() - began) / images
            least[side] = min(least[side], spent)
    return {"write_seconds": written, **{f"{side}_ms": value for side, value in least.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    about = {
        "command": " ".join(["benchmarks/runtimes.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, one thread",
        "torch": torch.__version__,
        "onnxruntime": require("onnxruntime", "onnx").__version__,
    }
    print(f"{about['hardware']}, torch {about['torch']}, onnxruntime {about['onnxruntime']}, {about['date']}")
    found = []
    for backbone, options, size, images in CASES:
        each = {"backbone": backbone, "options": options, "size": size, **measured(backbone, options, size, images)}
        found.append(each)
        saved = each["torch_ms"] - each["onnxruntime_ms"]
        pays = f"pays from {1000 * each['write_seconds'] / saved:,.0f} images on" if saved > 0 else "never pays"
        print(
            f"{backbone:20} {size} pixels: torch {each['torch_ms']:6.2f} ms an image, onnxruntime "
            f"{each['onnxruntime_ms']:6.2f}; the file takes {each['write_seconds']:.1f} s, which {pays}",
            flush=True,
        )
    if asked.json is not None:
        asked.json.write_text(json.dumps({**about, "backbones": found}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
