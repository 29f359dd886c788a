"""Time and peak memory of a training step on own photos: as nearkin does it, and without what it does for that.

    python benchmarks/photos.py                       # 64 images of 224 pixels, EfficientNet-lite0, three rounds
    python benchmarks/photos.py --json photos.json    # keep the figures

Variants: nearkin as it is; with the whole batch in the network at once; with the system's allocator as it comes; with
plain layers (convolution, batch-norm and ReLU6 one after the other, as the same network is in plain torch); and with
all three, which is a plain step in plain torch. Every figure is a process of its own,
since neither an allocator's settings nor a peak can be taken back, and rounds of all variants alternate. Shown are the
median time of a step by the clock, processor time, which other work on the machine moves less, and the largest peak.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch.nn import functional as F

from nearkin.encoders import build_encoder
from nearkin.encoders.architectures import efficientnet_lite as lite
from nearkin.encoders.architectures import resnet, vit
from nearkin.losses import ProxyAnchor
from nearkin.training.device import keep_freed_memory
from nearkin.training.memory import fitting_micro_batch
from nearkin.training.micro_batch import embed_in_pieces

VARIANTS = {
    "nearkin": (),
    "whole batch": ("whole",),
    "system allocator": ("system",),
    "plain layers": ("plain",),
    "all three": ("whole", "system", "plain"),
}


def make_layers_plain() -> None:
    """The networks as plain torch has them: nothing folded, in place or by products of our own."""

    def convolve(self, x, weight, bias):
        rows, columns = self._padding_of(x.shape[-2], 0), self._padding_of(x.shape[-1], 1)
        if rows[0] == rows[1] and columns[0] == columns[1]:
            return F.conv2d(x, weight, bias, self.stride, (rows[0], columns[0]), groups=self.groups)
        return F.conv2d(F.pad(x, (*columns, *rows)), weight, bias, self.stride, groups=self.groups)

    def conv_bn_relu(x, convolution, norm, shortcut=None):
        x = norm(convolution(x))
        return F.relu(x if shortcut is None else x + shortcut)

    lite.SameConv2d._conv_forward = convolve
    lite.conv_bn = resnet.conv_bn = lambda x, convolution, norm: norm(convolution(x))
    lite.relu6, resnet.conv_bn_relu = F.relu6, conv_bn_relu
    vit.Linear.forward = torch.nn.Linear.forward


def measure(images: int, side: int, steps: int, *, whole: bool) -> dict[str, float]:
    """Steps in this process, the first of them, which sets everything up, not counted."""
    cpu = torch.device("cpu")
    keep_freed_memory(cpu)
    torch.manual_seed(0)
    encoder = build_encoder(
        "efficientnet_lite0", dim=256, pooling="avg+max", freeze_batch_norm=True, channels_last=True
    )
    loss = ProxyAnchor(100, 256)
    optimiser = torch.optim.AdamW([*encoder.parameters(), *loss.parameters()], lr=1e-4)
    pixels = torch.randint(0, 256, (images, side, side, 3), dtype=torch.uint8)
    labels = torch.arange(images) % 100
    piece = (None if whole else fitting_micro_batch(encoder, images, side, cpu, None)) or images
    weights = list(encoder.parameters())
    clock, processor = [], []
    for _ in range(steps + 1):
        began, busy = time.perf_counter(), time.process_time()
        embeddings = encoder(pixels) if piece == images else embed_in_pieces(encoder, pixels.split(piece), weights)
        value = loss(embeddings, labels)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        clock.append(time.perf_counter() - began)
        processor.append(time.process_time() - busy)
    return {
        "images_at_a_time": piece,
        "ms_per_image": 1e3 * statistics.median(clock[1:]) / images,
        "cpu_ms_per_image": 1e3 * statistics.median(processor[1:]) / images,
        "peak_gb": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=64, help="batch; default 64")
    parser.add_argument("--side", type=int, default=224, help="pixels; default 224")
    parser.add_argument("--steps", type=int, default=3, help="steps that are timed in a process; default 3")
    parser.add_argument("--rounds", type=int, default=3, help="processes for every variant; default 3")
    parser.add_argument("--threads", type=int, help="default: torch's")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.variant:
        parts = VARIANTS[arguments.variant]
        if "plain" in parts:
            make_layers_plain()
        print(json.dumps(measure(arguments.images, arguments.side, arguments.steps, whole="whole" in parts)))
        return
    setting = {
        "command": " ".join(sys.argv),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "libc": " ".join(platform.libc_ver()),
    }
    print("; ".join(f"{key} {value}" for key, value in setting.items()))
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    for _ in range(arguments.rounds):
        for name, parts in VARIANTS.items():
            environment = os.environ | ({"MALLOC_CHECK_": "0"} if "system" in parts else {})  # any MALLOC_ setting
            command = [sys.executable, *sys.argv, "--variant", name]
            told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            figures[name].append(json.loads(told.stdout))
    results = []
    print(f"{'':18}{'ms/image':>10}{'CPU ms':>10}{'ratio':>8}{'spread':>16}{'peak GB':>10}")
    own = statistics.median(each["cpu_ms_per_image"] for each in figures["nearkin"])
    for name, found in figures.items():
        clock, busy = (statistics.median(each[key] for each in found) for key in ("ms_per_image", "cpu_ms_per_image"))
        each_busy, peak = [each["cpu_ms_per_image"] for each in found], max(each["peak_gb"] for each in found)
        spread = f"{min(each_busy):.1f} to {max(each_busy):.1f}"
        print(f"{name:18}{clock:10.1f}{busy:10.1f}{busy / own:7.2f}×{spread:>16}{peak:10.2f}")
        results.append({"variant": name, "rounds": found, **setting})
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
