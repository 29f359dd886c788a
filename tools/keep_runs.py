"""Runs into a file of results/, a line each: recipe in words, scores, curve. tools/results.py makes tables of them.

    python tools/keep_runs.py results/cub/methods.jsonl --study isa --group "30 epochs" runs/compare/proxy_isa/seed-*
    python tools/keep_runs.py FILE --study reality-check --group "fold 1" --row ms runs/a

A run's row is the folder above it, as in a study, or what ``--row`` says. Runs are added to those of the file; one
whose study, group, row and seed it has already is refused. Weights and pictures are not kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

from nearkin.data.transforms import PRESETS
from nearkin.errors import NearkinError
from nearkin.recipe import Recipe
from nearkin.runs.folder import RunFolder

CURVE = ("epoch", "step", "loss", "R@1", "MAP@R")
"""Of all evaluations, a list each."""
NAMES = {
    "resnet50_v1": "ResNet-50",
    "efficientnet_lite0": "EfficientNet-lite0",
    "small": "small network",
    "vit_tiny": "ViT-Tiny/16",
}
DECIDED = ("study", "group", "row", "seed")
"""What no two runs of a file have alike."""


def number(value: float) -> str:
    """
    >>> number(1e-4), number(2.5e-5), number(0.25), number(33.3333), number(1000.0)
    ('1e-4', '2.5e-5', '0.25', '33.3', '1000')
    """
    mantissa, _, exponent = f"{value:e}".partition("e")
    return f"{float(f'{value:.3g}'):g}" if value >= 1e-2 else f"{float(mantissa):g}e{int(exponent)}"


def in_words(recipe: Recipe) -> str:
    """Backbone, sizes, training tricks, batch, epochs, warm-up, optimiser and rates of a recipe.

    >>> from nearkin.training.recipe_check import load_recipe
    >>> print(in_words(load_recipe("cub/proxy_anchor")))
    ResNet-50, 512-d, 224 px, batch 120, 30 epochs, warm-up of 5 epochs, AdamW 1e-4, halved every 5
    """
    data, encoder, training, protocol = recipe.data, recipe.encoder, recipe.training, recipe.protocol
    crop = data.crop_scale and data.crop_scale[0]
    steps, epochs, warmup = training.max_steps, training.epochs, training.warmup_epochs
    parts = {
        NAMES.get(encoder.backbone, encoder.backbone): True,
        f"{encoder.dim}-d": encoder.dim,
        f"{data.image_size or PRESETS[data.transform].size} px": True,
        f"{encoder.pooling.replace('gem3', 'GeM')} pooling": encoder.pooling not in ("avg+max", "avg"),
        "avg pooling": encoder.pooling == "avg" and not encoder.backbone.startswith("vit"),
        "stride 1 in the last stage": encoder.last_stride == 1,
        f"{encoder.frozen_blocks} frozen blocks": encoder.frozen_blocks,
        "projection from principal axes": encoder.head_init == "pca",
        f"crops from {crop} of the image": crop,
        f"erasing {number(data.random_erasing)}": data.random_erasing,
        f"pull to the start {number(training.l2_sp)}": training.l2_sp,
        f"averaged weights {training.ema_decay}": training.ema_decay,
        f"batch {training.batch_size}": True,
        f"at most {steps} steps": steps,
        f"{epochs} epochs": True,
        f"warm-up of {number(warmup)} epoch{'s' * (warmup != 1)}" if warmup else "no warm-up": True,
        f"{training.optimiser.replace('adam', 'Adam').replace('mw', 'mW')} {number(training.learning_rate)}": True,
        f"head × {number(training.head_lr_multiplier)}": training.head_lr_multiplier != 1,
        f"proxies × {number(training.proxy_lr_multiplier)}": training.proxy_lr_multiplier != 100,
        f"layer decay {number(training.layer_decay)}": training.layer_decay != 1,
        f"halved every {training.lr_decay_every}": training.schedule == "step" and training.lr_decay_factor == 0.5,
        f"{training.schedule} rate": training.schedule != "step" or training.lr_decay_factor != 0.5,
        f"{100 * protocol.label_noise:g} % of the labels wrong": protocol.label_noise,
        f"{100 * protocol.train_share:g} % of the training images": protocol.train_share != 1,
    }
    return ", ".join(part for part, there in parts.items() if there)


def entry(path: Path, study: str, group: str, row: str | None = None) -> dict[str, Any]:
    """What is kept of a run."""
    folder = RunFolder(path)
    scores, curve = folder.scores().as_record(), folder.evaluations()
    written = datetime.date.fromtimestamp((path / "scores.json").stat().st_mtime)
    return {
        "data": scores.pop("data"),
        "study": study,
        "group": group,
        "row": row or path.resolve().parent.name,
        "seed": scores.pop("seed"),
        "command": folder.environment().command,
        "recipe": in_words(folder.recipe()),
        "fingerprint": scores.pop("recipe"),
        **{key: value for key, value in scores.items() if value is not None},
        "date": written.isoformat(),
        "evaluations": {key: [each.get(key) for each in curve] for key in CURVE},
    }


def added(kept: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Both; none twice."""
    names = [tuple(run.get(key) for key in DECIDED) for run in [*kept, *new]]
    if twice := next((name for place, name in enumerate(names) if place >= len(kept) and name in names[:place]), None):
        study, group, row, seed = twice
        raise SystemExit(
            f"row {row!r} with seed {seed} is there already in study {study!r}, group {group!r}; nothing was written"
        )
    return [*kept, *new]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a file of runs, a line each; made where there is none")
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--study", required=True, help="what question they answer, as the tables name them")
    parser.add_argument("--group", required=True, help="under what conditions they ran, in a few words")
    parser.add_argument("--row", help="their row, where it is not the name of the folder above")
    arguments = parser.parse_args()
    kept = arguments.file.read_text(encoding="utf-8").splitlines() if arguments.file.is_file() else []
    try:
        new = [entry(run, arguments.study, arguments.group, arguments.row) for run in arguments.runs]
    except NearkinError as error:
        raise SystemExit(f"error: {error}") from error
    every = added([json.loads(line) for line in kept], new)
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(run, ensure_ascii=False) + "\n" for run in every)
    arguments.file.write_text(text, encoding="utf-8")
    print(f"{arguments.file}: {len(kept)} runs before, {len(every)} now")


if __name__ == "__main__":
    main()
