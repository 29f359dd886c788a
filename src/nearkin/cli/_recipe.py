"""From what a command line says to a recipe, and to the changes that go to many."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from nearkin.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearkin.recipe import Recipe


def changes_from(
    given: Sequence[str],
    *,
    data: str | None = None,
    epochs: int | None = None,
    root: Path | None = None,
    device: str | None = None,
    class_folders: str | None = None,
    flip: bool | None = None,
    eval_size: int | None = None,
) -> list[str]:
    """Options that stand for keys of a recipe, behind the changes that were given as such."""
    options = {
        "data.source": data,
        "data.root": None if root is None else str(root),
        "data.class_folders": class_folders,
        "training.epochs": epochs,
        "training.device": device,
        "protocol.flip": flip,
        "protocol.eval_size": eval_size,
    }
    return [*given, *(f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None)]


def split_arguments(arguments: Sequence[str] | None, *, what: str) -> tuple[str | None, list[str]]:
    """The name that is given, if any, and the changes ``key=value``."""
    names = [text for text in arguments or () if "=" not in text]
    if len(names) > 1:
        raise RecipeError(f"one {what} at a time, got {', '.join(names)}; changes to it are written key=value")
    return (names[0] if names else None), [text for text in arguments or () if "=" in text]


def recipe_from(
    arguments: Sequence[str] | None,
    data: str | None,
    console: Console,
    *,
    root: Path | None = None,
    device: str | None = None,
    class_folders: str | None = None,
    epochs: int | None = None,
) -> Recipe:
    """The recipe that a command line gives: a name and changes to it, or what suits the images of --data."""
    from nearkin.runs.defaults import own_photos_recipe
    from nearkin.training.recipes import load_recipe

    name, changes = split_arguments(arguments, what="recipe")
    changes = changes_from(changes, epochs=epochs, root=root, device=device, class_folders=class_folders)
    if name is not None:
        return load_recipe(name, changes_from(changes, data=data))
    if data is None:
        raise RecipeError("what to train? Name a recipe (nearkin recipes lists them) or give images with --data FOLDER")
    return own_photos_recipe(data, changes, say=console.print)
