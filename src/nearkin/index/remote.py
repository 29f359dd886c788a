"""What engines on servers share: a table of rows on the server, kept in step with the stored vectors.

A search asks the server for a few more rows than it needs, and uses the answer only if rounding cannot have changed it.
Otherwise the stored vectors are scanned exactly. They are also scanned under a filter, which the server does not know,
if more rows are wanted than the server gives, and if its number of rows shows that it lags behind.
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

from nearkin.disk import write_atomically
from nearkin.errors import DataError, notice
from nearkin.evaluation.neighbours import Distance, Floats, Ints, Singles
from nearkin.index.engine import RECALL_AT, recall_measure
from nearkin.index.exact_engine import ExactEngine
from nearkin.index.segments import Segments

SPARE = 16
"""Extra rows to ask for, as a server orders rows in float32 or less."""
PATIENCE_READING, PATIENCE_WRITING = 10.0, 120.0
"""Seconds to wait for a server that has answered before; otherwise there is no waiting."""
BATCH_BYTES = 8 << 20
_WINDOW = 8192
_QUERIES = 64

T = TypeVar("T")
Answer = tuple[Ints, Floats]
"""Numbers of rows, and their distances from the query."""


class Unreachable(Exception):  # noqa: N818
    """The server did not answer, but may if asked again; the text is the reason in one line."""


class Refused(Exception):  # noqa: N818
    """The server refused the request; the text is the reason in one line."""


class RemoteTable(Protocol):
    """Rows of one index on a server. Methods raise :class:`Unreachable` or :class:`Refused`, and may be repeated."""

    server: str
    """The product and the address, without a password."""
    most: int
    """The most rows that it gives for a query."""
    exact_below: int
    """With fewer rows than this, it compares a query with all of them."""

    def create(self) -> None:
        """Make the table if it does not exist."""

    def count(self, first: int = 0) -> int:
        """How many rows there are from number ``first`` on, including all recent writes; 0 without a table."""

    def rows(self, first: int, last: int) -> Ints:
        """The numbers of the stored rows from ``first`` up to ``last``, at most 8192."""

    def put(self, rows: Ints, vectors: Singles) -> None:
        """Write rows durably, replacing those with the same numbers."""

    def delete(self, rows: Ints) -> None:
        """Delete rows; those that do not exist are ignored."""

    def delete_from(self, first: int) -> None:
        """Delete all rows from number ``first`` on."""

    def nearest(self, queries: Singles, limit: int, age: float) -> list[Answer]:
        """For each query different rows and their distances: minus the product, or the squared distance.

        All rows to be found were written at least ``age`` seconds ago.
        """

    def build(self) -> None:
        """Build the approximate index; returns once searches use it."""

    def about(self) -> Mapping[str, Any]:
        """The server's version and type of index, to be shown."""

    def drop(self) -> None:
        """Delete the table."""


@dataclass
class _Shown:
    """The rows that are searched, how many of them are live, and since when."""

    rows: int
    live: int
    at: float
    is_in_step: bool | None = None
    """Whether the server has these rows; None until it was asked."""


class RemoteEngine(ExactEngine):
    """An engine around a table of a server."""

    def __init__(self, table: RemoteTable, folder: Path, vectors: Segments, distance: Distance) -> None:
        super().__init__(folder, vectors, distance)
        self._table = table
        self._is_created = self._answered = False
        self._on_server = _Shown(0, 0, time.monotonic())

    def add(self, first: int, vectors: Singles) -> None:
        super().add(first, vectors)
        self._put(np.arange(first, first + len(vectors)), np.asarray(vectors, dtype=np.float32))

    def remove(self, rows: Ints) -> None:
        super().remove(rows)
        self._call(self._table.delete, rows)

    def show(self, rows: int, live: Ints | None = None) -> None:
        super().show(rows)
        self._on_server = _Shown(rows, rows if live is None else len(live), time.monotonic())

    def rebuild(self, rows: int, live: Ints | None = None) -> None:
        super().rebuild(rows)
        live = np.arange(rows) if live is None else live
        self._create()
        if self._counts(rows) != (len(live), 0):
            self._call(self._table.delete_from, rows)
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

    def candidates(self, queries: Floats, k: int, allowed: Ints | None) -> list[Ints]:
        shown = self._on_server  # once, as another thread may replace it
        limit, is_filtered = k + SPARE, allowed is not None and len(allowed) < shown.live
        if is_filtered or not shown.live or limit > self._table.most:
            return super().candidates(queries, k, allowed)
        if shown.is_in_step is None:
            shown.is_in_step = self._counts(shown.rows, PATIENCE_READING)[0] == shown.live
        if not shown.is_in_step:
            return super().candidates(queries, k, allowed)
        age = time.monotonic() - shown.at
        answers = self._call(self._table.nearest, queries.astype(np.float32), limit, age, patience=PATIENCE_READING)
        candidates, unsettled = list[Ints](), list[int]()
        for i, (numbers, distances) in enumerate(answers):
            usable = numbers < shown.rows
            if allowed is not None:  # another process may just be removing rows
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
        facts: dict[str, Any] = {"rows": self._on_server.rows, "server": self._table.server}
        try:
            facts |= self._table.about()
            facts["rows on the server"] = self._table.count()
        except (Unreachable, Refused) as error:
            return facts | {"error": str(error)}
        state = self._read_state()
        return facts | ({f"recall@{RECALL_AT}": round(state["recall"], 4)} if "recall" in state else {})

    def discard(self) -> None:
        super().discard()
        self._is_created, self._on_server.is_in_step = False, None
        try:
            self._table.drop()
        except (Unreachable, Refused) as error:
            notice(f"what {self._table.server} holds of this index could not be deleted there ({error})")

    def _is_settled(self, distances: Floats, usable: NDArray[np.bool_], wanted: int, limit: int, length: float) -> bool:
        """Whether a server's answer certainly contains the nearest rows in spite of rounding.

        Either the server gave all its rows, or the farthest one is farther than the last one wanted by more than
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

    def _put(self, rows: Ints, vectors: Singles) -> None:
        self._create()
        size = max(1, BATCH_BYTES // (4 * self._vectors.width))
        for start in range(0, len(rows), size):
            self._call(self._table.put, rows[start : start + size], vectors[start : start + size])

    def _create(self) -> None:
        if not self._is_created:
            self._call(self._table.create)
            self._is_created = True

    def _counts(self, rows: int, patience: float = PATIENCE_WRITING) -> tuple[int, int]:
        """How many of the first ``rows`` the server has, and how many behind them."""
        behind = self._call(self._table.count, rows, patience=patience)
        return self._call(self._table.count, patience=patience) - behind, behind

    def _repair(self, first: int, last: int, live: Ints) -> None:
        """Make the server's rows from ``first`` up to ``last`` those that are live."""
        wanted = live[slice(*np.searchsorted(live, [first, last]))]
        stored = self._call(self._table.rows, first, last)
        if len(extra := np.setdiff1d(stored, wanted)):
            self._call(self._table.delete, extra)
        if len(missing := np.setdiff1d(wanted, stored)):
            self._put(missing, self._vectors.take(missing))

    def _call(self, request: Callable[..., T], *arguments: Any, patience: float = PATIENCE_WRITING) -> T:
        """The server's answer; waits for a server that has answered before."""
        patience = patience if self._answered else 0.0
        end, pause = time.monotonic() + patience, 0.0
        while True:
            try:
                answer = request(*arguments)
            except Unreachable as error:
                if time.monotonic() >= end:
                    raise DataError(
                        f"{self._table.server} cannot be reached ({error}): start it, check address and password, or "
                        f"search without it: 'nearkin index … --engine exact' needs only the stored vectors"
                    ) from error
                if pause == 1.0:  # no message for a short interruption
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
        except (OSError, ValueError):  # missing or damaged: the recall is measured again
            return {}
