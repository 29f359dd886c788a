"""The items of an index in SQLite: its images, the files they come from, people's corrections, facts about the index.

Names that users give never become SQL: columns of a manifest are called ``c0``, ``c1``, ….
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.disk import writing
from nearkin.errors import DataError, OutputError
from nearkin.index.filters import Field, Where, as_number, condition

NAME = "items.sqlite"
_BUILT_IN = {"id": Field("id", True), "label": Field("label", False), "path": Field("path", False)}
_SCHEMA = """
CREATE TABLE facts(key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE items(id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, path TEXT, label TEXT, fingerprint BLOB);
CREATE INDEX items_by_label ON items(label);
CREATE INDEX items_by_path ON items(path);
CREATE TABLE thumbnails(id INTEGER PRIMARY KEY, image BLOB NOT NULL);
CREATE TABLE files(path TEXT PRIMARY KEY, size INTEGER, changed INTEGER, id INTEGER, reason TEXT);
CREATE INDEX files_by_item ON files(id);
CREATE TABLE columns(number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, is_number INTEGER NOT NULL);
CREATE TABLE corrections(id INTEGER PRIMARY KEY, was TEXT, label TEXT, time TEXT NOT NULL);
"""


class MissingItemError(DataError):
    """An item or a correction that an index does not have."""


@dataclass(frozen=True)
class Item:
    """An image of an index; ``columns`` are those of its manifest next to path and label."""

    id: int
    path: str | None
    label: str | None
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class File:
    """A file that was read: its size, its time of change, and its item or the reason why it has none."""

    path: str
    size: int
    changed: int
    id: int | None
    reason: str | None = None


class Items:
    """One connection to an index's database, for any thread; a writer holds the index's lock."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30.0)
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("PRAGMA secure_delete=ON")  # thumbnails of removed items are overwritten
        self._local_changes = 0

    @classmethod
    def create(cls, path: Path, facts: Mapping[str, Any]) -> Items:
        """A new database, which is there whole or not at all."""
        half_done = path.with_name(f".{path.name}.new")
        for left in path.parent.glob(f"{half_done.name}*"):
            left.unlink()
        with writing(path), contextlib.closing(cls(half_done)) as items, items.writing():
            for statement in _SCHEMA.split(";"):
                items._connection.execute(statement)
            for key, value in facts.items():
                items.set_fact(key, value)
        os.replace(half_done, path)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Items:
        try:
            items = cls(path)
            items.fact("format")
            with contextlib.suppress(sqlite3.OperationalError):  # a folder that can only be read
                items._connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.Error as error:
            raise DataError(f"{path} cannot be read as an index ({error}): give another, or make it again") from error
        return items

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction: all of what is written within, or nothing."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield
                    self._connection.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:  # a full disk ends it by itself
                        self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.OperationalError as error:
                raise OutputError(f"cannot write to the index: {error}. What was there before is untouched") from error
            finally:
                self._local_changes += 1

    def version(self) -> tuple[int, int]:
        """A value that differs after every change, by this process or another."""
        return self.rows("PRAGMA data_version")[0][0], self._local_changes

    def fact(self, key: str) -> Any:
        """A fact about the index; None where it is not set."""
        rows = self.rows("SELECT value FROM facts WHERE key = ?", [key])
        return json.loads(rows[0][0]) if rows else None

    def set_fact(self, key: str, value: Any) -> None:
        self.rows("INSERT OR REPLACE INTO facts VALUES (?, ?)", [key, json.dumps(value)])

    def columns(self) -> dict[str, Field]:
        """The columns that manifests brought."""
        columns = self.rows("SELECT name, number, is_number FROM columns ORDER BY number")
        return {name: Field(f"c{number}", bool(is_number)) for name, number, is_number in columns}

    def fields(self) -> dict[str, Field]:
        """The fields to filter and group by: id, label, path, and the columns."""
        return _BUILT_IN | self.columns()

    def ids(self, where: Where | None = None) -> NDArray[np.int64]:
        """Items that are there and meet ``where``, ascending."""
        text, parameters = condition(where or {}, self.fields())
        rows = self.rows(f"SELECT id FROM items WHERE {text} ORDER BY id", parameters)
        return np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))

    def get(self, ids: Iterable[int]) -> dict[int, Item]:
        """Items by id; those that are not there are left out."""
        columns = self.columns()
        selected = ", ".join(["id", "path", "label", *(field.column for field in columns.values())])
        text = f"SELECT {selected} FROM items WHERE id IN (SELECT value FROM json_each(?))"
        rows = self.rows(text, [_listed(ids)])
        return {row[0]: Item(row[0], row[1], row[2], dict(zip(columns, row[3:], strict=True))) for row in rows}

    def thumbnail(self, id: int) -> bytes | None:
        rows = self.rows("SELECT image FROM thumbnails WHERE id = ?", [int(id)])
        return rows[0][0] if rows else None

    def fingerprints(self, ids: Iterable[int]) -> dict[int, int]:
        """The perceptual hashes of items; too small or uniform images have none."""
        text = "SELECT id, fingerprint FROM items WHERE fingerprint NOT NULL AND id IN (SELECT value FROM json_each(?))"
        return {id: int.from_bytes(fingerprint, "big") for id, fingerprint in self.rows(text, [_listed(ids)])}

    def ids_by_hash(self, hashes: Sequence[bytes]) -> dict[bytes, int]:
        """The items whose content has one of the hashes."""
        rows = [self.rows("SELECT hash, id FROM items WHERE hash = ?", [digest]) for digest in hashes]
        return {row[0][0]: row[0][1] for row in rows if row}

    def file(self, path: str) -> File | None:
        rows = self.rows("SELECT path, size, changed, id, reason FROM files WHERE path = ?", [path])
        return File(*rows[0]) if rows else None

    def contents(self, ids: Iterable[int]) -> dict[int, tuple[bytes, list[str]]]:
        """For each item the hash of its content and the files with it, the item's path first."""
        wanted = [_listed(ids)]
        rows = self.rows("SELECT id, hash, path FROM items WHERE id IN (SELECT value FROM json_each(?))", wanted)
        contents: dict[int, tuple[bytes, list[str]]] = {row[0]: (row[1], [row[2]] if row[2] else []) for row in rows}
        copies = "SELECT id, path FROM files WHERE id IN (SELECT value FROM json_each(?)) ORDER BY path"
        for id, path in self.rows(copies, wanted):
            if id in contents and path not in contents[id][1]:
                contents[id][1].append(path)
        return contents

    def add_columns(self, rows: Sequence[Mapping[str, str]]) -> None:
        """Add the columns of a manifest's rows that are new; one holds numbers if all of its values are numbers."""
        columns = self.columns()
        for name in rows[0] if rows else ():
            values = [row[name] for row in rows if row[name]]
            wrong = next((value for value in values if as_number(value) is None), None)
            if name in _BUILT_IN:
                raise DataError(f"a column of a manifest cannot be called {name!r}: rename it")
            if name not in columns:
                number, is_number = len(columns), wrong is None and bool(values)
                self.rows("INSERT INTO columns VALUES (?, ?, ?)", [number, name, is_number])
                self.rows(f"ALTER TABLE items ADD COLUMN c{number}")
                columns[name] = Field(f"c{number}", is_number)
            elif columns[name].is_number and wrong is not None:
                raise DataError(f"the column {name!r} holds numbers in this index, and {wrong!r} is none: rename it")

    def insert(self, item: Item, hash: bytes, thumbnail: bytes, fingerprint: int | None) -> None:
        """Write a new item, whose id is the row of its vector."""
        stored = None if fingerprint is None else fingerprint.to_bytes(8, "big")
        values = [item.id, hash, item.path, item.label, stored]
        self.rows("INSERT INTO items(id, hash, path, label, fingerprint) VALUES (?, ?, ?, ?, ?)", values)
        self.rows("INSERT INTO thumbnails VALUES (?, ?)", [item.id, thumbnail])
        self.update(item.id, item.label, item.columns)

    def update(self, id: int, label: str | None, columns: Mapping[str, str]) -> None:
        """Change an item's label and columns; None keeps the old label."""
        fields, parts, parameters = self.columns(), ["label = coalesce(?, label)"], list[Any]([label])
        for name, text in columns.items():
            parts.append(f"{fields[name].column} = ?")
            value = as_number(text) if fields[name].is_number else text
            parameters.append(value if text else None)
        self.rows(f"UPDATE items SET {', '.join(parts)} WHERE id = ?", [*parameters, id])

    def move(self, id: int, path: str) -> None:
        """Change the path of an item."""
        self.rows("UPDATE items SET path = ? WHERE id = ?", [path, id])

    def record_file(self, file: File) -> int | None:
        """Store what is known of a file; returns the item that is deleted because this was its last file."""
        before = self.file(file.path)
        self.rows("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", astuple(file))
        if before is None or before.id in (None, file.id):
            return None
        if copies := self.rows("SELECT path FROM files WHERE id = ? ORDER BY path LIMIT 1", [before.id]):
            self.move(before.id, copies[0][0])
            return None
        self.delete([before.id])
        return before.id

    def delete(self, ids: Sequence[int]) -> None:
        for table in ("items", "thumbnails", "files", "corrections"):
            self.rows(f"DELETE FROM {table} WHERE id IN (SELECT value FROM json_each(?))", [_listed(ids)])

    def coverage(self) -> tuple[int, int, int, tuple[tuple[str, str], ...]]:
        """The numbers of files, of files with an item and of these items; the unreadable files and the reasons."""
        files, embedded, distinct = self.rows("SELECT count(*), count(id), count(DISTINCT id) FROM files")[0]
        failed = self.rows("SELECT path, reason FROM files WHERE reason IS NOT NULL ORDER BY path")
        return files, embedded, distinct, tuple(failed)

    def rows(self, text: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """The result of a statement in SQL."""
        with self._lock:
            return self._connection.execute(text, parameters).fetchall()


def _listed(ids: Iterable[int]) -> str:
    """Ids as one parameter of a statement, which SQLite's json_each spreads."""
    return json.dumps([int(id) for id in ids])


def vectors_folder(index: Path, items: Items) -> Path:
    """Where an index's vectors and its engine's files are: in its folder, or after an upgrade in a subfolder."""
    return index / (items.fact("vectors") or "")
