"""Recipes are checked before any work: names, types and ranges, and by building what needs no data."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from nearkin import losses
from nearkin.catalogue import keyword_options
from nearkin.data.source import is_benchmark
from nearkin.encoders.architectures import build_backbone
from nearkin.encoders.encoder import build_pooling
from nearkin.encoders.weights import weights_file
from nearkin.errors import DataError, MissingExtraError, NearkinError, RecipeError, did_you_mean, mistakes_in
from nearkin.evaluation.scores import score_named
from nearkin.losses.pml import PREFIX
from nearkin.ranks import world
from nearkin.recipe import PartSection, ProtocolSection, Recipe, coerce
from nearkin.recipe.reading import find_recipe, read_layers, read_part, read_recipe
from nearkin.training import methods
from nearkin.training.build import build_objective, data_of
from nearkin.training.device import autocast_dtype, pick_device
from nearkin.training.micro_batch import check_micro_batch, has_batch_statistics
from nearkin.training.optimisation import check_schedule


def load_recipe(source: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> Recipe:
    """A checked recipe from a file, the name of one that comes with nearkin, or nested mappings.

    ``overrides`` are written ``section.key=value``. Paths become absolute.

    >>> recipe = load_recipe({"objective": {"name": "proxy_anchor", "alpha": 16}}, ["training.epochs=5"])
    >>> recipe.objective.options, recipe.training.epochs
    ({'alpha': 16.0}, 5)
    >>> load_recipe("glyphs/demo", ["training.epoch=5"])
    Traceback (most recent call last):
    ...
    nearkin.errors.RecipeError: unknown key 'training.epoch': did you mean 'epochs'? Valid: ...
    """
    if isinstance(source, Mapping):
        return check_recipe(read_recipe(source, overrides))
    file = find_recipe(source)
    mapping = read_layers(file)
    try:
        return check_recipe(read_recipe(mapping, overrides))
    except RecipeError:
        with mistakes_in(file.name):
            check_recipe(read_recipe(mapping))
        raise  # the file is in order: the mistake is in the changes


def check_recipe(recipe: Recipe) -> Recipe:
    """The recipe with the options of its loss and method in their types, and with absolute paths."""
    _check_scores(recipe.protocol)
    return with_absolute_paths(
        recipe.replace(
            objective=_checked_objective(recipe.objective, "objective"),
            method=_checked_part(recipe.method, "method", _named(methods.catalogue(), recipe.method.name, "method")),
        )
    )


def validate(recipe: Recipe) -> None:
    """Refuse a recipe that cannot run on this machine; its data are not checked.

    >>> validate(load_recipe({"data": {"transform": "standart"}}))
    Traceback (most recent call last):
    ...
    nearkin.errors.RecipeError: no transform 'standart': did you mean 'standard'? Valid: ...
    """
    device = pick_device(recipe.training.device)
    autocast_dtype(recipe.training.precision, device)
    if recipe.objective.name.startswith(PREFIX) and (recipe.method.name != "plain" or world() > 1):
        raise RecipeError(f"{recipe.objective.name} works with method.name=plain in one process")
    methods.catalogue()[recipe.method.name].check(recipe)
    check_schedule(recipe)
    data_of(recipe)
    try:
        with torch.random.fork_rng(devices=[]):  # building must not change the caller's random numbers
            _check_encoder(recipe)
            build_objective(
                recipe.objective,
                num_classes=max(2, world()),  # every rank holds the proxies of at least one class
                dim=2,
                num_images=4,
                normalisation=recipe.encoder.normalisation,
            )
    except RecipeError:
        raise
    except ValueError as error:
        raise RecipeError(f"objective.{error}") from error


def validate_all(recipes: Mapping[str, Recipe]) -> None:
    """Refuse a study before it starts if one of its recipes cannot run."""
    for name, recipe in recipes.items():
        try:
            validate(recipe)
        except NearkinError as error:
            raise type(error)(f"{name}: {error}") from error


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with paths that mean the same from any working directory.

    >>> with_absolute_paths(Recipe()).data.source
    'glyphs'
    >>> load_recipe({"data": {"source": "."}}).data.source == os.getcwd()
    True
    """
    data, encoder = recipe.data, recipe.encoder
    source, root = _absolute(data.source), data.root and _absolute(data.root)
    if is_benchmark(data.source):
        source = data.source
        if root is None and not os.environ.get("NEARKIN_DATA") and Path("data").is_dir():
            root = _absolute("data")  # the default of nearkin.data.source.data_root
    family, colon, model = encoder.backbone.partition(":")
    backbone = f"{family}:{_absolute(model)}" if colon else encoder.backbone
    weights = encoder.weights and (encoder.weights if encoder.weights == "imagenet" else _absolute(encoder.weights))
    return recipe.with_changes(
        {"data.source": source, "data.root": root, "encoder.backbone": backbone, "encoder.weights": weights}
    )


def _absolute(path: str) -> str:
    """The absolute path, if it exists; another string may not be meant as a path."""
    expanded = Path(path).expanduser()
    return os.path.abspath(expanded) if expanded.exists() else path


def _named(parts: Mapping[str, type], name: str, where: str) -> type:
    if name not in parts:
        raise RecipeError(f"unknown {where} {name!r}: {did_you_mean(name, parts)}")
    return parts[name]


def _checked_part(section: PartSection, where: str, part: type) -> PartSection:
    name, known = section.name, keyword_options(part)
    for key in section.options:
        if key not in known:
            raise RecipeError(f"unknown key '{where}.{key}' for {name}: {did_you_mean(str(key), ['name', *known])}")
    missing = [key for key, p in known.items() if p.default is inspect.Parameter.empty and key not in section.options]
    if missing:
        raise RecipeError(f"{where} {name!r} needs {', '.join(f'{where}.{key}' for key in missing)}")
    values = {key: coerce(value, known[key].annotation, f"{where}.{key}") for key, value in section.options.items()}
    return PartSection(name, values)


def _checked_objective(section: PartSection, where: str) -> PartSection:
    """A loss with its options; a wrapper's ``pair_loss`` and a loss's ``weighting`` are parts inside the part."""
    nested = {key: section.options[key] for key in ("pair_loss", "weighting") if key in section.options}
    options = {key: value for key, value in section.options.items() if key not in nested}
    checked = _checked_part(PartSection(section.name, options), where, loss := losses.loss_named(section.name))
    parts: dict[str, PartSection] = {}
    if losses.kind(loss) == "wrapper":
        inner = read_part(nested.pop("pair_loss", "contrastive"), f"{where}.pair_loss")
        parts["pair_loss"] = _checked_objective(inner, f"{where}.pair_loss")
        if losses.kind(losses.loss_named(inner.name)) != "pair":
            raise RecipeError(f"{where}.pair_loss must be a pair loss, got {inner.name!r}")
    if "weighting" in nested and "weighting" in losses.options(loss):
        weighting = nested.pop("weighting")
        if weighting is not None:
            content = {"name": "isa", **weighting} if isinstance(weighting, Mapping) else weighting
            part = read_part(content, f"{where}.weighting")
            chosen = _named(losses.weightings(), part.name, f"{where}.weighting")
            parts["weighting"] = _checked_part(part, f"{where}.weighting", chosen)
    if nested:
        raise RecipeError(f"{section.name} takes no {' or '.join(nested)}")
    return PartSection(section.name, {**checked.options, **parts})


def _check_scores(protocol: ProtocolSection) -> None:
    with mistakes_in("protocol.scores"):
        for name in protocol.scores:
            score_named(name)
    scores = [score_named(name) for name in protocol.measured]
    choosing = [score.name for score in scores if score.every_evaluation and score.higher_is_better]
    if protocol.select_by is not None and protocol.select_by not in choosing:
        rule = "must be a score that is measured at every evaluation and of which more is better"
        raise RecipeError(f"protocol.select_by {rule}, {did_you_mean(protocol.select_by, choosing)}")


def _check_encoder(recipe: Recipe) -> None:
    section, weights = recipe.encoder, recipe.encoder.weights
    if weights not in (None, "imagenet") and not weights_file(weights).is_file():
        remedy = "give a local .safetensors or .pth, hub:OWNER/MODEL, or encoder.weights=null to start from scratch"
        raise DataError(f"encoder.weights names {weights!r}, which is not a file: {remedy}")
    build_pooling(section.pooling)
    if ":" in section.backbone:
        return
    backbone = build_backbone(section.backbone, dict(section.options), last_stride=section.last_stride)
    backbone.freeze_blocks(section.frozen_blocks)
    with contextlib.suppress(MissingExtraError):  # a study runs its other rows
        if weights == "imagenet" and backbone.imagenet_weights() is None:
            raise RecipeError(
                f"backbone {section.backbone!r} does not bring ImageNet weights: set encoder.weights to a local "
                f".safetensors or .pth file, or take the backbone efficientnet_lite0"
            )
    check_micro_batch(recipe.training, has_batch_statistics(backbone) and not section.freeze_batch_norm)
