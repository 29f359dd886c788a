"""The final model: trained on every class, after another run has given the score and the epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from nearkin.disk import write_atomically
from nearkin.errors import RecipeError
from nearkin.ranks import is_first
from nearkin.recipe import Recipe
from nearkin.runs.data import Announce, Progress
from nearkin.runs.folder import RunFolder
from nearkin.runs.model_card import model_card
from nearkin.runs.run import run
from nearkin.runs.scores import FinalOf, Scores
from nearkin.training.state import Observer


def train_final(
    path: str | Path,
    observer: Observer,
    *,
    output: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    data_root: str | Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> Scores:
    """Train on every class with the recipe of a finished run, from the same start, up to the epoch that it chose.

    The validation and test classes of the run train as well, so this model has no score of its own. Its
    ``scores.json`` has the scores of the run at ``path`` under ``final_of``. The folder, by default that of the run
    with ``-final`` appended, also gets a ``MODEL_CARD.md``.
    """
    chosen = RunFolder.existing(path)
    scores = chosen.scores()
    recipe = final_recipe(chosen.recipe(), scores, chosen.evaluations())
    if data_root is not None:
        recipe = recipe.with_changes({"data.root": str(data_root)})
    if device is not None:
        recipe = recipe.with_changes({"training.device": device})
    folder = RunFolder(output or final_folder(path))
    if folder.path.resolve() == chosen.path.resolve():
        raise RecipeError(f"{folder.path} is the run itself: give another folder for the final model with -o")
    final = run(recipe, folder, observer, resume=resume, overwrite=overwrite, progress=progress, announce=announce)
    final = replace(final, final_of=FinalOf(str(path), _note(str(path), scores), scores))
    if is_first():
        write_atomically(folder.card_file, model_card(folder, recipe, final, folder.environment()).encode())
        folder.write_scores(final)
    return final


def final_folder(path: str | Path) -> Path:
    """The default folder of a run's final model.

    >>> str(final_folder("runs/photos/"))
    'runs/photos-final'
    """
    folder = Path(path) if Path(path).name else Path(path).resolve()
    return folder.with_name(f"{folder.name}-final")


def final_recipe(recipe: Recipe, scores: Scores, evaluations: Sequence[Mapping[str, float | None]] = ()) -> Recipe:
    """The recipe of a run, for every class and up to the epoch that the run chose.

    ``epochs`` stays, so that every epoch has the learning rate that it had in the run. A plateau schedule becomes
    milestones at the epochs where the rate fell.
    """
    if recipe.protocol.name == "everything":
        raise RecipeError("this run trained on every class already: give the one whose epoch and score it took")
    epoch = float(scores.chosen.get("epoch", 0.0))
    if epoch == 0:
        raise RecipeError("the run took no training step, so there is no epoch to train to")
    recipe = recipe.with_changes(
        {
            "training.max_steps": None,
            "training.stop_at_epoch": epoch,
            "training.early_stop_patience": None,
            "protocol.name": "everything",
            "protocol.train_share": 1.0,
            "protocol.label_noise": 0.0,
            "protocol.monitor_test": False,
        }
    )
    if recipe.training.schedule == "plateau":
        recipe = recipe.with_changes({"training.schedule": "milestones", "training.milestones": _falls(evaluations)})
    return recipe


def _falls(evaluations: Sequence[Mapping[str, float | None]]) -> tuple[int, ...]:
    """Epochs after which the rate fell; an evaluation's row has the rate from before it."""
    return tuple(
        math.ceil(before["epoch"] or 0.0)
        for before, after in pairwise(evaluations)
        if (after["lr"] or 0.0) < (before["lr"] or 0.0)
    )


def _note(path: str, scores: Scores) -> str:
    if not scores.test:
        return f"{path} kept no classes for testing, so nothing is known of how well this encoder does on new ones."
    note = (
        f"These scores are of {path}: the same recipe on fewer images, scored on {scores.conditions.test_classes}. "
        f"This encoder was trained on those images too, so it has no score of its own."
    )
    if scores.chosen_on_test:
        note += " The epoch was chosen on the test classes, which flatters the scores."
    return note
