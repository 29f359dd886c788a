"""Recipes: everything that decides how a run goes, typed, frozen, checked before any work starts.

A recipe is a YAML file with the sections ``data``, ``encoder``, ``objective``, ``method``, ``training`` and
``protocol``; what a file leaves out has the default written here. The resolved recipe is saved with the run.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

import yaml

from nearkin import losses, methods
from nearkin.coerce import coerce, parse_override
from nearkin.errors import RecipeError
from nearkin.identity import fingerprint
from nearkin.recipe_rules import check_values
from nearkin.suggest import did_you_mean

Section = TypeVar("Section")


@dataclass(frozen=True)
class DataSection:
    """Where the images come from and what is done to them."""

    source: str = "glyphs"
    """A benchmark's name, a folder with one folder per class, or a CSV/JSONL manifest."""
    root: str | None = None
    """Folder that holds the benchmarks; default: the environment variable NEARKIN_DATA."""
    kinds: Literal["deepest", "top"] | None = None
    """Which folders are the classes where folders of images lie inside class folders; without it they are refused."""
    transform: str = "standard"
    image_size: int | None = None
    """Overrides the side of the crop."""
    crop_scale: tuple[float, float] | None = None
    """Overrides the smallest and largest share of the area that a training crop covers."""
    cache: Literal["disk", "memory"] = "disk"
    shorter_side: int = 256
    """Decoded images are kept with this shorter side."""
    unreadable_tolerance: float = 0.01
    """A larger share of unreadable files stops the run before training."""
    workers: int | None = None
    """Threads that decode images and prepare batches; default: every core to decode, up to four for batches."""


@dataclass(frozen=True)
class EncoderSection:
    """Backbone, pooling, projection, normalisation."""

    backbone: str = "small"
    dim: int | None = 128
    pooling: str = "avg"
    normalisation: Literal["l2", "ball"] = "l2"
    weights: str | None = None
    """A local .safetensors or .pth file, or ``imagenet`` where the backbone brings its own."""
    freeze_batch_norm: bool = False
    channels_last: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PartSection:
    """A part chosen by name, with that part's own options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingSection:
    """The loop: batches, optimiser, schedule, precision, seeds."""

    epochs: int = 20
    max_steps: int | None = None
    """Ends the run after this many steps, whatever ``epochs`` says."""
    stop_at_epoch: float | None = None
    """Ends the run there, with the schedule of all ``epochs``: what ``nearkin train --final`` sets."""
    batch_size: int = 128
    sampler: Literal["random", "balanced"] = "random"
    images_per_class: int = 4
    """Images of one class in a balanced batch."""
    optimiser: Literal["adamw", "adam", "sgd"] = "adamw"
    learning_rate: float = 1e-4
    weight_decay: float = 1e-4
    momentum: float = 0.9
    """For SGD."""
    head_multiplier: float = 1.0
    proxy_multiplier: float = 100.0
    schedule: Literal["constant", "step", "milestones", "plateau", "cosine"] = "step"
    schedule_every: int = 10
    """Epochs between decays (step), or evaluations without improvement (plateau)."""
    schedule_factor: float = 0.5
    milestones: tuple[int, ...] = ()
    """Epochs after which the rate decays (milestones); one that is named twice counts twice."""
    warmup_epochs: int = 0
    """Epochs at the start that train head and proxies only."""
    clip: Literal["none", "value", "norm"] = "none"
    clip_at: float = 10.0
    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    device: str = "auto"
    seed: int = 0
    evaluate_every: int = 1
    """Epochs between evaluations."""
    evaluate_every_steps: int | None = None
    """Steps between evaluations; replaces ``evaluate_every``."""
    evaluation_batch_size: int = 256
    checkpoint_minutes: float = 5.0
    """A checkpoint is written at every evaluation, and at least this often."""
    tensorboard: bool = False
    memory_check: bool = True
    """Refuse, before the first step, a run that is bound to need more memory than there is."""


@dataclass(frozen=True)
class ProtocolSection:
    """How classes are split, what is measured and how the reported epoch is chosen."""

    name: Literal["conventional", "validation", "mlrc", "query-gallery", "in-distribution", "everything"] = (
        "conventional"
    )
    test_share: float = 0.25
    """Share of the classes (``in-distribution``: of each class's images) kept for testing where the data set has no
    split of its own."""
    validation_share: float = 0.15
    """Share of the training classes held out to choose the epoch (protocol ``validation``)."""
    folds: int = 4
    """Contiguous folds that the training classes are cut into (protocol ``mlrc``)."""
    fold: int = 0
    """The one of them, counted from 0, that is held out to choose the epoch."""
    train_share: float = 1.0
    """Share of the training images of each class that is used, at least one of each: small data."""
    label_noise: float = 0.0
    """Share of the training labels that is replaced by another training class."""
    split_seed: int = 0
    """Decides every split that the data set does not bring, which images ``train_share`` leaves and which labels are
    wrong."""
    select_by: str | None = None
    """Score that chooses the best evaluation; default: R@1 (conventional, query-gallery), else MAP@R."""
    monitor_test: bool = False
    """Lets training follow the scores of the test classes where these choose the epoch: the schedule ``plateau`` and
    CCP's patience, which are refused there otherwise. Every table names it."""
    recall_at: tuple[int, ...] = (1, 2, 4, 8)
    precision_at: tuple[int, ...] = ()
    map_at: tuple[int, ...] = ()
    ndcg_at: tuple[int, ...] = (8,)
    covering: bool = False
    """Measure the covering radius and the distance between classes at every evaluation, not only at the end."""
    clustering: bool = False
    """Also report NMI and F1 at the end."""


@dataclass(frozen=True)
class Recipe:
    """A whole run.

    >>> recipe = Recipe.from_mapping({"objective": {"name": "proxy_anchor", "alpha": 16}}, ["training.epochs=5"])
    >>> recipe.objective.options, recipe.training.epochs
    ({'alpha': 16.0}, 5)
    >>> Recipe.from_mapping({}, ["training.epoch=5"])
    Traceback (most recent call last):
    ...
    nearkin.errors.RecipeError: unknown key 'training.epoch': did you mean 'epochs'? Valid: ...
    """

    data: DataSection = field(default_factory=DataSection)
    encoder: EncoderSection = field(default_factory=EncoderSection)
    objective: PartSection = field(default_factory=lambda: PartSection("proxy_anchor"))
    method: PartSection = field(default_factory=lambda: PartSection("plain"))
    training: TrainingSection = field(default_factory=TrainingSection)
    protocol: ProtocolSection = field(default_factory=ProtocolSection)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], overrides: Iterable[str] = ()) -> Recipe:
        """Build and check a recipe from nested mappings and ``section.key=value`` overrides."""
        merged = _merge(mapping, overrides)
        sections = {f.name for f in dataclasses.fields(cls)}
        for name in merged:
            if name not in sections:
                raise RecipeError(f"unknown section {name!r}: {did_you_mean(name, sections)}")
        recipe = cls(
            data=_section(DataSection, merged.get("data"), "data"),
            encoder=_section(EncoderSection, merged.get("encoder"), "encoder"),
            objective=_objective(merged.get("objective", {"name": "proxy_anchor"}), "objective"),
            method=_part(merged.get("method", {"name": "plain"}), "method", methods.catalogue(), methods.options),
            training=_section(TrainingSection, merged.get("training"), "training"),
            protocol=_section(ProtocolSection, merged.get("protocol"), "protocol"),
        )
        check_values(recipe)
        return recipe

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
        """Read a recipe file, or one of the recipes that come with nearkin by its name (``glyphs/proxy_anchor``)."""
        file = find_recipe(path)
        try:
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise RecipeError(f"{file} is not valid YAML: {error}") from error
        if content is not None and not isinstance(content, dict):
            raise RecipeError(f"{file} must hold sections (data, encoder, …), got {type(content).__name__}")
        try:
            return cls.from_mapping(content or {}, overrides)
        except RecipeError as error:
            raise RecipeError(f"{file.name}: {error}") from error

    def as_mapping(self) -> dict[str, Any]:
        """Nested plain values, the form that is saved as YAML."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        for name in ("objective", "method"):
            plain[name] = _flatten_part(plain[name])
        return plain

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.as_mapping(), sort_keys=False, allow_unicode=True)

    def fingerprint(self) -> str:
        """A short hash of everything that decides a run (:mod:`nearkin.identity`): the device, for one, does not."""
        return fingerprint(self)

    def replace(self, **sections: Any) -> Recipe:
        return dataclasses.replace(self, **sections)


def find_recipe(path: str | Path) -> Path:
    """The file of a recipe given by path or by name."""
    given = Path(path)
    if given.is_file():
        return given
    shipped = recipes_folder()
    for candidate in (shipped / given, shipped / f"{given}.yaml"):
        if candidate.is_file():
            return candidate
    names = [str(file.relative_to(shipped).with_suffix("")) for file in shipped.rglob("*.yaml")]
    raise RecipeError(f"no recipe {str(path)!r}, neither as a file nor by name: {did_you_mean(str(path), names)}")


def recipes_folder() -> Path:
    """Where the recipes lie: inside the installed package, or at the top of the source tree."""
    packaged = Path(str(importlib.resources.files("nearkin"))) / "recipes"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[2] / "recipes"


def _merge(mapping: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    merged: dict[str, Any] = json.loads(json.dumps(mapping))
    for text in overrides:
        path, value = parse_override(text)
        if len(path) < 2:
            raise RecipeError(f"an override names a section and a key, such as training.epochs=5; got {text!r}")
        if path[0] in ("objective", "method") and path[1:] == ["name"] and merged.get(path[0], {}).get("name") != value:
            merged[path[0]] = {}  # options of another part would not fit this one
        here = merged
        for step in path[:-1]:
            if here.get(step) is None:
                here[step] = {}
            here = here[step]
            if not isinstance(here, dict):
                raise RecipeError(f"{text!r}: {step!r} holds a value, not further keys")
        here[path[-1]] = value
    return merged


def _section(cls: type[Section], content: Any, where: str) -> Section:
    if content is None:
        return cls()
    if not isinstance(content, Mapping):
        raise RecipeError(f"section {where!r} must hold keys and values, got {content!r}")
    hints = get_type_hints(cls)
    values = {}
    for key, value in content.items():
        if key not in hints:
            raise RecipeError(f"unknown key '{where}.{key}': {did_you_mean(str(key), hints)}")
        values[key] = coerce(value, hints[key], f"{where}.{key}")
    return cls(**values)


def _part(content: Any, where: str, parts: Mapping[str, type], options_of: Any) -> PartSection:
    if isinstance(content, str):
        content = {"name": content}
    if not isinstance(content, Mapping) or "name" not in content:
        raise RecipeError(f"section {where!r} needs a name: {did_you_mean('', parts)}")
    name = str(content["name"])
    if name not in parts:
        raise RecipeError(f"unknown {where} {name!r}: {did_you_mean(name, parts)}")
    known: Mapping[str, inspect.Parameter] = options_of(parts[name])
    values = {}
    for key, value in content.items():
        if key == "name":
            continue
        if key not in known:
            raise RecipeError(f"unknown key '{where}.{key}' for {name}: {did_you_mean(str(key), ['name', *known])}")
        values[key] = coerce(value, known[key].annotation, f"{where}.{key}")
    lacking = [key for key, p in known.items() if p.default is inspect.Parameter.empty and key not in values]
    if lacking:
        raise RecipeError(f"{where} {name!r} needs {', '.join(f'{where}.{key}' for key in lacking)}")
    return PartSection(name, values)


def _objective(content: Any, where: str) -> PartSection:
    """A loss with its options; a wrapper's ``pair_loss`` and a loss's ``weighting`` are parts inside the part."""
    if isinstance(content, Mapping):
        nested = {key: content[key] for key in ("pair_loss", "weighting") if key in content}
        content = {key: value for key, value in content.items() if key not in nested}
    else:
        nested = {}
    section = _part(content, where, losses.catalogue(), losses.options)
    loss = losses.catalogue()[section.name]
    if losses.kind(loss) == "wrapper":
        inner = _objective(nested.pop("pair_loss", {"name": "contrastive"}), f"{where}.pair_loss")
        if losses.kind(losses.catalogue()[inner.name]) != "pair":
            raise RecipeError(f"{where}.pair_loss must be a pair loss, got {inner.name!r}")
        section = PartSection(section.name, {**section.options, "pair_loss": inner})
    if "weighting" in nested and "weighting" in losses.options(loss):
        weighting = nested.pop("weighting")
        if weighting is not None:
            content = {"name": "isa", **weighting} if isinstance(weighting, Mapping) else weighting
            part = _part(content, f"{where}.weighting", losses.weightings(), losses.options)
            section = PartSection(section.name, {**section.options, "weighting": part})
    if nested:
        raise RecipeError(f"{section.name} takes no {' or '.join(nested)}")
    return section


def _flatten_part(part: dict[str, Any]) -> dict[str, Any]:
    options = {
        key: _flatten_part(value) if isinstance(value, dict) and set(value) == {"name", "options"} else value
        for key, value in part["options"].items()
    }
    return {"name": part["name"], **options}
