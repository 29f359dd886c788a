"""The exact engine: the scan of :mod:`nearkin.evaluation.neighbours`, with 8-bit copies of the vectors on disk."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.evaluation.neighbours import Coded, Distance, Floats, Ints, Singles, in_8_bits, propose, workers
from nearkin.index.segments import Segments

_ROWS, _QUERIES = 8192, 64
"""Rows and queries that are processed at a time."""
_SAMPLE = 4096
_GATHERED = 0.25
"""If a filter allows a smaller share of rows than this, they are gathered before the scan; else the rest is masked."""


class ExactEngine:
    """Proposes every row that could be among the nearest, and few others, so the scored result is exact."""

    def __init__(self, folder: Path, vectors: Segments, distance: Distance) -> None:
        self._folder, self._vectors, self._distance = folder, vectors, distance
        size = vectors.rows_per_segment
        self._codes = Segments(folder / "codes", vectors.width, np.int8, rows_per_segment=size)
        self._figures = Segments(folder / "figures", 3, np.float32, rows_per_segment=size)
        self._shown: tuple[list[Coded], list[Coded], Ints, Coded | None] = ([], [], np.empty(0, dtype=np.int64), None)
        self._rows = 0

    def add(self, first: int, vectors: Singles) -> None:
        coded = Coded.of(vectors)
        self._codes.append(first, coded.codes)
        self._figures.append(first, coded.figures)

    def remove(self, rows: Ints) -> None:
        self._codes.clear(rows)

    def rebuild(self, rows: int, live: Ints | None = None) -> None:
        have = min(self._available(), rows)
        self._codes.truncate(have)
        self._figures.truncate(have)
        self._vectors.show(rows)
        for first in range(have, rows, _ROWS):
            self.add(first, self._vectors.take(np.arange(first, min(first + _ROWS, rows))))

    def show(self, rows: int, live: Ints | None = None) -> None:
        if self._available() >= rows:
            self._codes.show(rows)
            self._figures.show(rows)
            has_vectors = not in_8_bits(self._vectors.width)
            maps = zip(self._codes.maps, self._figures.maps, self._vectors.maps, strict=True)
            # Figures are copied into memory, as every scan reads all of them.
            segments = [Coded(codes, np.array(figures), x if has_vectors else None) for codes, figures, x in maps]
        else:  # the files were removed, and only a writer builds them again
            segments = [Coded.of(part) for part in self._vectors.maps]
        tiles = [part[at : at + _ROWS] for part in segments for at in range(0, len(part), _ROWS)]
        drawn = np.sort(np.random.default_rng(0).choice(rows, min(_SAMPLE, rows), replace=False))
        sample = None
        if tiles:
            numbers, offsets = np.divmod(drawn, self._vectors.rows_per_segment)
            sample = Coded.joined([segments[number][offsets[numbers == number]] for number in np.unique(numbers)])
        self._shown, self._rows = (segments, tiles, drawn, sample), rows

    def candidates(self, queries: Floats, k: int, allowed: Ints | None) -> list[Ints]:
        segments, all_tiles, drawn, sample = self._shown  # once, as another thread may replace it
        # A single query is bound by reading, which torch's own threads share best in large pieces.
        alone = len(queries) == 1
        tiles: list[Coded] = []
        rows: list[Ints] = []
        masks: list[NDArray[np.bool_] | None] = []
        first = 0
        for tile in segments if alone else all_tiles:
            numbers, mask = np.arange(first, first + len(tile)), None
            first += len(tile)
            if allowed is not None:
                inside = allowed[slice(*np.searchsorted(allowed, [numbers[0], first]))]
                if len(inside) < _GATHERED * len(numbers):
                    tile, numbers = tile[inside - numbers[0]], inside
                elif len(inside) < len(numbers):
                    mask = np.isin(numbers, inside, assume_unique=True)
            if len(numbers):
                tiles.append(tile)
                rows.append(numbers)
                masks.append(mask)
        if not tiles:
            return [np.empty(0, dtype=np.int64) for _ in queries]
        if allowed is not None and sample is not None:
            sample = sample[np.isin(drawn, allowed, assume_unique=True)]
        candidates = []
        with workers(1 if alone else None) as map_tiles:
            scan = functools.partial(propose, k=k, distance=self._distance, masks=masks, map_tiles=map_tiles)
            for start in range(0, len(queries), _QUERIES):
                coded = Coded.of(queries[start : start + _QUERIES])
                pairs, settled = scan(coded, tiles, sample)
                block = _by_query(pairs, rows, len(coded))
                for query in np.flatnonzero(~settled):  # the guess of their k-th nearest was too high
                    pairs, _ = scan(coded[query : query + 1], tiles, None)
                    (block[query],) = _by_query(pairs, rows, 1)
                candidates += block
        return candidates

    def status(self) -> Mapping[str, Any]:
        scanned = "of 8-bit copies" if in_8_bits(self._vectors.width) else "of float32 vectors"
        return {"rows": self._rows, "scan": scanned}

    def discard(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _available(self) -> int:
        return min(self._codes.available(), self._figures.available())


def _by_query(proposed: list[tuple[Ints, Ints]], rows: list[Ints], queries: int) -> list[Ints]:
    """The rows proposed to each query, ascending, from what :func:`propose` returns for the tiles with ``rows``."""
    pairs = []
    for (columns, where), numbers in zip(proposed, rows, strict=True):
        pairs.append((np.repeat(np.arange(queries), len(columns)), np.tile(numbers[columns], queries)))
        pairs.append((where // len(numbers), numbers[where % len(numbers)]))
    query, row = (np.concatenate(part) for part in zip(*pairs, strict=True))
    order = np.lexsort((row, query))
    return np.split(row[order], np.searchsorted(query[order], np.arange(1, queries)))
