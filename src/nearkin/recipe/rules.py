"""Rules for a recipe's values that a type cannot say."""

from __future__ import annotations

from nearkin.errors import RecipeError
from nearkin.evaluation.scores import score_named
from nearkin.recipe.recipe import Recipe
from nearkin.recipe.sections import ProtocolSection
from nearkin.suggest import did_you_mean

AT_LEAST = {
    "training.epochs": 0,
    "training.batch_size": 1,
    "training.images_per_class": 1,
    "training.schedule_every": 1,
    "training.evaluate_every": 1,
    "training.warmup_epochs": 0,
    "training.seed": 0,
    "training.learning_rate": 0,
    "training.min_learning_rate": 0,
    "training.weight_decay": 0,
    "training.momentum": 0,
    "training.head_multiplier": 0,
    "training.proxy_multiplier": 0,
    "training.clip_at": 0,
    "training.checkpoint_minutes": 0,
    "training.pull_to_start": 0,
    "protocol.folds": 2,
    "protocol.fold": 0,
    "protocol.split_seed": 0,
    "data.shorter_side": 8,
    "data.unreadable_tolerance": 0,
    "protocol.recall_at": 1,
    "protocol.precision_at": 1,
    "protocol.map_at": 1,
    "protocol.ndcg_at": 1,
    "training.max_steps": 1,
    "training.micro_batch": 1,
    "training.evaluate_every_steps": 1,
    "training.evaluation_batch_size": 1,
    "training.stop_at_epoch": 0,
    "training.stop_after": 1,
    "encoder.dim": 1,
    "data.image_size": 8,
    "protocol.test_size": 8,
    "protocol.test_scale": 0.25,
    "protocol.validation_seed": 0,
    "data.workers": 0,
}
"""The least value of a key, of each where it is a list; where it may be left out, of what is given."""


def check_values(recipe: Recipe) -> None:
    """Refuse a value that is out of its range, by its key."""
    training, protocol = recipe.training, recipe.protocol
    for key, low in AT_LEAST.items():
        section, name = key.split(".")
        given = getattr(getattr(recipe, section), name)
        value = min(given, default=None) if isinstance(given, tuple) else given
        if value is not None and value < low:
            raise RecipeError(f"{key} must be at least {low}, got {value}")
    _check_scores(protocol)
    for name in ("test_share", "validation_share", "label_noise"):
        share = getattr(protocol, name)
        if not 0 <= share < 1:
            raise RecipeError(f"protocol.{name} must be a share between 0 and 1, got {share}")
    if training.weight_average is not None and not 0 <= training.weight_average < 1:
        raise RecipeError(f"training.weight_average must be at least 0 and below 1, got {training.weight_average}")
    if not 0 <= recipe.data.random_erasing <= 1:
        raise RecipeError(f"data.random_erasing must be a probability from 0 to 1, got {recipe.data.random_erasing}")
    if not 0 < protocol.train_share <= 1:
        raise RecipeError(f"protocol.train_share must be a share above 0 and at most 1, got {protocol.train_share}")
    if not 0 <= training.beta2 < 1:
        raise RecipeError(f"training.beta2 must be at least 0 and below 1, got {training.beta2}")
    if protocol.fold >= protocol.folds:
        raise RecipeError(f"protocol.fold must be below protocol.folds ({protocol.folds}), got {protocol.fold}")
    if training.sampler == "balanced" and training.batch_size % training.images_per_class:
        raise RecipeError(
            f"a balanced batch needs training.batch_size ({training.batch_size}) to be a multiple of "
            f"training.images_per_class ({training.images_per_class})"
        )


def _check_scores(protocol: ProtocolSection) -> None:
    for name in protocol.scores:
        try:
            score_named(name)
        except RecipeError as error:
            raise RecipeError(f"protocol.scores: {error}") from None
    scores = [score_named(name) for name in protocol.measured]
    choosing = [score.name for score in scores if score.every_evaluation and score.higher_is_better]
    if protocol.select_by is not None and protocol.select_by not in choosing:
        raise RecipeError(
            "protocol.select_by must be a score that is measured at every evaluation and of which more is better, "
            f"{did_you_mean(protocol.select_by, choosing)}"
        )
