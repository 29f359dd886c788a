"""A run's folder: the resolved recipe, what it ran on, every evaluation, checkpoints, the final scores."""

from __future__ import annotations

import csv
import datetime
import io
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml

from nearkin.errors import DataError, RecipeError
from nearkin.recipe import Recipe

INDIFFERENT = (
    "training.device",
    "training.checkpoint_minutes",
    "training.tensorboard",
    "training.memory_check",
    "data.workers",
    "data.cache",
)
"""Keys that may differ when a run is resumed: they do not decide what is computed."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that at any moment either the old or the new content is there, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


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
        self.evaluations_file = self.path / "evaluations.csv"
        self.events_file = self.path / "events.json"
        self.scores_file = self.path / "scores.json"
        self.encoder_file = self.path / "encoder.safetensors"
        self.card_file = self.path / "MODEL_CARD.md"
        self.checkpoints = self.path / "checkpoints"
        self.last_checkpoint = self.checkpoints / "last.pt"

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

    @classmethod
    def begun(cls, path: str | Path, recipe: Recipe) -> RunFolder:
        """A folder made ready for a new run."""
        folder = cls(path)
        folder.begin(recipe)
        return folder

    @property
    def is_begun(self) -> bool:
        return self.recipe_file.exists()

    @property
    def is_finished(self) -> bool:
        return self.scores_file.exists()

    def begin(self, recipe: Recipe) -> None:
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        write_atomically(self.recipe_file, recipe.to_yaml().encode())

    def clear(self) -> None:
        """Remove what an earlier run left, and nothing else that lies in the folder."""
        for file in (
            self.scores_file,
            self.environment_file,
            self.evaluations_file,
            self.events_file,
            self.encoder_file,
            self.card_file,
        ):
            file.unlink(missing_ok=True)
        if self.checkpoints.is_dir():
            for file in self.checkpoints.glob("*.pt"):
                file.unlink()
        for file in (self.path / "plots").glob("*.*"):
            if file.suffix in (".png", ".pdf", ".svg"):
                file.unlink()
        self.recipe_file.unlink(missing_ok=True)

    def recipe(self) -> Recipe:
        recipe = Recipe.load(self.recipe_file)
        # Runs of earlier versions took folders inside class folders as part of the class, and do not say so.
        earlier = "kinds" not in (yaml.safe_load(self.recipe_file.read_text(encoding="utf-8")) or {}).get("data", {})
        return recipe.replace(data=replace(recipe.data, kinds="top")) if earlier else recipe

    def check_same_recipe(self, recipe: Recipe) -> None:
        """A run is only continued with the recipe it was begun with."""
        before, now = _flat(self.recipe().as_mapping()), _flat(recipe.as_mapping())
        changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        changed = [key for key in changed if key not in INDIFFERENT and not _says_nothing_of_kinds(key, before, now)]
        if changed:
            listing = ", ".join(f"{key} was {before.get(key)!r}, is {now.get(key)!r}" for key in changed)
            raise RecipeError(
                f"{self.path} was begun with another recipe ({listing}): resume with the same one, "
                f"or give another folder with -o"
            )

    def write_environment(self, record: Mapping[str, Any]) -> None:
        write_atomically(self.environment_file, json.dumps(record, indent=2, ensure_ascii=False).encode())

    def write_evaluations(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Every evaluation so far, one row each; written whole, so an interrupted run leaves no row twice."""
        columns = list(dict.fromkeys(key for row in history for key in row))
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(history)
        write_atomically(self.evaluations_file, text.getvalue().encode())

    def write_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """What the method did and when, such as CCP's new sub-problems; nothing for a method without events."""
        if events:
            write_atomically(self.events_file, json.dumps(events).encode())

    def events(self) -> list[dict[str, Any]]:
        if not self.events_file.exists():
            return []
        loaded: list[dict[str, Any]] = json.loads(self.events_file.read_text(encoding="utf-8"))
        return loaded

    def evaluations(self) -> list[dict[str, float | None]]:
        """The rows of ``evaluations.csv``; what a row leaves out is None."""
        if not self.evaluations_file.exists():
            return []
        with open(self.evaluations_file, newline="", encoding="utf-8") as file:
            return [{key: float(text) if text else None for key, text in row.items()} for row in csv.DictReader(file)]

    def write_scores(self, scores: Mapping[str, Any]) -> None:
        write_atomically(self.scores_file, json.dumps(scores, indent=2, ensure_ascii=False).encode())

    def scores(self) -> dict[str, Any]:
        if not self.is_finished:
            raise DataError(
                f"{self.path} has no scores yet: the run is not finished. "
                f"Continue it with: nearkin train {self.recipe_file} -o {self.path} --resume"
            )
        loaded: dict[str, Any] = json.loads(self.scores_file.read_text(encoding="utf-8"))
        return loaded


def environment(device: str) -> dict[str, Any]:
    """What a run's result may depend on beside its recipe."""
    packages = {}
    for name in ("nearkin", "torch", "numpy", "pillow", "safetensors", "matplotlib", "transformers", "timm"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "hardware": device,
        "cuda": torch.version.cuda,
        "packages": packages,
        "git": _git_state(),
    }


def _git_state() -> dict[str, Any] | None:
    def ask(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "changed": bool(ask("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _says_nothing_of_kinds(key: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Without ``data.kinds`` folders cannot lie inside each other, and then any value of it means the same."""
    return key == "data.kinds" and None in (before.get(key), now.get(key))


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
