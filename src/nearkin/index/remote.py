"""What engines that are servers share: a table of rows on the server, kept in step with the stored vectors.

A server is asked for a few more rows than are wanted, and its answer is used only where rounding cannot have changed
it. Otherwise the stored vectors are scanned exactly; so they are under a filter, which the server does not know, where
more rows are wanted than it gives, and where its number of rows shows that it lags behind.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from nearkin.disk import write_atomically
from nearkin.errors import DataError, notice
from nearkin.index.engine import RECALL_AT, Distance, recall_measure
from nearkin.index.exact_engine import ExactEngine
from nearkin.index.segments import Segments

SPARE = 16
"""Rows asked for beyond those wanted, as a server orders them in float32 or less."""
PATIENCE_READING, PATIENCE_WRITING = 10.0, 120.0
"""Seconds to wait for a server that answered before; one that never answered is not waited for."""
BATCH_BYTES = 8 << 20
_WINDOW = 8192
_QUERIES = 64

T = TypeVar("T")
Answer = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Row numbers, and how far each row is from the query."""


class Unreachable(Exception):  # noqa: N818
    """The server did not answer but may when asked again; the text gives the reason in one line."""


class Refused(Exception):  # noqa: N818
    """The server refused the request; the text gives the reason in one line."""


class RemoteTable(Protocol):
    """Rows of one index on a server. A method may raise :class:`Unreachable` or :class:`Refused`, and be repeated."""

    server: str
    """Its product name, and its address without a password."""
    most: int
    """Rows that it gives for a query."""
    exact_below: int
    """With fewer rows it compares a query with all of them."""

    def create(self) -> None:
        """Make the table unless it is there."""

    def count(self, first: int = 0) -> int:
        """How many rows there are from number ``first`` on, with all that was written before; 0 without a table."""

    def rows(self, first: int, last: int) -> NDArray[np.int64]:
        """The numbers of the rows from ``first`` up to ``last`` that are there, at most 8192."""

    def put(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Write rows durably, replacing those of the same number."""

    def delete(self, rows: NDArray[np.int64]) -> None:
        """Delete those of the rows that are there."""

    def delete_from(self, first: int) -> None:
        """Delete all rows from number ``first`` on."""

    def nearest(self, queries: NDArray[np.float32], limit: int, age: float) -> list[Answer]:
        """For each query rows, each once, and how far they are: the negative product, or the squared distance.

        All rows to be found were written at least ``age`` seconds ago.
        """

    def build(self) -> None:
        """Build its approximate index, and return once searches use it."""

    def about(self) -> Mapping[str, Any]:
        """The server's version and type of index, for people."""

    def drop(self) -> None:
        """Delete the table."""


class _Searched(NamedTuple):
    """The rows that are searched, how many of them are live, and since when."""

    rows: int
    live: int
    at: float


class RemoteEngine(ExactEngine):
    """An engine around a table of a server."""

    def __init__(self, table: RemoteTable, folder: Path, vectors: Segments, distance: Distance) -> None:
        super().__init__(folder, vectors, distance)
        self._table = table
        self._is_created = self._answered = False
        self._searched = _Searched(0, 0, time.monotonic())
        self._in_step: tuple[_Searched, bool] | None = None
        """Whether the server has the rows that were shown when it was last asked."""

    def add(self, first: int, vectors: NDArray[np.float32]) -> None:
        super().add(first, vectors)
        self._put(np.arange(first, first + len(vectors)), np.asarray(vectors, dtype=np.float32))

    def remove(self, rows: NDArray[np.int64]) -> None:
        super().remove(rows)
        self._call(lambda: self._table.delete(rows))

    def show(self, rows: int, live: NDArray[np.int64] | None = None) -> None:
        super().show(rows)
        self._searched = _Searched(rows, rows if live is None else len(live), time.monotonic())

    def rebuild(self, rows: int, live: NDArray[np.int64] | None = None) -> None:
        super().rebuild(rows)
        live = np.arange(rows) if live is None else live
        self._create()
        if self._counts(rows) != (len(live), 0):
            self._call(lambda: self._table.delete_from(rows))
            for first in range(0, rows, _WINDOW):
                self._repair(first, min(first + _WINDOW, rows), live)
        measured = self._read_state().get("measured", 0)
        if rows >= self._table.exact_below and not measured <= rows < 2 * max(measured, 1):
            self._call(self._table.build)
            self.show(rows, live)
            exact = ExactEngine(self._folder, self._vectors, self._distance)
            exact.show(rows)
            share = recall_measure(exact, self._vectors, self._distance, live, _QUERIES)(self)
            write_atomically(self._folder / "state", json.dumps({"measured": rows, "recall": share}).encode())

    def candidates(
        self, queries: NDArray[np.float64], k: int, allowed: NDArray[np.int64] | None
    ) -> list[NDArray[np.int64]]:
        shown = self._searched  # which another thread may replace meanwhile
        limit, is_filtered = k + SPARE, allowed is not None and len(allowed) < shown.live
        if is_filtered or not shown.live or limit > self._table.most or not self._is_in_step(shown):
            return super().candidates(queries, k, allowed)
        age = time.monotonic() - shown.at
        answers = self._call(lambda: self._table.nearest(queries.astype(np.float32), limit, age), PATIENCE_READING)
        candidates, unsettled = list[NDArray[np.int64]](), list[int]()
        for i, (numbers, distances) in enumerate(answers):
            usable = numbers < shown.rows
            if allowed is not None:  # another process may be removing rows
                usable &= np.isin(numbers, allowed)
            length = float(np.linalg.norm(queries[i]))
            if not self._is_settled(distances, usable, min(k, shown.live), limit, length):
                unsettled.append(i)
            candidates.append(numbers[usable])
        if unsettled:
            for i, rows in zip(unsettled, super().candidates(queries[unsettled], k, allowed), strict=True):
                candidates[i] = rows
        return candidates

    def status(self) -> Mapping[str, Any]:
        facts: dict[str, Any] = {"rows": self._searched.rows, "server": self._table.server}
        try:
            facts |= self._table.about()
            facts["rows on the server"] = self._table.count()
        except (Unreachable, Refused) as error:
            return facts | {"error": str(error)}
        state = self._read_state()
        return facts | ({f"recall@{RECALL_AT}": round(state["recall"], 4)} if "recall" in state else {})

    def discard(self) -> None:
        super().discard()
        self._is_created, self._in_step = False, None
        try:
            self._table.drop()
        except (Unreachable, Refused) as error:
            notice(f"what {self._table.server} holds of this index could not be deleted there ({error})")

    def _is_settled(
        self, distances: NDArray[np.float64], usable: NDArray[np.bool_], wanted: int, limit: int, length: float
    ) -> bool:
        """Whether rounding cannot have kept one of the nearest out of a server's answer.

        Either the server gave all it has, or the farthest row given is farther than the last one wanted by more than
        rounding: n products are added in float32 with an error of n·2⁻²⁴ of their absolute sum (Higham, Accuracy and
        Stability, 3.1), for both rows. That sum is at most ‖q‖ for vectors of length 1, else (‖q‖ + ‖x‖)².
        """
        near = np.sort(distances[usable])
        if len(near) < wanted:
            return False
        if len(distances) < limit:
            return True
        farthest = float(distances.max())
        size = length if self._distance == "cosine" else (2 * length + math.sqrt(max(farthest, 0.0))) ** 2
        return bool(farthest - near[wanted - 1] > (self._vectors.width + 4) * 2.0**-23 * size)

    def _put(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        self._create()
        size = max(1, BATCH_BYTES // (4 * self._vectors.width))
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            self._call(lambda part=part: self._table.put(rows[part], vectors[part]))  # type: ignore[misc]

    def _create(self) -> None:
        if not self._is_created:
            self._call(self._table.create)
            self._is_created = True

    def _counts(self, rows: int, patience: float = PATIENCE_WRITING) -> tuple[int, int]:
        """How many rows the server has of the first ``rows``, and behind."""
        behind = self._call(lambda: self._table.count(rows), patience)
        return self._call(self._table.count, patience) - behind, behind

    def _is_in_step(self, shown: _Searched) -> bool:
        if self._in_step is None or self._in_step[0] is not shown:
            self._in_step = (shown, self._counts(shown.rows, PATIENCE_READING)[0] == shown.live)
        return self._in_step[1]

    def _repair(self, first: int, last: int, live: NDArray[np.int64]) -> None:
        """Delete what should not be there of some rows, and send what is missing."""
        wanted = live[slice(*np.searchsorted(live, [first, last]))]
        stored = self._call(lambda: self._table.rows(first, last))
        if len(extra := np.setdiff1d(stored, wanted)):
            self._call(lambda: self._table.delete(extra))
        if len(missing := np.setdiff1d(wanted, stored)):
            self._put(missing, self._vectors.take(missing))

    def _call(self, request: Callable[[], T], patience: float = PATIENCE_WRITING) -> T:
        """The server's answer; waits for one that was there before."""
        patience = patience if self._answered else 0.0
        end, pause = time.monotonic() + patience, 0.0
        while True:
            try:
                answer = request()
            except Unreachable as error:
                if time.monotonic() >= end:
                    raise DataError(
                        f"{self._table.server} cannot be reached ({error}): start it, check address and password, or "
                        f"search without it: 'nearkin index … --engine exact' needs only the stored vectors"
                    ) from error
                if pause == 1.0:  # shorter pauses need no message
                    notice(f"{self._table.server} does not answer ({error}): waiting for it, {patience:.0f} s at most")
                time.sleep(pause)
                pause = min(pause + 0.25, 2.0)
            except Refused as error:
                raise DataError(f"{self._table.server} refused: {error}") from error
            else:
                self._answered = True
                return answer

    def _read_state(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self._folder / "state").read_text(encoding="utf-8")))
        except (OSError, ValueError):  # missing or damaged: it is measured again
            return {}
