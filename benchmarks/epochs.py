"""Which rule chooses a good epoch by few validation classes: many draws of such classes, for the same trained epochs.

    python benchmarks/epochs.py train own_photos/pretrained runs/epochs/0.npz data.source=photos.csv training.seed=0
    python benchmarks/epochs.py draw runs/epochs/*.npz --classes 8,15,25

``train`` trains a recipe and keeps the embeddings of its test classes after every epoch. ``draw`` takes every third of
these classes for a pool of validation classes, none of which was trained on, and scores the rest. Each draw of so many
classes of the pool chooses an epoch by each rule, and the rule is worth what the rest scores in the epochs that it
chose. Nothing is written by ``draw``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from losses import setting
from nearkin.data.table import ImageTable
from nearkin.evaluation.protocol import Protocol
from nearkin.evaluation.retrieval import retrieval_scores
from nearkin.recipe import ProtocolSection
from nearkin.report.table import markdown_table
from nearkin.runs.run import run
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Evaluation, Observer, TrainingState

Scores = dict[str, float]
Rule = Callable[[Sequence[Scores], Protocol], int]


class Keeper(Observer):
    """Keeps the embeddings of the test classes after every epoch, and the labels."""

    def __init__(self, path: Path) -> None:
        self.path, self.kept = path, dict[str, NDArray[np.generic]]()

    def on_evaluation(self, state: TrainingState, row: Evaluation) -> None:
        test = state.protocol.test
        assert test is not None, "the data have no test classes"
        self.kept["labels"] = state.table.labels[test.rows]
        if state.step:
            found = state.embed(test.rows, encoder=state.eval_encoder, as_scored=True)
            self.kept[f"epoch-{state.epoch:g}"] = found.float().cpu().numpy().astype(np.float16)
            np.savez(self.path, **self.kept)  # type: ignore[arg-type]
            print({name: round(row[name], 3) for name in ("epoch", "R@1", "MAP@R")}, flush=True)


def by_the_protocol(epochs: Sequence[Scores], protocol: Protocol) -> int:
    best = 0
    for place in range(1, len(epochs)):
        if protocol.is_better(epochs[place], than=epochs[best]):
            best = place
    return best


RULES: dict[str, Rule] = {
    "R@1, MAP@R where it is equal": lambda epochs, _: _first(epochs, lambda each: (each["R@1"], each["MAP@R"])),
    "MAP@R": lambda epochs, _: _first(epochs, lambda each: (each["MAP@R"],)),
    "R@1, MAP@R within its error": by_the_protocol,
    "the last epoch": lambda epochs, _: len(epochs) - 1,
}


def _first(epochs: Sequence[Scores], key: Callable[[Scores], tuple[float, ...]]) -> int:
    return max(range(len(epochs)), key=lambda place: key(epochs[place]))


def draw(files: Sequence[Path], classes: Sequence[int], draws: int) -> None:
    lines = []
    for file in files:
        with np.load(file) as held:
            labels = held["labels"]
            names = sorted((each for each in held if each != "labels"), key=lambda each: float(each.split("-")[1]))
            epochs = [torch.from_numpy(held[name].astype(np.float32)) for name in names]
        pool = np.unique(labels)[::3]
        rest = ~np.isin(labels, pool)
        tested = [_scores(each, labels, rest) for each in epochs]
        best = {name: max(each[name] for each in tested) for name in ("R@1", "MAP@R")}
        lines.append([file.stem, "–", "the best of all, by the test classes", _in_words([best]), "–"])
        lines.append([file.stem, "–", "an epoch at random", _in_words(tested), f"{(1 + len(tested)) / 2:g}"])
        for number in classes:
            rng = np.random.default_rng(0)
            drawn = [np.isin(labels, rng.choice(pool, number, replace=False)) for _ in range(draws)]
            chosen: dict[str, list[int]] = {rule: [] for rule in RULES}
            for rows in drawn:
                held_out, protocol = [_scores(each, labels, rows) for each in epochs], _protocol_of(labels[rows])
                for rule, choose in RULES.items():
                    chosen[rule].append(choose(held_out, protocol))
            for rule, places in chosen.items():
                epoch = 1 + sum(places) / draws
                lines.append([file.stem, str(number), rule, _in_words([tested[p] for p in places]), f"{epoch:.1f}"])
    print(markdown_table([["run", "classes", "chosen by", "test R@1 / MAP@R", "epoch"], *lines]))


def _scores(embeddings: torch.Tensor, labels: NDArray[np.int64], rows: NDArray[np.bool_]) -> Scores:
    return retrieval_scores(embeddings[torch.from_numpy(rows)], labels[rows], scores=["R@1", "MAP@R"])


def _in_words(scores: Sequence[Scores]) -> str:
    return " / ".join(f"{100 * math.fsum(s[name] for s in scores) / len(scores):.1f}" for name in ("R@1", "MAP@R"))


def _protocol_of(labels: NDArray[np.int64]) -> Protocol:
    """One whose validation images are as many as these, to be asked which of two evaluations is better."""
    splits = ["train", "train", "test", "test", *("validation" for _ in labels)]
    names = ["a", "b", "c", "c", *(f"class {label}" for label in labels)]
    pixels = np.zeros((len(names), 1, 1), dtype=np.uint8)
    return Protocol(ProtocolSection(name="validation"), ImageTable.build("draw", pixels, names, splits=splits))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="train, and keep the embeddings of every epoch")
    train.add_argument("recipe")
    train.add_argument("file", type=Path, help="where the embeddings go; the run lies beside it")
    train.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    drawing = commands.add_parser("draw", help="choose epochs by draws of classes")
    drawing.add_argument("files", nargs="+", type=Path)
    drawing.add_argument("--classes", default="8,15,25")
    drawing.add_argument("--draws", type=int, default=100)
    arguments = parser.parse_args()
    print("; ".join(f"{name} {value}" for name, value in setting("cpu").items()))
    if arguments.command == "train":
        arguments.file.parent.mkdir(parents=True, exist_ok=True)
        recipe = load_recipe(arguments.recipe, arguments.changes)
        run(recipe, arguments.file.with_suffix(""), Keeper(arguments.file), overwrite=True)
    else:
        draw(arguments.files, [int(each) for each in arguments.classes.split(",")], arguments.draws)


if __name__ == "__main__":
    main()
