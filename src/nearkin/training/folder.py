"""The files of a run's folder that training writes and a resumed run reads."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import yaml

from nearkin.disk import make_folder, write_atomically
from nearkin.errors import DataError, RecipeError
from nearkin.evaluation.splits import StoredSplit
from nearkin.ranks import is_first
from nearkin.recipe import Recipe
from nearkin.training.recipe_check import load_recipe, with_absolute_paths
from nearkin.training.state import Evaluation, Event


class TrainingFolder:
    """A run's recipe, split, evaluations, events, checkpoints and encoder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.recipe_file = self.path / "recipe.yaml"
        self.split_file = self.path / "split.csv"
        self.evaluations_file = self.path / "evaluations.csv"
        self.events_file = self.path / "events.json"
        self.encoder_file = self.path / "encoder.safetensors"
        self.checkpoints = self.path / "checkpoints"
        self.last_checkpoint = self.checkpoints / "last.pt"
        self._split: StoredSplit | None = None

    def best_checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"best-{step:08d}.pt"

    def begin(self, recipe: Recipe) -> Self:
        """Create the folder of a run that is about to train."""
        make_folder(self.checkpoints)
        self.write_recipe(recipe)
        return self

    def write_recipe(self, recipe: Recipe) -> None:
        # With absolute paths, so that a run can be used from any working directory.
        write(self.recipe_file, with_absolute_paths(recipe).to_yaml().encode())

    def recipe(self) -> Recipe:
        """The recipe of the run."""
        try:
            content = yaml.safe_load(self.recipe_file.read_text(encoding="utf-8"))
            # Sections have defaults, so a file cut short would pass for another recipe.
            if not isinstance(content, Mapping) or "protocol" not in content:
                raise RecipeError("it is not whole")
            return load_recipe(content)
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise _unreadable(self.recipe_file, error) from error

    def write_split(self, split: StoredSplit) -> None:
        write(self.split_file, split.to_csv())
        self._split = split

    @property
    def split(self) -> StoredSplit:
        """The class and the split of every image when the run began."""
        if self._split is None:
            try:
                self._split = StoredSplit.from_csv(self.split_file.read_bytes())
            except (OSError, ValueError, csv.Error) as error:
                raise _unreadable(self.split_file, error) from error
        return self._split

    def write_evaluations(self, history: Sequence[Evaluation]) -> None:
        """Write every evaluation so far, one row each."""
        columns = dict.fromkeys(["epoch", "step", "loss", "lr", *(key for row in history for key in row)])
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(history)
        write(self.evaluations_file, text.getvalue().encode())

    def write_events(self, events: Sequence[Event]) -> None:
        if events:
            write(self.events_file, json.dumps(events).encode())


def _unreadable(file: Path, error: Exception) -> DataError:
    reason = " ".join(str(error).split())
    return DataError(f"{file} cannot be read ({reason}): put it back from a copy, or train again with --overwrite")


def write(file: Path, content: bytes) -> None:
    """Write a file; with several ranks only the first does."""
    if is_first():
        write_atomically(file, content)
