"""The exact engine: the scan of :mod:`nearkin.evaluation.neighbours`, with its 8-bit copies on the disk."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.evaluation.neighbours import Coded, in_8_bits, propose, workers
from nearkin.index.engine import Distance
from nearkin.index.segments import Segments

_ROWS, _QUERIES = 8192, 64
"""Rows that are coded or scanned at a time, and queries."""
_SAMPLE = 4096
_GATHERED = 0.25
"""Fewer allowed rows than this share are gathered before the scan; more are masked out after it."""

Ids = NDArray[np.int64]


class ExactEngine:
    """Proposes every row that could be among the nearest, and few others, so that the scored result is exact."""

    def __init__(self, folder: Path, vectors: Segments, distance: Distance) -> None:
        self._folder, self._vectors, self._distance = folder, vectors, distance
        size = vectors.rows_per_segment
        self._codes = Segments(folder / "codes", vectors.width, np.int8, rows_per_segment=size)
        self._figures = Segments(folder / "figures", 3, np.float32, rows_per_segment=size)
        self._shown: tuple[list[Coded], list[Coded], Ids, Coded | None] = ([], [], np.empty(0, dtype=np.int64), None)
        self._rows = 0

    def add(self, first: int, vectors: NDArray[np.float32]) -> None:
        coded = Coded.of(vectors)
        self._codes.append(first, coded.codes)
        self._figures.append(first, coded.figures)

    def remove(self, rows: Ids) -> None:
        self._codes.clear(rows)

    def rebuild(self, rows: int, live: Ids | None = None) -> None:
        have = min(self._available(), rows)
        self._codes.truncate(have)
        self._figures.truncate(have)
        self._vectors.show(rows)
        for first in range(have, rows, _ROWS):
            self.add(first, self._vectors.take(np.arange(first, min(first + _ROWS, rows))))

    def show(self, rows: int, live: Ids | None = None) -> None:
        if self._available() >= rows:
            self._codes.show(rows)
            self._figures.show(rows)
            figures = map(np.array, self._figures.maps())  # in memory, as every scan takes all of them
            segments = [
                Coded(codes, block_figures, None if in_8_bits(self._vectors.width) else vectors)
                for codes, block_figures, vectors in zip(self._codes.maps(), figures, self._vectors.maps(), strict=True)
            ]
        else:  # files that were removed: only a writer builds them again, a reader makes its own
            segments = [Coded.of(part) for part in self._vectors.maps()]
        tiles = [part[at : at + _ROWS] for part in segments for at in range(0, len(part), _ROWS)]
        drawn = np.sort(np.random.default_rng(0).choice(rows, min(_SAMPLE, rows), replace=False))
        sample = None
        if tiles:
            numbers, places = np.divmod(drawn, self._vectors.rows_per_segment)
            sample = Coded.joined([segments[number][places[numbers == number]] for number in np.unique(numbers)])
        self._shown, self._rows = (segments, tiles, drawn, sample), rows

    def candidates(self, queries: NDArray[np.float64], k: int, allowed: Ids | None) -> list[Ids]:
        segments, tiles, drawn, sample = self._shown  # which another thread may replace meanwhile
        alone = len(queries) == 1
        if alone:  # one query is bound by reading, which torch's own threads share without a pool
            tiles = segments
        rows = np.split(np.arange(sum(map(len, tiles))), np.cumsum([len(tile) for tile in tiles])[:-1])
        masks: list[NDArray[np.bool_] | None] = [None] * len(tiles)
        if allowed is not None:
            tiles = list(tiles)
            for number, numbers in enumerate(rows):
                inside = allowed[slice(*np.searchsorted(allowed, [numbers[0], numbers[-1] + 1]))]
                if len(inside) < _GATHERED * len(numbers):
                    tiles[number], rows[number] = tiles[number][inside - numbers[0]], inside
                elif len(inside) < len(numbers):
                    masks[number] = np.isin(numbers, inside, assume_unique=True)
            sample = None if sample is None else sample[np.isin(drawn, allowed, assume_unique=True)]
        number_of_rows = sum(map(len, rows)) if allowed is None else len(allowed)
        if not number_of_rows:
            return [np.empty(0, dtype=np.int64) for _ in queries]
        filled = [number for number, numbers in enumerate(rows) if len(numbers)]
        tiles, rows, masks = [tiles[i] for i in filled], [rows[i] for i in filled], [masks[i] for i in filled]
        k, proposed = min(k, number_of_rows), []
        with workers(not alone) as map_tiles:
            for start in range(0, len(queries), _QUERIES):
                coded = Coded.of(queries[start : start + _QUERIES])
                settings: Any = {"distance": self._distance, "masks": masks, "map_tiles": map_tiles}
                pairs, settled = propose(coded, tiles, sample, k, **settings)
                candidates = _by_query(pairs, rows, len(coded))
                for query in np.flatnonzero(~settled):  # the guess of their k-th nearest was too high
                    pairs, _ = propose(coded[query : query + 1], tiles, None, k, **settings)
                    (candidates[query],) = _by_query(pairs, rows, 1)
                proposed += candidates
        return proposed

    def status(self) -> Mapping[str, Any]:
        return {"rows": self._rows, "scan": "int8" if in_8_bits(self._vectors.width) else "float32"}

    def discard(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _available(self) -> int:
        return min(self._codes.available(), self._figures.available())


def _by_query(proposed: list[tuple[Ids, Ids]], rows: list[Ids], queries: int) -> list[Ids]:
    """The rows of each query, ascending, from what :func:`propose` gives for each tile of ``rows``."""
    pairs = []
    for (columns, where), numbers in zip(proposed, rows, strict=True):
        pairs.append((np.repeat(np.arange(queries), len(columns)), np.tile(numbers[columns], queries)))
        pairs.append((where // len(numbers), numbers[where % len(numbers)]))
    query, row = (np.concatenate(part) for part in zip(*pairs, strict=True))
    order = np.lexsort((row, query))
    return np.split(row[order], np.searchsorted(query[order], np.arange(1, queries)))
