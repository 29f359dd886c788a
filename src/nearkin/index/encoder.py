"""The encoder of an index, and no other: vectors of two encoders do not compare."""

from __future__ import annotations

from pathlib import Path

from nearkin.errors import DataError
from nearkin.index.items import Items
from nearkin.runs.model import Model, load_again


def own_encoder(folder: Path, items: Items) -> Model:
    """The encoder that the index in ``folder`` was made with, loaded from where it was then."""
    try:
        model = load_again(items.fact("model"), items.fact("model_options") or {})
    except DataError as error:
        raise DataError(
            f"the encoder of {folder} cannot be loaded: {error}. Say where it is now: "
            f"Index.open(folder, model=nearkin.load(RUN)), or --run RUN"
        ) from error
    check_same_encoder(folder, items, model)
    return model


def check_same_encoder(folder: Path, items: Items, model: Model) -> None:
    """Refuse an encoder whose vectors do not compare with those of the index."""
    if model.identity != items.fact("encoder"):
        asked = "".join(f", {key} {value}" for key, value in (items.fact("model_options") or {}).items())
        raise DataError(
            f"{folder} was made with another encoder than {model.path} is now, and their vectors do not compare: make "
            f"another index with it, or give the run that made this one ({items.fact('model')}{asked})"
        )
