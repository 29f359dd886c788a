"""What every backbone costs and what it tells apart before any training: the figures of `nearkin list backbones`.

    python benchmarks/backbones.py --json OUT                            # parameters and time of every backbone
    python benchmarks/backbones.py --json OUT --data-root DATA vit_tiny=vit.safetensors efficientnet_lite0=imagenet

A name with weights is scored too: R@1 on the test classes of CUB-200-2011, and on the second half of its training
classes, whose photos are queries among themselves. Plain crops of the size that the network was made for, no mirror
images, pooled features without a head. The time is that of the processor, with one thread, for a photo in a batch, from
its crop to its features: on two cores that nothing else uses the clock shows about half of it. Rounds of all backbones
alternate, and the shortest counts, since other work on the machine can only add to it.
`make results` writes the newest figures of `benchmarks/results/*backbones*.json` into `recipes/backbones.csv`.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from nearkin.data.source import read_source
from nearkin.encoders import backbones, build_encoder
from nearkin.runs.evaluate import evaluate_backbone
from nearkin.training.device import describe_hardware, keep_freed_memory

CPU = torch.device("cpu")
PLAIN = ("protocol.flip=false", "protocol.eval_scale=1")


def held_out_half(data_root: str, file: Path) -> None:
    """A manifest of the second half of CUB's training classes."""
    table = read_source("cub", root=data_root)
    training = sorted({int(label) for label in table.labels[table.splits == "train"]})
    half = set(training[len(training) // 2 :])
    with open(file, "w", newline="", encoding="utf-8") as content:
        writer = csv.writer(content)
        writer.writerow(["path", "label"])
        for path, label in zip(table.images, table.labels.tolist(), strict=True):
            if label in half:
                writer.writerow([path, table.class_names[label]])


def scored(name: str, weights: str, data_root: str) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder) / "half.csv"
        held_out_half(data_root, manifest)
        scores = {}
        for part, data in (("cub", "cub"), ("held_out_half", str(manifest))):
            result = evaluate_backbone(
                name, data, weights=weights, overrides=[*PLAIN, "training.device=cpu"], data_root=data_root
            )
            scores[part] = {key: result.scores[key] for key in ("R@1", "MAP@R")}
            scores[part] |= {"images": result.images, "classes": result.classes}
    return scores


def milliseconds(encoder: torch.nn.Module, batch: int) -> float:
    side = encoder.backbone.input_size
    crops = torch.randint(0, 256, (batch, side, side, 3), dtype=torch.uint8)
    with torch.inference_mode():
        encoder(crops[:1])
        began = time.process_time()
        encoder(crops)
    return 1e3 * (time.process_time() - began) / batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", nargs="*", metavar="NAME=WEIGHTS", help="backbones to score")
    parser.add_argument("--data-root", help="folder that holds CUB_200_2011")
    parser.add_argument("--batch", type=int, default=8, help="photos at a time; default 8")
    parser.add_argument("--rounds", type=int, default=5, help="of all backbones; default 5")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    arguments = parser.parse_args()
    weights = dict(text.split("=", 1) for text in arguments.weights)
    torch.set_num_threads(1)
    keep_freed_memory(CPU)
    torch.manual_seed(0)
    encoders = {name: build_encoder(name, dim=None, channels_last="vit" not in name).eval() for name in backbones()}
    times: dict[str, list[float]] = {name: [] for name in encoders}
    for _ in range(arguments.rounds):
        for name, encoder in encoders.items():
            times[name].append(milliseconds(encoder, arguments.batch))
    figures = {
        name: {
            "parameters": sum(parameter.numel() for parameter in encoder.parameters()),
            "pixels": encoder.backbone.input_size,
            "cpu_ms_a_photo": min(times[name]),
            "rounds": times[name],
        }
        for name, encoder in encoders.items()
    }
    del encoders
    for name, figure in figures.items():
        print(f"{name:24}{figure['parameters'] / 1e6:8.1f} M{figure['cpu_ms_a_photo']:8.1f} ms of one core a photo")
    setting = {
        "command": " ".join(Path(word).name if "/" in word else word for word in sys.argv),
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": describe_hardware(CPU),
        "torch": torch.__version__,
    }

    def keep() -> None:
        if arguments.json:
            arguments.json.write_text(json.dumps({**setting, "backbones": figures}, indent=1) + "\n")

    keep()
    for name, file in weights.items():
        figures[name] |= {"weights": Path(file).name, **scored(name, file, arguments.data_root)}
        print(
            f"{name:24}R@1 {100 * figures[name]['cub']['R@1']:.1f}, {100 * figures[name]['held_out_half']['R@1']:.1f}"
        )
        keep()


if __name__ == "__main__":
    main()
