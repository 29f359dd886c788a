"""A run's folder: the resolved recipe, what it ran on, its split, every evaluation, checkpoints, the final scores."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from nearkin.catalogue import PLOT_FORMATS, plot_names
from nearkin.disk import make_folder, write_atomically
from nearkin.errors import DataError, RecipeError
from nearkin.evaluation.stored_split import StoredSplit
from nearkin.notices import notice
from nearkin.ranks import is_first
from nearkin.recipe import Recipe
from nearkin.recipe.identity import LOCATIONS, deciding, differences, located
from nearkin.runs.environment import Environment
from nearkin.runs.scores import Scores
from nearkin.training.state import Evaluation, Event

WRITTEN = (
    "scores.json",
    "environment.json",
    "split.csv",
    "evaluations.csv",
    "events.json",
    "encoder.safetensors",
    "encoder-*.onnx",
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
"""Everything that nearkin writes into a run's folder; whatever else lies there is somebody's own. The recipe, which
makes it a run, goes last when a run is cleared away."""

T = TypeVar("T")


class RunFolder:
    """Paths and small files of one run.

    >>> import tempfile
    >>> folder = RunFolder(Path(tempfile.mkdtemp()) / "run")
    >>> folder.is_begun, folder.is_finished
    (False, False)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.recipe_file = self.path / "recipe.yaml"
        self.environment_file = self.path / "environment.json"
        self.split_file = self.path / "split.csv"
        self.evaluations_file = self.path / "evaluations.csv"
        self.events_file = self.path / "events.json"
        self.scores_file = self.path / "scores.json"
        self.encoder_file = self.path / "encoder.safetensors"
        self.card_file = self.path / "MODEL_CARD.md"
        self.checkpoints = self.path / "checkpoints"
        self.last_checkpoint = self.checkpoints / "last.pt"
        self._split: StoredSplit | None = None

    @classmethod
    def existing(cls, path: str | Path) -> RunFolder:
        """A folder that a run was written to, or an error that says how to make one."""
        folder = cls(path)
        if not folder.path.is_dir():
            near = (
                [str(p.parent) for p in folder.path.parent.glob("*/recipe.yaml")] if folder.path.parent.is_dir() else []
            )
            known = f"; runs beside it: {', '.join(sorted(near))}" if near else ""
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

    def begin(self, recipe: Recipe) -> RunFolder:
        """Make the folder of a run that is about to train."""
        make_folder(self.checkpoints)
        self.write_recipe(recipe)
        return self

    def write_recipe(self, recipe: Recipe) -> None:
        """Write the recipe, with absolute paths: a run can be used from any working directory."""
        _write(self.recipe_file, located(recipe).to_yaml().encode())

    def clear(self) -> None:
        """Remove what an earlier run left, and nothing else that lies in the folder."""
        self._split = None
        if not is_first():
            return
        for pattern in WRITTEN:
            for file in self.path.glob(pattern):
                file.unlink(missing_ok=True)

    def recipe(self) -> Recipe:
        """The recipe that the run was begun with."""
        try:
            return self._own_recipe()
        except (OSError, ValueError, yaml.YAMLError) as error:
            reason = _reason(error)
            try:
                kept = _recipe(self.environment().resolved_recipe)
            except (DataError, KeyError, ValueError):
                raise DataError(
                    f"{self.recipe_file} cannot be read ({reason}), and without it nothing else in the folder can be "
                    f"used: put it back from a copy, or train anew with --overwrite"
                ) from error
            notice(
                f"{self.recipe_file} cannot be read ({reason}); the recipe is taken from {self.environment_file.name}"
            )
            return kept

    def _own_recipe(self) -> Recipe:
        return _recipe(yaml.safe_load(self.recipe_file.read_text(encoding="utf-8")))

    def check_same_recipe(self, recipe: Recipe, *, may_move: bool = False) -> list[str]:
        """A run is only continued with the recipe it was begun with.

        With ``may_move`` the data and the weights may lie elsewhere now; returned is which of them do, for the caller
        to look at their content.
        """
        changed = differences(deciding(self.recipe()), deciding(recipe))
        moved = [key for key in changed if key in LOCATIONS] if may_move and self.split_file.exists() else []
        others = [text for key, text in changed.items() if key not in moved]
        if others:
            raise RecipeError(
                f"{self.path} was begun with another recipe ({', '.join(others)}): resume with the same one, "
                f"or give another folder with -o"
            )
        return moved

    def write_split(self, split: StoredSplit) -> None:
        _write(self.split_file, split.to_csv())
        self._split = split

    @property
    def stored_split(self) -> StoredSplit | None:
        """Which image was what in the run; None for a run of an earlier version, which did not keep it."""
        if self._split is None and self.split_file.exists():
            self._split = self._read_split()
        return self._split

    def _read_split(self) -> StoredSplit:
        try:
            return StoredSplit.from_csv(self.split_file.read_bytes())
        except (OSError, ValueError, csv.Error) as error:
            raise DataError(
                f"{self.split_file} cannot be read ({error}): put it back from a copy. If no image has been added, "
                f"taken away or changed since the run began, it can be deleted, and the split is made anew"
            ) from error

    def write_environment(self, record: Environment) -> None:
        _write(self.environment_file, json.dumps(dict(record), indent=2, ensure_ascii=False).encode())

    @property
    def images(self) -> tuple[str, str] | None:
        """The source, and a hash of all images and their classes when the run began; None where it does not say."""
        try:
            data = self.environment().data
            return (data.source, data.images_hash) if data.images_hash else None
        except DataError:
            return None

    def write_evaluations(self, history: Sequence[Evaluation]) -> None:
        """Every evaluation so far, one row each; written whole, so an interrupted run leaves no row twice."""
        first = ("epoch", "step", "loss", "lr")
        columns = list(dict.fromkeys([*first, *(key for row in history for key in row)]))
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(history)
        _write(self.evaluations_file, text.getvalue().encode())

    def write_events(self, events: Sequence[Event]) -> None:
        """What the method did and when, such as CCP's new sub-problems; nothing for a method without events."""
        if events:
            _write(self.events_file, json.dumps(events).encode())

    def events(self) -> list[Event]:
        return self._read(self.events_file, lambda text: _whole(json.loads(text), list), [])

    def environment(self) -> Environment:
        """What ``environment.json`` holds; nothing where there is none."""
        return self._read(
            self.environment_file, lambda text: Environment.from_record(_whole(json.loads(text), dict)), Environment()
        )

    def evaluations(self) -> list[dict[str, float | None]]:
        """The rows of ``evaluations.csv``; what a row leaves out is None."""
        return self._read(self.evaluations_file, _evaluations, [])

    def write_scores(self, scores: Mapping[str, Any]) -> None:
        _write(self.scores_file, json.dumps(dict(scores), indent=2, ensure_ascii=False).encode())

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
        """Names of the files that are there and cannot be read, of those that a checkpoint can write anew."""
        found = []
        for name, read in (
            ("scores.json", self.scores),
            ("evaluations.csv", self.evaluations),
            ("events.json", self.events),
            ("environment.json", self.environment),
            ("recipe.yaml", self._own_recipe),
        ):
            try:
                if (self.path / name).exists():
                    read()
            except (DataError, OSError, ValueError, yaml.YAMLError):
                found.append(name)
        return found

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
                remedy = f"it is written anew from the checkpoint by: {self.resume_command}"
            elif self.encoder_file.exists():
                remedy = f"{self.encoder_file.name} can still be used, with nearkin evaluate and nearkin embed"
            else:
                remedy = "begin anew with --overwrite"
            raise DataError(f"{file} cannot be read ({error}): {remedy}") from error


def _write(file: Path, content: bytes) -> None:
    """Of several ranks the first writes."""
    if is_first():
        write_atomically(file, content)


def _reason(error: Exception) -> str:
    """On one line; YAML's own errors also draw the place."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())


def _recipe(content: Any) -> Recipe:
    # Sections have defaults, so half a file would pass for another recipe.
    sections = [content.get(name) for name in ("data", "protocol")] if isinstance(content, Mapping) else [None]
    if not all(isinstance(section, Mapping) for section in sections):
        raise RecipeError("it is not whole")
    recipe = Recipe.from_mapping(content)
    # Runs of earlier versions took folders inside class folders as part of the class, and do not say so.
    earlier = "kinds" not in content["data"]
    return recipe.but({"data.class_folders": "top"}) if earlier else recipe


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
