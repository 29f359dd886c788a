"""The exact engine: a scan of all vectors, with a bound on its error that lets no true neighbour go.

Whatever could be among the k nearest by that bound is proposed. The scan is torch's, of 8-bit copies; where torch is
not installed, as beside an exported encoder, it is numpy's, of the vectors themselves.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.index.codes import Codes, coded
from nearkin.index.engine import Distance
from nearkin.index.segments import Segments

try:
    from nearkin.index import torch_scan as scan
except ImportError:
    from nearkin.index import numpy_scan as scan  # type: ignore[no-redef]

_BLOCK = 8192


class ExactEngine:
    """Proposes every row that could be among the nearest, and few others: what is then scored is the exact result."""

    def __init__(self, folder: Path, vectors: Segments, distance: Distance) -> None:
        self._folder, self._vectors, self._distance = folder, vectors, distance
        size = vectors.rows_per_segment
        self._codes = Segments(folder / "codes", vectors.width, np.int8, rows_per_segment=size)
        self._figures = Segments(folder / "figures", 3, np.float32, rows_per_segment=size)
        self._shown: list[tuple[Codes, NDArray[np.float32]]] = []
        self._rows = 0

    def add(self, first: int, vectors: NDArray[np.float32]) -> None:
        some = coded(vectors)
        self._codes.append(first, some.codes)
        self._figures.append(first, some.figures)

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Nothing to do: rows that are not allowed are not proposed."""

    def rebuild(self, rows: int) -> None:
        have = min(self._available(), rows)
        self._codes.truncate(have)
        self._figures.truncate(have)
        self._vectors.show(rows)
        for first in range(have, rows, _BLOCK):
            self.add(first, self._vectors.take(np.arange(first, min(first + _BLOCK, rows))))

    def show(self, rows: int) -> None:
        have = min(self._available(), rows)
        if have == rows:
            self._codes.show(rows)
            self._figures.show(rows)
            figures = map(np.array, self._figures.maps())  # in memory, as every scan takes all of them
            held = [Codes(*both) for both in zip(self._codes.maps(), figures, strict=True)]
        else:  # files that were thrown away: only a writer builds them anew, a reader makes its own
            held = [coded(part) for part in self._vectors.maps()]
        self._shown = list(zip(held, self._vectors.maps(), strict=True))
        self._rows = rows

    def candidates(
        self, queries: NDArray[np.float64], k: int, allowed: NDArray[np.int64] | None
    ) -> list[NDArray[np.int64]]:
        shown = self._shown  # which another thread may replace meanwhile
        found: list[NDArray[np.int64]] = []
        for start in range(0, len(queries), scan.QUERIES):
            found += scan.candidates(shown, queries[start : start + scan.QUERIES], k, allowed, self._distance)
        return found

    def status(self) -> Mapping[str, Any]:
        return {"rows": self._rows, "scan": scan.precision()}

    def discard(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _available(self) -> int:
        return min(self._codes.available(), self._figures.available())
