"""``environment.json`` as types: what a run ran on, and its data."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from nearkin.evaluation.splits import StoredSplit
from nearkin.recipe import EncoderSection
from nearkin.recipe.identity import fingerprint
from nearkin.runs.scores import Record, known_fields
from nearkin.training.device import describe_hardware, precision_on
from nearkin.training.state import TrainingState

PACKAGES = ("nearkin", "torch", "numpy", "pillow", "safetensors", "matplotlib", "transformers", "timm")


@dataclass(frozen=True)
class DataRecord:
    """The images that there were, and how they were divided."""

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
    """What a run's result may depend on besides its recipe, and the resolved recipe."""

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
    resolved_recipe: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, state: TrainingState, split: StoredSplit) -> Environment:
        """The environment of a run that is about to begin."""
        table, protocol, recipe = state.table, state.protocol, state.recipe
        return cls(
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            command=" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            python=platform.python_version(),
            platform=f"{platform.system()} {platform.machine()}",
            hardware=describe_hardware(state.device),
            cuda=torch.version.cuda,
            packages={name: version for name in PACKAGES if (version := _version(name)) is not None},
            git=_git_state(),
            recipe=fingerprint(recipe),
            seed=recipe.training.seed,
            precision=precision_on(state.device, recipe.training.precision),
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
            resolved_recipe=recipe.as_mapping(),
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Environment:
        data = DataRecord(**known_fields(DataRecord, record.get("data") or {}))
        return cls(**{**known_fields(cls, record), "data": data})

    def as_record(self) -> dict[str, Any]:
        return super().as_record() | {"data": dataclasses.asdict(self.data)}


def weights_hash(section: EncoderSection) -> str | None:
    """A hash of the file that the encoder starts from, which recognises it when it has moved."""
    if section.weights is None or section.weights == "imagenet":
        return None
    with open(section.weights, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_state() -> dict[str, str | bool] | None:
    def ask(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "changed": bool(ask("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None
