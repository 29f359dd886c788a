"""Where runs and studies go that are given no folder: named after what decides them, and found again by it."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable
from pathlib import Path

from nearkin.errors import NearkinError
from nearkin.recipe import Recipe
from nearkin.recipe.identity import deciding, differences, fingerprint
from nearkin.runs.folder import RunFolder

RUNS = Path("runs")


def default_folder(recipe: Recipe) -> Path:
    """``runs/<data>-<objective>-<hash>``: what is decided by the same recipe always has the same folder."""
    usual = usual_folder(recipe)
    return found_again(usual, lambda folder: holds_run_of(folder, recipe))


def usual_folder(recipe: Recipe) -> Path:
    """The folder of a recipe that has not been run yet.

    >>> usual_folder(Recipe()) == usual_folder(Recipe().with_changes({"training.device": "cpu"}))
    True
    """
    method = [] if recipe.method.name == "plain" else [recipe.method.name]
    return RUNS / "-".join([data_name(recipe), recipe.objective.name, *method, fingerprint(recipe)])


def data_name(recipe: Recipe) -> str:
    """What the data of a recipe are called in the name of a folder."""
    return Path(recipe.data.source).stem or "data"


def holds_run_of(folder: Path, recipe: Recipe) -> bool:
    """Whether a folder holds a run that was decided by ``recipe``."""
    run = RunFolder(folder)
    try:
        return run.is_begun and not differences(deciding(run.recipe()), deciding(recipe))
    except NearkinError:
        return False


def holds_seeds_of(folder: Path, recipe: Recipe) -> bool:
    """Whether a folder holds runs of ``recipe``, with whatever seed and, of a reality check, whatever fold."""
    besides = ("training.seed", "protocol.fold", "protocol.validation_seed")
    wanted = deciding(recipe, besides=besides)
    for file in sorted(folder.glob("**/seed-*/recipe.yaml"))[:1]:
        try:
            return not differences(deciding(RunFolder(file.parent).recipe(), besides=besides), wanted)
        except NearkinError:
            return False
    return False


def found_again(usual: Path, is_same: Callable[[Path], bool]) -> Path:
    """``usual``, or a folder beside it whose name differs in the hash alone and that holds the same.

    Earlier versions made the hash of keys that decide nothing, too, such as the device.
    """
    if usual.exists():
        return usual
    stem = usual.name.rpartition("-")[0]
    for folder in sorted(usual.parent.glob(f"{glob.escape(stem)}-*")):
        if re.fullmatch("[0-9a-f]{8}", folder.name.rpartition("-")[2]) and is_same(folder):
            return folder
    return usual
