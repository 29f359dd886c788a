"""What engines that are servers have in common: a table of rows on the server, kept in step with the stored vectors.

A server is asked for a few more rows than are wanted, and its answer is taken where it settles the question. Where it
does not (too few of them are allowed, or those behind the last one wanted are as near as float32 can tell), and where
there is no use in asking (a filter leaves few rows, or more are wanted than a server gives), the stored vectors are
scanned by the exact engine, whose codes are kept beside. So there are never fewer rows than wanted, whatever a server
does, and one that lags behind is noticed by its number of rows and not believed.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from nearkin.disk import make_folder, write_atomically
from nearkin.errors import DataError, notice
from nearkin.index.engine import Distance
from nearkin.index.exact import ExactEngine
from nearkin.index.queries import nearest_of
from nearkin.index.recall import K, held_out, recall
from nearkin.index.segments import Segments

LEAST_SHARE = 0.05
"""Below this share of rows that a filter allows they are scanned exactly instead."""
SPARE = 16
"""More rows than are wanted, as a server's own order is that of float32 or less."""
PATIENCE_READING, PATIENCE_WRITING = 10.0, 120.0
"""Seconds that a server which was there before may take to come back; one that never was is not waited for."""
BATCH_BYTES = 8 << 20
_WINDOW = 8192
_QUERIES = 64

T = TypeVar("T")
Found = tuple[NDArray[np.int64], NDArray[np.float64]]


class Lost(Exception):  # noqa: N818
    """The server did not answer, but may when asked again; the text says why, in one line."""


class Refused(Exception):  # noqa: N818
    """The server answered that it does not do that; the text says why, in one line."""


class Table(Protocol):
    """Rows of one index on a server. Every method may raise :class:`Lost` or :class:`Refused`, and be called again."""

    server: str
    """What kind of server it is, and its address without a password."""
    most: int
    """Rows that it gives at most for a query."""
    exact_below: int
    """With fewer rows than this it compares a query with all of them."""

    def create(self) -> None:
        """Make the table unless it is there."""

    def count(self, first: int = 0) -> int:
        """How many rows there are from number ``first`` on, with all that was written before; 0 without a table."""

    def rows(self, first: int, last: int) -> NDArray[np.int64]:
        """The numbers of the rows from ``first`` up to ``last`` that are there, at most 8192."""

    def put(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Write rows, in place of those of the same number; on return they are safe there."""

    def delete(self, rows: NDArray[np.int64]) -> None:
        """Delete rows, where they are there."""

    def delete_from(self, first: int) -> None:
        """Delete all rows from number ``first`` on."""

    def nearest(self, queries: NDArray[np.float32], limit: int, age: float) -> list[Found]:
        """For each query rows, each once, and how far they are: the negative product, or the squared distance.

        The youngest of the rows that are to be found was written at least ``age`` seconds ago.
        """

    def build(self) -> None:
        """Make its approximate index of what is there, and return once it is searched by."""

    def about(self) -> Mapping[str, Any]:
        """Version of the server and kind of index, for people."""

    def drop(self) -> None:
        """Delete the table."""


@dataclass(frozen=True)
class _Shown:
    """The rows that are searched, how many of them were removed, and since when."""

    rows: int
    removed: int
    at: float

    @property
    def held(self) -> int:
        return self.rows - self.removed


class RemoteEngine:
    """An engine around a table of a server."""

    def __init__(self, table: Table, folder: Path, vectors: Segments, distance: Distance) -> None:
        self._table, self._folder, self._vectors, self._distance = table, folder, vectors, distance
        self._exact = ExactEngine(folder / "exact", vectors, distance)
        self._is_created = self._was_there = False
        self._shown = _Shown(0, 0, time.monotonic())
        self._in_step: tuple[_Shown, bool] | None = None
        """Whether the server has the rows that were shown when it was last asked."""

    def add(self, first: int, vectors: NDArray[np.float32]) -> None:
        self._exact.add(first, vectors)
        self._put(np.arange(first, first + len(vectors)), np.asarray(vectors, dtype=np.float32))

    def remove(self, rows: NDArray[np.int64]) -> None:
        # Noted first: what the server lacks is sent again unless it is known to be gone.
        self._note_removed(np.union1d(self._read_removed(), rows))
        self._asked(lambda: self._table.delete(rows), PATIENCE_WRITING)

    def show(self, rows: int) -> None:
        self._exact.show(rows)
        removed = self._read_removed()
        self._shown = _Shown(rows, int((removed < rows).sum()), time.monotonic())

    def rebuild(self, rows: int) -> None:
        self._exact.rebuild(rows)
        removed = self._read_removed()
        if len(removed) and removed[-1] >= rows:
            removed = removed[removed < rows]
            self._note_removed(removed)
        self._create()
        if self._counts(rows, PATIENCE_WRITING) != (rows - len(removed), 0):
            self._asked(lambda: self._table.delete_from(rows), PATIENCE_WRITING)
            for first in range(0, rows, _WINDOW):
                self._mend(first, min(first + _WINDOW, rows), removed)
        measured = self._read_state().get("measured", 0)
        if rows >= self._table.exact_below and not measured <= rows < 2 * max(measured, 1):
            self._asked(self._table.build, PATIENCE_WRITING)
            self._write_state({"measured": rows, "recall": self._recall(rows, removed)})

    def candidates(
        self, queries: NDArray[np.float64], k: int, allowed: NDArray[np.int64] | None
    ) -> list[NDArray[np.int64]]:
        shown = self._shown  # which another thread may replace meanwhile
        among = shown.held if allowed is None else len(allowed)
        limit = self._limit(k, among, shown.held)
        if not limit or not self._is_in_step(shown):
            return self._exact.candidates(queries, k, allowed)
        asked = queries.astype(np.float32)
        age = time.monotonic() - shown.at
        answers = self._asked(lambda: self._table.nearest(asked, limit, age), PATIENCE_READING)
        found, open_ = list[NDArray[np.int64]](), list[int]()
        for place, (numbers, far) in enumerate(answers):
            usable = numbers < shown.rows
            if allowed is not None:
                places = np.searchsorted(allowed, numbers)
                usable &= allowed[np.minimum(places, len(allowed) - 1)] == numbers
            length = float(np.linalg.norm(queries[place]))
            if not self._is_settled(far, usable, min(k, among), limit, length):
                open_.append(place)
            found.append(numbers[usable])
        if open_:
            for place, each in zip(open_, self._exact.candidates(queries[open_], k, allowed), strict=True):
                found[place] = each
        return found

    def status(self) -> Mapping[str, Any]:
        told: dict[str, Any] = {"rows": self._shown.rows, "server": self._table.server}
        try:
            told |= self._table.about()
            told["rows on the server"] = self._table.count()
        except (Lost, Refused) as error:
            return told | {"error": str(error)}
        state = self._read_state()
        return told | ({f"recall@{K}": round(state["recall"], 4)} if "recall" in state else {})

    def discard(self) -> None:
        self._exact.discard()
        self._is_created, self._in_step = False, None
        try:
            self._table.drop()
        except (Lost, Refused) as error:
            notice(f"what {self._table.server} holds of this index could not be deleted there ({error})")
        for name in ("removed", "state"):
            (self._folder / name).unlink(missing_ok=True)

    def _limit(self, k: int, among: int, held: int) -> int:
        """How many rows to ask the server for, or 0 where a scan serves better."""
        if not among or among < LEAST_SHARE * held:
            return 0
        wanted = k + SPARE
        limit = wanted if among == held else math.ceil(2 * wanted * held / among)
        return limit if limit <= self._table.most else 0

    def _is_settled(
        self, far: NDArray[np.float64], usable: NDArray[np.bool_], wanted: int, limit: int, length: float
    ) -> bool:
        """Whether the nearest that are wanted are among a server's answer as far as it can tell.

        They are where all it has was given, or the farthest row given is farther than the last one wanted by more
        than rounding: n products are added in float32 with an error of n·2⁻²⁴ of their absolute sum (Higham, Accuracy
        and Stability, 3.1), twice, as it concerns both rows. That sum is at most ‖q‖ for vectors of length 1, and
        (‖q‖ + ‖x‖)² for squared distances, which some servers take from lengths and products.
        """
        near = np.sort(far[usable])
        if len(near) < wanted:
            return False
        if len(far) < limit:
            return True
        farthest = float(far.max())
        size = length if self._distance == "cosine" else (2 * length + math.sqrt(max(farthest, 0.0))) ** 2
        return bool(farthest - near[wanted - 1] > (self._vectors.width + 4) * 2.0**-23 * size)

    def _put(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        self._create()
        size = max(1, BATCH_BYTES // (4 * self._vectors.width))
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            self._asked(lambda part=part: self._table.put(rows[part], vectors[part]), PATIENCE_WRITING)  # type: ignore[misc]

    def _create(self) -> None:
        if not self._is_created:
            self._asked(self._table.create, PATIENCE_WRITING)
            self._is_created = True

    def _counts(self, rows: int, patience: float) -> tuple[int, int]:
        """How many rows the server has of the first ``rows``, and behind."""
        behind = self._asked(lambda: self._table.count(rows), patience)
        return self._asked(self._table.count, patience) - behind, behind

    def _is_in_step(self, shown: _Shown) -> bool:
        if self._in_step is None or self._in_step[0] is not shown:
            self._in_step = (shown, self._counts(shown.rows, PATIENCE_READING)[0] == shown.held)
        return self._in_step[1]

    def _mend(self, first: int, last: int, removed: NDArray[np.int64]) -> None:
        """Delete what should not be there of some rows, and send what is missing."""
        wanted = np.setdiff1d(np.arange(first, last), removed)
        there = self._asked(lambda: self._table.rows(first, last), PATIENCE_WRITING)
        if len(extra := np.setdiff1d(there, wanted)):
            self._asked(lambda: self._table.delete(extra), PATIENCE_WRITING)
        if len(missing := np.setdiff1d(wanted, there)):
            self._put(missing, self._vectors.take(missing))

    def _recall(self, rows: int, removed: NDArray[np.int64]) -> float:
        """Of the ten nearest of some queries that are not stored, the share that is found."""
        self.show(rows)
        live = np.setdiff1d(np.arange(rows), removed)
        allowed = live if len(removed) else None
        queries = held_out(self._exact, self._vectors, self._distance, live, _QUERIES)
        true, mine = (
            [scores for _, scores in nearest_of(engine, self._vectors, self._distance, queries, K, allowed)]
            for engine in (self._exact, self)
        )
        return recall(true, mine)

    def _asked(self, question: Callable[[], T], patience: float) -> T:
        """What the server says, which may have to come back first."""
        patience = patience if self._was_there else 0.0
        end, pause = time.monotonic() + patience, 0.0
        while True:
            try:
                answer = question()
            except Lost as error:
                if time.monotonic() >= end:
                    raise DataError(
                        f"{self._table.server} cannot be reached ({error}): start it, or check address and password; "
                        f"or search without it: 'nearkin index … --engine exact' builds the index's own engine from "
                        f"the stored vectors, and nothing is lost"
                    ) from error
                if pause == 1.0:  # which is no moment any more
                    notice(f"{self._table.server} does not answer ({error}): waiting for it, {patience:.0f} s at most")
                time.sleep(pause)
                pause = min(pause + 0.25, 2.0)
            except Refused as error:
                raise DataError(f"{self._table.server} refused: {error}") from error
            else:
                self._was_there = True
                return answer

    def _read_removed(self) -> NDArray[np.int64]:
        """Rows that are gone for good, ascending; of a damaged file some, and the others are sent again, in vain."""
        path = self._folder / "removed"
        content = path.read_bytes() if path.exists() else b""
        return np.frombuffer(content[: len(content) // 8 * 8], dtype="<i8").astype(np.int64)

    def _note_removed(self, rows: NDArray[np.int64]) -> None:
        make_folder(self._folder)
        write_atomically(self._folder / "removed", rows.astype("<i8").tobytes())

    def _read_state(self) -> dict[str, Any]:
        try:
            state = json.loads((self._folder / "state").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def _write_state(self, state: Mapping[str, Any]) -> None:
        make_folder(self._folder)
        write_atomically(self._folder / "state", json.dumps(state).encode())
