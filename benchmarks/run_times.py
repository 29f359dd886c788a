"""How long the papers' recipes would take on this machine, from a few of their steps.

    python benchmarks/run_times.py                       # a table
    python benchmarks/run_times.py --write               # also into recipes/run_times.csv

A step is the encoder's forward and backward pass and the optimiser's, on random images of the recipe's size and batch;
an evaluation is the encoder's forward pass over as many images as the protocol scores. The losses' own time and the
images' way from the disk are not in it. Whole trainings that end early, as CCP's do, take less. No data are needed: the
data sets have their published sizes.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable

import torch

from nearkin.data.transforms import transform_from
from nearkin.encoders import Encoder, build_encoder
from nearkin.recipe import Recipe, recipes_folder, shipped_recipes
from nearkin.studies.papers import papers
from nearkin.training.device import autocast, autocast_dtype, describe_hardware, pick_device
from nearkin.training.observers import in_words
from nearkin.training.recipes import load_recipe

SIZES = {"cub": (5_864, 5_924), "mnist": (60_000, 10_000)}
"""Training and test images."""


def timed(device: torch.device, rounds: int, work: Callable[[], None]) -> float:
    """Median seconds of a call, after one that warms up."""
    taken = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def encoder_of(recipe: Recipe, device: torch.device) -> tuple[Encoder, int]:
    options, name = recipe.encoder, recipe.data.transform
    size = recipe.data.image_size or transform_from(name).size
    encoder = build_encoder(
        options.backbone,
        dim=options.dim,
        pooling=options.pooling,
        normalisation=options.normalisation,
        freeze_batch_norm=options.freeze_batch_norm,
        channels_last=options.channels_last,
        options=options.options,
    )
    return encoder.to(device), size


def speeds(recipe: Recipe, device: torch.device, *, rounds: int, batch: int) -> tuple[float, float]:
    """Seconds per image in training and in evaluation."""
    encoder, size = encoder_of(recipe, device)
    dtype = autocast_dtype(recipe.training.precision, device)
    optimiser = torch.optim.AdamW(encoder.parameters(), lr=1e-6)
    images = torch.randint(0, 256, (batch, size, size, 3), dtype=torch.uint8, device=device)

    def train() -> None:
        encoder.train()
        with autocast(device, dtype):
            embeddings = encoder(images)
        embeddings[:, 0].sum().backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    def evaluate() -> None:
        encoder.eval()
        with torch.inference_mode(), autocast(device, dtype):
            encoder(images)

    return timed(device, rounds, train) / batch, timed(device, rounds, evaluate) / batch


def seconds_of(recipe: Recipe, training: float, evaluation: float) -> float:
    """A whole training: all its epochs and evaluations."""
    options, protocol = recipe.training, recipe.protocol
    train, scored = SIZES[recipe.data.source]
    if protocol.name == "mlrc":
        train, scored = train * (protocol.folds - 1) // protocol.folds, train // protocol.folds
    elif protocol.name == "validation":
        train, scored = round(train * (1 - protocol.validation_share)), round(train * protocol.validation_share)
    steps = options.epochs * (train // options.batch_size)
    steps = steps if options.max_steps is None else min(steps, options.max_steps)
    every = options.evaluate_every_steps or options.evaluate_every * (train // options.batch_size)
    return steps * options.batch_size * training + (1 + steps // every) * scored * evaluation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the times into recipes/run_times.csv")
    given = parser.parse_args()
    device = pick_device(given.device)
    where = describe_hardware(device) if device.type == "cuda" else f"{torch.get_num_threads()} CPU cores"
    print(f"{where}; torch {torch.__version__}")
    known: dict[tuple[object, ...], tuple[float, float]] = {}
    times: dict[str, float] = {}
    for name in (name for name in shipped_recipes() if name.partition("/")[0] in papers()):
        recipe = load_recipe(name)
        # The time per image hardly depends on the batch on a CPU, and does on a GPU.
        batch = min(recipe.training.batch_size, 16) if device.type == "cpu" else recipe.training.batch_size
        encoder = recipe.encoder
        key = (encoder.backbone, encoder.pooling, encoder.freeze_batch_norm, recipe.data.transform, batch)
        if key not in known:
            known[key] = speeds(recipe, device, rounds=given.rounds, batch=batch)
            print(
                f"  {encoder.backbone}: {1 / known[key][0]:.0f} images/s in training, {1 / known[key][1]:.0f} evaluated"
            )
        times[name] = seconds_of(recipe, *known[key])
        print(f"{name}: {in_words(times[name])}", flush=True)
    if given.write:
        keep(times, where)


def keep(times: dict[str, float], where: str) -> None:
    """Put this machine's times into the file of run times, in the place of its own and beside those of others."""
    file = recipes_folder() / "run_times.csv"
    with file.open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    lines = [line for line in lines if line["device"] != where or line["recipe"] not in times]
    for name, seconds in times.items():
        lines.append({"recipe": name, "device": where, "seconds": str(round(seconds)), "how": "estimated"})
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, ["recipe", "device", "seconds", "how"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(lines, key=lambda line: (line["recipe"], line["device"])))


if __name__ == "__main__":
    main()
