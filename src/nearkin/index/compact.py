"""The vectors of removed items taken off the disk, in one commit as an upgrade is.

An item's id is its vector's row, and stays: what is left is written to a folder of its own with zeros in place of what
was removed. Where long runs were removed, as a whole folder of photos is, nothing is written at all and files have
holes, so that the room is free again.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearkin.disk import check_room
from nearkin.errors import OutputError
from nearkin.index.engine import ENGINES, new_identity
from nearkin.index.index import Index
from nearkin.index.items import NAME, Items, vectors_folder
from nearkin.index.segments import Segments
from nearkin.index.upgrade import COMPACTED, remove_vectors
from nearkin.runs.lock import sole_writer_of

BLOCK = 1024
"""Rows that are written together, or left out together where all of them were removed."""


@dataclass(frozen=True)
class Compacted:
    """What a compaction came to."""

    items: int
    removed: int
    """Rows without an item, whose vectors are gone."""
    before: int
    """Bytes that items, vectors and engine took on the disk."""
    after: int


def compact(folder: str | Path, *, progress: Callable[[int, int], None] | None = None) -> Compacted:
    """Take the vectors of removed items off the disk for good; ids, labels and all else of the others stay.

    Whoever has the index open then is told to open it again. Killed at any moment, it is the index as it was or as it
    is to be; the same call again puts away what was left.
    """
    index = Index.open(folder)
    with sole_writer_of(index.path):
        items = Items.open(index.path / NAME)
        try:
            place = vectors_folder(index.path, items)
            before = _on_disk(index.path, place)
            _put_away(index.path, items, place)
            ids, rows = items.ids(), int(items.fact("rows"))
            if len(ids) < rows:
                check_room(index.path, len(ids) * index.dim * 5, "the vectors that stay")
                new = index.path / f"{COMPACTED}{new_identity()}"
                _copy(Segments(place / "vectors", index.dim, np.float32), new, ids, rows, progress)
                with items.writing():
                    items.set_fact("vectors", new.name)
                    items.set_fact("replaced", "" if place == index.path else place.name)
                remove_vectors(index.path, place)
                try:
                    items.rows("VACUUM")  # thumbnails of removed items lie in pages that are free
                except sqlite3.OperationalError as error:
                    raise OutputError(
                        f"the removed vectors of {index.path} are gone, their thumbnails are not ({error}): make room "
                        f"for another copy of {NAME}, and compact again"
                    ) from error
            name, place = items.fact("engine"), vectors_folder(index.path, items)
        finally:
            items.close()
            index.close()
    if name in ENGINES:  # a server's copy is not touched: it has let go of removed rows already
        index = Index.open(index.path)
        index.rebuild_engine()
        index.close()
    return Compacted(len(ids), rows - len(ids), before, _on_disk(index.path, place))


def _copy(
    old: Segments, folder: Path, ids: NDArray[np.int64], rows: int, progress: Callable[[int, int], None] | None
) -> None:
    old.show(rows)
    new = Segments(folder / "vectors", old.width, old.dtype, rows_per_segment=old.rows_per_segment)
    is_there = np.zeros(rows, dtype=bool)
    is_there[ids] = True
    for first in range(0, rows, BLOCK):
        last = min(first + BLOCK, rows)
        ends_file = last == rows or last % old.rows_per_segment == 0
        if is_there[first:last].any() or ends_file:  # a file must have its whole length
            block = old.take(np.arange(first, last))
            block[~is_there[first:last]] = 0
            new.append(first, block)
        if progress is not None:
            progress(last, rows)


def _put_away(folder: Path, items: Items, place: Path) -> None:
    """What compactions left that were killed: new vectors before the commit, old ones after it."""
    for left in folder.glob(f"{COMPACTED}*"):
        if left != place:
            shutil.rmtree(left, ignore_errors=True)
    if (replaced := items.fact("replaced")) is not None and folder / replaced != place:
        remove_vectors(folder, folder / replaced)


def _on_disk(index: Path, place: Path) -> int:
    """Bytes that items, vectors and the engine take, without the holes in files."""
    files = [*index.glob(f"{NAME}*"), *(place / "vectors").rglob("*"), *(place / "engine").rglob("*")]
    found = [path.stat() for path in files if path.is_file()]
    return sum(getattr(each, "st_blocks", -(-each.st_size // 512)) * 512 for each in found)
