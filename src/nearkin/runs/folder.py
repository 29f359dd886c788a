"""A run's folder: recipe, environment, split, every evaluation, checkpoints, scores, and how a study's run ended."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import datetime
import hashlib
import io
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from nearkin.catalogue import PLOT_FORMATS, plot_names
from nearkin.disk import make_folder, write_atomically
from nearkin.encoders.architectures import build_backbone, default_weights, measured
from nearkin.encoders.weights import HUB, weights_file
from nearkin.errors import DataError, MissingExtraError, RecipeError
from nearkin.evaluation.splits import StoredSplit
from nearkin.ranks import is_first
from nearkin.recipe import EncoderSection, Recipe, deciding, differences, fingerprint
from nearkin.runs.scores import Record, Scores, known_fields
from nearkin.training.device import describe_hardware
from nearkin.training.folder import TrainingFolder, write
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Event, TrainingState

PACKAGES = ("nearkin", "torch", "numpy", "pillow", "safetensors", "matplotlib", "transformers", "timm")


@dataclass(frozen=True)
class DataRecord:
    """The images of a run and how they were split."""

    name: str = ""
    source: str = ""
    images_hash: str = ""
    """Of all images and their classes."""
    images: int = 0
    classes: int = 0
    training_images: int = 0
    training_classes: int = 0
    training_conditions: str | None = None
    replaced_labels: int = 0
    validation_images: int = 0
    test_images: int = 0
    unreadable: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Environment(Record):
    """What a run's result may depend on besides its recipe."""

    started: str = ""
    command: str = ""
    python: str = ""
    platform: str = ""
    hardware: str = ""
    cuda: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    git: Mapping[str, str | bool] | None = None
    recipe: str = ""
    """Its hash."""
    seed: int = 0
    precision: str = ""
    protocol: str = ""
    selection: str = ""
    transform: str = ""
    data: DataRecord = field(default_factory=DataRecord)
    weights: str | None = None
    """What the encoder started from, in words."""
    weights_hash: str | None = None
    parameters: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, state: TrainingState, split: StoredSplit) -> Environment:
        table, protocol, recipe = state.table, state.protocol, state.recipe
        tf32 = recipe.training.precision == "tf32" and state.device.type == "cuda"
        return cls(
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            command=" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            python=platform.python_version(),
            platform=f"{platform.system()} {platform.machine()}",
            hardware=describe_hardware(state.device),
            cuda=torch.version.cuda,
            packages=_package_versions(),
            git=_git_state(),
            recipe=fingerprint(recipe),
            seed=recipe.training.seed,
            precision="tf32" if tf32 else str(state.dtype or torch.float32).removeprefix("torch."),
            protocol=protocol.section.name,
            selection=protocol.selection_rule,
            transform=state.transform.describe(state.eval_transform),
            data=DataRecord(
                name=table.name,
                source=recipe.data.source,
                images_hash=split.images_hash,
                images=len(table),
                classes=len(table.classes()),
                training_images=len(protocol.train_rows),
                training_classes=len(set(table.labels[protocol.train_rows].tolist())),
                training_conditions=protocol.training_conditions,
                replaced_labels=protocol.replaced_labels,
                validation_images=0 if protocol.validation is None else len(protocol.validation.query),
                test_images=0 if protocol.test is None else len(protocol.test.query),
                unreadable=[str(error) for error in state.data.unreadable],
                left_out=[str(files) for files in table.left_out],
            ),
            weights=str(state.encoder.weights_report) if state.encoder.weights_report else None,
            weights_hash=weights_hash(recipe.encoder),
            parameters={
                "encoder": sum(p.numel() for p in state.encoder.parameters()),
                "objective": sum(p.numel() for p in state.objective.parameters()),
            },
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Environment:
        data = DataRecord(**known_fields(DataRecord, record.get("data") or {}))
        return cls(**{**known_fields(cls, record), "data": data})


def weights_hash(section: EncoderSection) -> str | None:
    """A hash of the file of the initial weights; None without one."""
    if section.weights is None or section.weights == "imagenet":
        return None
    with open(weights_file(section.weights), "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def _package_versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def _git_state() -> dict[str, str | bool] | None:
    def ask(*arguments: str) -> str:
        git = ["git", *arguments]
        return subprocess.run(git, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "changed": bool(ask("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


RESULTS = ("scores.json", "MODEL_CARD.md", "encoder.safetensors")
"""What is written at the end of a run."""
WRITTEN = (
    *RESULTS,
    *("environment.json", "split.csv", "evaluations.csv", "events.json"),
    *("checkpoints/last.pt", "checkpoints/best-[0-9]*.pt", "tensorboard/events.out.tfevents.*"),
    *("wandb-id.txt", "mlflow-id.txt", "wandb/latest-run", "wandb/debug*.log", "wandb/run-*", "wandb/offline-run-*"),
    *("neighbours.png", "report.html", "test_embeddings-*.npy"),
    *(f"plots/{name}.{kind}" for name in plot_names() for kind in PLOT_FORMATS),
    *("study.json", "output.log", "recipe.yaml"),
)
"""Everything that nearkin writes into a run's folder; only these files are ever removed, the recipe last."""

T = TypeVar("T")


class RunFolder(TrainingFolder):
    """Paths and small files of one run."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self.environment_file = self.path / "environment.json"
        self.scores_file = self.path / "scores.json"
        self.card_file = self.path / "MODEL_CARD.md"

    @classmethod
    def existing(cls, path: str | Path) -> RunFolder:
        """The folder of a run; the error says how to make one."""
        folder = cls(path)
        if not folder.path.is_dir():
            near = sorted(str(recipe.parent) for recipe in folder.path.parent.glob("*/recipe.yaml"))
            known = f"; runs next to it: {', '.join(near)}" if near else ""
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
        self._remove(WRITTEN)

    def reopen(self, recipe: Recipe) -> None:
        """Turn a finished run into an unfinished one that continues by ``recipe``."""
        self._remove(RESULTS)
        self.write_recipe(recipe)
        self.write_environment(dataclasses.replace(self.environment(), recipe=fingerprint(recipe)))

    def _remove(self, patterns: Iterable[str]) -> None:
        if is_first():
            for file in [file for pattern in patterns for file in self.path.glob(pattern)]:
                if file.is_dir() and not file.is_symlink():
                    shutil.rmtree(file)
                else:
                    file.unlink(missing_ok=True)

    def check_same_recipe(self, recipe: Recipe, *, may_differ: Collection[str] = ()) -> dict[str, str]:
        """Refuse another recipe than the run's; returns the keys of ``may_differ`` that differ, and how, in words."""
        changed = differences(deciding(self.recipe()), deciding(recipe))
        refused = [text for key, text in changed.items() if key not in may_differ]
        if refused:
            raise RecipeError(
                f"{self.path} was begun with another recipe ({', '.join(refused)}): resume with that, or give another "
                f"folder with -o"
            )
        return changed

    def write_environment(self, record: Environment) -> None:
        write(self.environment_file, _json(dict(record)))

    @property
    def images(self) -> tuple[str, str] | None:
        """The source and the hash of all images and classes when the run began; None where unknown."""
        try:
            data = self.environment().data
            return (data.source, data.images_hash) if data.images_hash else None
        except DataError:
            return None

    def events(self) -> list[Event]:
        return self._read(self.events_file, json.loads, [])

    def environment(self) -> Environment:
        """The content of ``environment.json``, or defaults where there is none."""
        return self._read(self.environment_file, lambda text: Environment.from_record(json.loads(text)), Environment())

    def evaluations(self) -> list[dict[str, float | None]]:
        """The rows of ``evaluations.csv``; an empty cell is None."""
        return self._read(self.evaluations_file, _evaluations, [])

    def write_scores(self, scores: Mapping[str, Any]) -> None:
        write(self.scores_file, _json(dict(scores)))

    def scores(self) -> Scores:
        if not self.is_finished:
            raise DataError(f"{self.path} is not finished, so it has no scores: {self.resume_command}")
        return self._read(self.scores_file, lambda text: Scores.from_record(json.loads(text)), Scores())

    @property
    def resume_command(self) -> str:
        return f"nearkin train {self.path} --resume"

    def _read(self, file: Path, parse: Callable[[str], T], default: T) -> T:
        try:
            return parse(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return default
        except (OSError, ValueError, TypeError, AttributeError) as error:
            remedy = f"delete it and {self.scores_file.name}, then write them again with: {self.resume_command}"
            raise DataError(f"{file} cannot be read ({error}): {remedy}") from error


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2, ensure_ascii=False).encode()


def _evaluations(text: str) -> list[dict[str, float | None]]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    return [{key: float(value) if value else None for key, value in row.items()} for row in reader]


Status = Literal["finished", "failed", "skipped", "unfinished"]
OUTCOME_FILE = "study.json"


@dataclass(frozen=True)
class Outcome:
    """One row of a study with one seed."""

    row: str
    seed: int
    status: Status
    """``failed``: training ended with an error; ``skipped``: data, weights or an extra are missing."""
    reason: str | None = None
    exit_code: int = 0
    parallel_runs: int = 1
    """How many runs shared the machine, which affects times per step."""

    @classmethod
    def after(cls, row: str, seed: int, folder: RunFolder, reason: str, code: int, *, parallel_runs: int) -> Outcome:
        """The outcome of a run that has just ended. A run with scores is finished, whatever its exit code."""
        if folder.is_finished:
            return cls(row, seed, "finished", parallel_runs=parallel_runs)
        missing = code in (DataError.exit_code, MissingExtraError.exit_code)
        return cls(row, seed, "skipped" if missing else "failed", reason, max(code, 1), parallel_runs)

    @classmethod
    def read(cls, row: str, seed: int, folder: RunFolder) -> Outcome:
        """The outcome of a run from its folder, which need not exist."""
        stored: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, TypeError):  # a damaged file counts as none
            stored = known_fields(cls, json.loads((folder.path / OUTCOME_FILE).read_text(encoding="utf-8")))
        if folder.is_finished:
            return cls(row, seed, "finished", parallel_runs=stored.get("parallel_runs", 1))
        if stored.get("status") in ("failed", "skipped"):
            return cls(**stored | {"row": row, "seed": seed})
        return cls(row, seed, "unfinished", "begun, not finished" if folder.is_begun else "not run yet")

    def write(self, folder: RunFolder) -> None:
        make_folder(folder.path)
        write_atomically(folder.path / OUTCOME_FILE, _json(dataclasses.asdict(self)))


RUNS = Path("runs")
OWN_PHOTOS = ("own_photos/vit", "own_photos/lite2", "own_photos/pretrained")
"""Recipes for own images with a pretrained backbone, the best first."""


def own_photos_recipe(
    source: str,
    overrides: Iterable[str] = (),
    *,
    backbone: str | None = None,
    say: Callable[[str], None] = print,
) -> Recipe:
    """The recipe for a folder or manifest of own images: that of :func:`own_photos_name`, or of ``backbone``."""
    changes = [f"data.source={json.dumps(source)}", *overrides]
    if backbone is None:
        chosen_by_hand = any(text.startswith(("encoder.backbone=", "encoder.weights=")) for text in changes)
        return load_recipe(own_photos_name(say=(lambda _: None) if chosen_by_hand else say), changes)
    weights = default_weights(backbone)
    if weights is None and ":" not in backbone:
        say(f"{backbone} starts from random numbers, as it has no weights of its own: encoder.weights=FILE names some.")
    chosen = [f"encoder.backbone={json.dumps(backbone)}", f"encoder.weights={json.dumps(weights)}"]
    return load_recipe(pretrained_recipe(backbone), [*chosen, *changes])


def pretrained_recipe(backbone: str) -> str:
    """The name of the recipe for own images for a pretrained backbone: its own, or that of a similar one."""
    names = {load_recipe(name).encoder.backbone: name for name in OWN_PHOTOS}
    is_transformer = str(default_weights(backbone)).startswith(HUB)
    return names.get(backbone, "own_photos/vit" if is_transformer else "own_photos/pretrained")


def own_photos_name(*, say: Callable[[str], None] = print) -> str:
    """The name of the recipe for own images with the best pretrained backbone that is available here.

    ``say`` is called with that backbone and its cost, then with each better one and what it lacks.
    """
    missing = []
    for name in OWN_PHOTOS:
        section = load_recipe(name).encoder
        try:
            if section.weights == "imagenet":
                build_backbone(section.backbone).imagenet_weights()
            else:
                weights_file(str(section.weights))
        except (DataError, MissingExtraError) as error:
            missing.append(f"Preferred, but not here: --backbone {_with_cost(section.backbone)}. {error}")
        else:
            say(f"Backbone: {_with_cost(section.backbone)}, the best pretrained one that can be had here")
            break
    else:
        name = "own_photos/small"
        say("Backbone: a small network that starts from random numbers, as no pretrained one can be had here")
    for line in missing:
        say(line)
    return name


def _with_cost(backbone: str) -> str:
    """A backbone with the size of its weights and its time for a photo."""
    figures = measured()[backbone]
    size, time = 4 * float(figures["million parameters"]), figures["CPU ms a photo"]
    return f"{backbone} ({size:.0f} MB, {time} ms of a core for each photo)"


def default_folder(recipe: Recipe) -> Path:
    """``runs/<data>-<objective>-<hash>``, equal for recipes of the same run.

    >>> default_folder(Recipe()) == default_folder(Recipe().with_changes({"training.device": "cpu"}))
    True
    """
    method = [] if recipe.method.name == "plain" else [recipe.method.name]
    return RUNS / "-".join([data_name(recipe), recipe.objective.name.replace(":", "-"), *method, fingerprint(recipe)])


def data_name(recipe: Recipe) -> str:
    return Path(recipe.data.source).stem or "data"
