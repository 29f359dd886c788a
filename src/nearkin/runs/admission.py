"""Everything about a recipe that can be refused before the first image is read, for one run or for many."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

import torch

from nearkin import methods
from nearkin.encoders.architectures import build_backbone
from nearkin.encoders.pooling import build_pooling
from nearkin.errors import DataError, MissingExtraError, NearkinError, RecipeError
from nearkin.recipe import EncoderSection, Recipe
from nearkin.training.build import build_objective, data_of
from nearkin.training.device import autocast_dtype, pick_device
from nearkin.training.micro_batch import check_micro_batch, has_batch_statistics
from nearkin.training.optimisation import check_schedule


def admit(recipe: Recipe) -> None:
    """Refuse a recipe that no run could follow here.

    Data are not looked at: whether they suffice for the protocol is found when they are read.

    >>> admit(Recipe.from_mapping({"data": {"transform": "standart"}}))
    Traceback (most recent call last):
    ...
    nearkin.errors.RecipeError: no transform 'standart': did you mean 'standard'? Valid: ...
    """
    device = pick_device(recipe.training.device)
    autocast_dtype(recipe.training.precision, device)
    methods.catalogue()[recipe.method.name].check(recipe)
    check_schedule(recipe)
    data_of(recipe)
    batch_statistics = _admit_encoder(recipe.encoder)
    check_micro_batch(recipe.training, batch_statistics)
    try:
        build_objective(
            recipe.objective, num_classes=2, dim=2, num_images=4, normalisation=recipe.encoder.normalisation
        )
    except ValueError as error:
        raise RecipeError(f"objective.{error}") from error


def admit_all(recipes: Mapping[str, Recipe]) -> None:
    """Refuse at once what a study could not run in the end; recipes by the names that they have there."""
    for name, recipe in recipes.items():
        try:
            admit(recipe)
        except NearkinError as error:
            raise type(error)(f"{name}: {error}") from error


def _admit_encoder(section: EncoderSection) -> bool:
    """Whether its batch-norm is known to take the statistics of the batch."""
    weights = section.weights
    if weights not in (None, "imagenet") and not Path(weights).expanduser().is_file():
        raise DataError(
            f"encoder.weights names {weights!r}, which is not a file: give a local .safetensors or .pth, or "
            f"encoder.weights=null to start from scratch"
        )
    build_pooling(section.pooling)
    if ":" in section.backbone:  # other libraries' models are only known to them
        return False
    options = json.dumps(dict(section.options))
    live = _admit_backbone(section.backbone, options, weights == "imagenet", section.last_stride)
    return live and not section.freeze_batch_norm


@functools.cache
def _admit_backbone(name: str, options: str, imagenet: bool, last_stride: int | None = None) -> bool:
    """Whether it has batch-norm that takes the statistics of the batch unless it is frozen."""
    with torch.random.fork_rng(devices=[]):  # a look takes no random numbers from whoever goes on with them
        backbone = build_backbone(name, json.loads(options), last_stride=last_stride)
    try:
        brings_weights = not imagenet or backbone.imagenet_weights() is not None
    except MissingExtraError:
        brings_weights = True  # a study goes on with the rows that do not need it
    if not brings_weights:
        raise RecipeError(
            f"encoder.weights=imagenet, and backbone {name!r} does not bring ImageNet weights: set encoder.weights to "
            f"a local .safetensors or .pth file, or take the backbone efficientnet_lite0"
        )
    return has_batch_statistics(backbone)
