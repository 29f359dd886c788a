"""One decoded image into an index, with what is said of it; it has no file, and so no path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearkin.index.adding import Source, Sources, hash_of_pixels
from nearkin.index.index import Index


@dataclass(frozen=True)
class Stored:
    """Where an image is now; ``added`` is False where its content was there already."""

    id: int
    added: bool


def store(index: Index, pixels: NDArray[np.uint8], label: str | None, columns: Mapping[str, str]) -> Stored:
    """Add an image ``[H, W, 3]`` that was decoded as the index's encoder wants it; numbers in columns are text here."""
    source = Source(None, 0, label, columns)
    added = index.add(Sources("uploads", [pixels], [source], {name: [value] for name, value in columns.items()}))
    known = index._items.known([digest := hash_of_pixels(pixels)])
    return Stored(known[digest], added.added == 1)
