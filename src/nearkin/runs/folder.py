"""A run's folder: the resolved recipe, what it ran on, its split, every evaluation, checkpoints, the final scores."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from nearkin.catalogue import PLOT_FORMATS, plot_names
from nearkin.errors import DataError, RecipeError, notice
from nearkin.ranks import is_first
from nearkin.recipe import Recipe
from nearkin.recipe.identity import LOCATIONS, deciding, differences
from nearkin.runs.environment import Environment
from nearkin.runs.scores import Scores
from nearkin.training.folder import TrainingFolder, read_run_recipe, write
from nearkin.training.state import Event

WRITTEN = (
    "scores.json",
    "environment.json",
    "split.csv",
    "evaluations.csv",
    "events.json",
    "encoder.safetensors",
    "MODEL_CARD.md",
    "checkpoints/last.pt",
    "checkpoints/best-[0-9]*.pt",
    "checkpoints/*-classes-*.safetensors",
    "tensorboard/events.out.tfevents.*",
    "neighbours.png",
    "report.html",
    *(f"plots/{name}.{kind}" for name in plot_names() for kind in PLOT_FORMATS),
    "moments.npz",
    "test_embeddings-*.npy",
    "study.json",
    "output.log",
    "recipe.yaml",
)
"""Everything that nearkin writes into a run's folder; other files are never removed. The recipe, which makes it a run,
is removed last."""

T = TypeVar("T")


class RunFolder(TrainingFolder):
    """Paths and small files of one run.

    >>> import tempfile
    >>> folder = RunFolder(Path(tempfile.mkdtemp()) / "run")
    >>> folder.is_begun, folder.is_finished
    (False, False)
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self.environment_file = self.path / "environment.json"
        self.scores_file = self.path / "scores.json"
        self.card_file = self.path / "MODEL_CARD.md"

    @classmethod
    def existing(cls, path: str | Path) -> RunFolder:
        """A folder that a run was written to, or an error that says how to make one."""
        folder = cls(path)
        if not folder.path.is_dir():
            near = (
                [str(p.parent) for p in folder.path.parent.glob("*/recipe.yaml")] if folder.path.parent.is_dir() else []
            )
            known = f"; runs next to it: {', '.join(sorted(near))}" if near else ""
            raise DataError(f"no run at {str(path)!r}{known}. Train one with: nearkin train RECIPE -o {path}")
        if not folder.is_begun:
            raise DataError(f"{str(path)!r} is not a run folder: it has no {folder.recipe_file.name}")
        return folder

    @property
    def is_begun(self) -> bool:
        return self.recipe_file.exists()

    @property
    def is_finished(self) -> bool:
        return self.scores_file.exists()

    def clear(self) -> None:
        """Remove the files of an earlier run, and nothing else."""
        self._split = None
        if not is_first():
            return
        for pattern in WRITTEN:
            for file in self.path.glob(pattern):
                file.unlink(missing_ok=True)

    def recipe(self) -> Recipe:
        """The recipe that the run was begun with."""
        try:
            return super().recipe()
        except (OSError, ValueError, yaml.YAMLError) as error:
            reason = _reason(error)
            try:
                recipe = read_run_recipe(self.environment().resolved_recipe)
            except (DataError, KeyError, ValueError):
                raise DataError(
                    f"{self.recipe_file} cannot be read ({reason}), and without it nothing else in the folder can be "
                    f"used: put it back from a copy, or train again with --overwrite"
                ) from error
            notice(
                f"{self.recipe_file} cannot be read ({reason}); the recipe is taken from {self.environment_file.name}"
            )
            return recipe

    def check_same_recipe(self, recipe: Recipe, *, may_move: bool = False) -> list[str]:
        """Refuse to continue a run with another recipe than it was begun with.

        With ``may_move`` the data and the weights may have moved. The keys of those that have are returned, for the
        caller to check their content.
        """
        changed = differences(deciding(self.recipe()), deciding(recipe))
        moved = [key for key in changed if key in LOCATIONS] if may_move else []
        others = [text for key, text in changed.items() if key not in moved]
        if others:
            raise RecipeError(
                f"{self.path} was begun with another recipe ({', '.join(others)}): resume with the same one, "
                f"or give another folder with -o"
            )
        return moved

    def write_environment(self, record: Environment) -> None:
        write(self.environment_file, json.dumps(dict(record), indent=2, ensure_ascii=False).encode())

    @property
    def images(self) -> tuple[str, str] | None:
        """The source, and a hash of all images and their classes when the run began; None without environment.json."""
        try:
            data = self.environment().data
            return (data.source, data.images_hash) if data.images_hash else None
        except DataError:
            return None

    def events(self) -> list[Event]:
        return self._read(self.events_file, lambda text: _whole(json.loads(text), list), [])

    def environment(self) -> Environment:
        """The content of ``environment.json``, or defaults where there is none."""
        return self._read(
            self.environment_file, lambda text: Environment.from_record(_whole(json.loads(text), dict)), Environment()
        )

    def evaluations(self) -> list[dict[str, float | None]]:
        """The rows of ``evaluations.csv``; an empty cell is None."""
        return self._read(self.evaluations_file, _evaluations, [])

    def write_scores(self, scores: Mapping[str, Any]) -> None:
        write(self.scores_file, json.dumps(dict(scores), indent=2, ensure_ascii=False).encode())

    def scores(self) -> Scores:
        if not self.is_finished:
            raise DataError(
                f"{self.path} has no scores yet: the run is not finished. Continue it with: {self.resume_command}"
            )
        return self._read(self.scores_file, lambda text: Scores.from_record(_whole(json.loads(text), dict)), Scores())

    @property
    def resume_command(self) -> str:
        return f"nearkin train {self.recipe_file} -o {self.path} --resume"

    def damaged(self) -> list[str]:
        """Names of the unreadable files, of those that can be written again from a checkpoint."""
        names = []
        for name, read in (
            ("scores.json", self.scores),
            ("evaluations.csv", self.evaluations),
            ("events.json", self.events),
            ("environment.json", self.environment),
            ("recipe.yaml", super().recipe),
        ):
            try:
                if (self.path / name).exists():
                    read()
            except (DataError, OSError, ValueError, yaml.YAMLError):
                names.append(name)
        return names

    def _read(self, file: Path, parse: Callable[[str], T], default: T) -> T:
        try:
            text = file.read_text(encoding="utf-8")
            if not text.strip():
                raise ValueError("it is empty")
            return parse(text)
        except FileNotFoundError:
            return default
        except (OSError, ValueError, TypeError, csv.Error) as error:
            if self.last_checkpoint.exists():
                remedy = f"it is written again from the checkpoint by: {self.resume_command}"
            elif self.encoder_file.exists():
                remedy = f"{self.encoder_file.name} can still be used, with nearkin evaluate and nearkin embed"
            else:
                remedy = "begin again with --overwrite"
            raise DataError(f"{file} cannot be read ({error}): {remedy}") from error


def _reason(error: Exception) -> str:
    """The error on one line; YAML's errors would show an excerpt of the file."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())


def _whole(content: Any, kind: type[T]) -> T:
    if not isinstance(content, kind):
        raise ValueError(f"a {kind.__name__} is expected, got {type(content).__name__}")
    return content


def _evaluations(text: str) -> list[dict[str, float | None]]:
    rows: list[dict[str, float | None]] = []
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    if not {"epoch", "step"} <= set(reader.fieldnames or ()):
        raise ValueError("line 1 does not name the columns epoch and step")
    for row in reader:
        if None in row or None in row.values():
            raise ValueError(f"row {len(rows) + 1} is not whole")
        rows.append({key: float(value) if value else None for key, value in row.items()})
    return rows
