"""What people say of labels: "it is a robin", "it is not what it says". Kept beside an index's labels, not over them.

An index made before there were corrections gets their table with the first one.
"""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from nearkin.data.manifest import COLUMNS
from nearkin.errors import DataError
from nearkin.index.index import Index

_TABLE = "CREATE TABLE IF NOT EXISTS corrections(id INTEGER PRIMARY KEY, was TEXT, label TEXT, time TEXT NOT NULL)"


@dataclass(frozen=True)
class Correction:
    """An item is ``label``; None where it is only known that it is not what it was said to be."""

    id: int
    path: str | None
    was: str | None
    label: str | None
    time: str


def correct(index: Index, ids: Sequence[int], label: str | None) -> int:
    """Say what items are, in place of what was said of them before; returns how many corrections there are now."""
    items, now = index.items(ids), datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    table = index._items
    with table.writing():
        table.rows(_TABLE)
        for item in items:
            table.rows("INSERT OR REPLACE INTO corrections VALUES (?, ?, ?, ?)", [item.id, item.label, label, now])
    return len(corrections(index))


def corrections(index: Index) -> list[Correction]:
    """All of them, by id; those of items that have been removed since are gone with them."""
    if not _has_table(index):
        return []
    found = index._items.rows(
        "SELECT corrections.id, items.path, was, corrections.label, time FROM corrections JOIN items USING (id) "
        "ORDER BY corrections.id"
    )
    return [Correction(*row) for row in found]


def withdraw(index: Index, id: int) -> None:
    """Take a correction back."""
    if id not in {each.id for each in corrections(index)}:
        raise DataError(f"there is no correction of item {id} in {index.path}")
    with index._items.writing():
        index._items.rows("DELETE FROM corrections WHERE id = ?", [id])


def manifest(index: Index) -> str:
    """The index's images as a CSV that ``nearkin train --data`` reads, corrected.

    Left out is what training cannot use: items without a file, without a label, and those of which it is only known
    what they are not.
    """
    corrected = {each.id: each.label for each in corrections(index)}
    items = [item for item in index.items(index.ids()) if item.path is not None]
    names = _without_meaning(items[0].columns) if items else []
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["path", "label", *names])
    for item in items:
        if label := corrected.get(item.id, item.label):
            writer.writerow([item.path, label, *(item.columns[name] for name in names)])
    return text.getvalue()


def _without_meaning(names: Collection[str]) -> list[str]:
    """Columns that a manifest's reader takes for what they are: none that says path, label, split or id by its name."""
    by_key = {name.strip().casefold(): name for name in reversed(list(names))}
    kept = {name for key, name in by_key.items() if key not in COLUMNS}
    return [name for name in names if name in kept]


def _has_table(index: Index) -> bool:
    return bool(index._items.rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'corrections'"))
