"""Corrections of labels by people, stored next to an index's labels, which stay as they are."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Sequence
from dataclasses import dataclass

from nearkin.data.manifest import COLUMNS
from nearkin.index.index import Index
from nearkin.index.items import MissingItemError


@dataclass(frozen=True)
class Correction:
    """The right ``label`` of an item; None if it is only known that ``was`` is wrong."""

    id: int
    path: str | None
    was: str | None
    label: str | None
    time: str


def correct(index: Index, ids: Sequence[int], label: str | None) -> int:
    """Correct the label of items, replacing earlier corrections; returns the number of all corrections."""
    items, now = index.items(ids), datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    table = index._items
    with table.writing():
        for item in items:
            table.rows("INSERT OR REPLACE INTO corrections VALUES (?, ?, ?, ?)", [item.id, item.label, label, now])
    return len(corrections(index))


def corrections(index: Index) -> list[Correction]:
    """All corrections, by id."""
    rows = index._items.rows(
        "SELECT corrections.id, items.path, was, corrections.label, time FROM corrections JOIN items USING (id) "
        "ORDER BY corrections.id"
    )
    return [Correction(*row) for row in rows]


def withdraw(index: Index, id: int) -> None:
    """Delete a correction."""
    if id not in {correction.id for correction in corrections(index)}:
        raise MissingItemError(f"there is no correction of item {id} in {index.path}")
    with index._items.writing():
        index._items.rows("DELETE FROM corrections WHERE id = ?", [id])


def manifest(index: Index) -> str:
    """The index's images with corrected labels, as a CSV that ``nearkin train --data`` reads.

    It leaves out items without a file or a right label, and columns whose name has another meaning in a manifest: path,
    label, split or id.
    """
    corrected = {correction.id: correction.label for correction in corrections(index)}
    items = [item for item in index.items(index.ids()) if item.path is not None]
    first_of_name: dict[str, str] = {}
    for name in items[0].columns if items else ():
        first_of_name.setdefault(name.strip().casefold(), name)
    names = [name for key, name in first_of_name.items() if key not in COLUMNS]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["path", "label", *names])
    for item in items:
        if label := corrected.get(item.id, item.label):
            writer.writerow([item.path, label, *(item.columns[name] for name in names)])
    return text.getvalue()
