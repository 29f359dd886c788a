"""Approximate engines by faiss, for more vectors than one scans for every query: lists (IVF), and a graph (HNSW).

Both hold vectors in 8 bits and are asked for more rows than are wanted, as all are scored again. What was added since
they were built is scanned exactly beside them, so that it is found at once; and so is everything where that is no
slower, where a filter leaves few rows, and where they find too few. faiss cannot delete from a graph: rows that were
removed stay in both, and are passed over as those are that a filter leaves out.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from nearkin.disk import make_folder, remove_leftovers, replacing, writing
from nearkin.errors import require
from nearkin.index.engine import Distance
from nearkin.index.exact import ExactEngine
from nearkin.index.queries import nearest_of
from nearkin.index.segments import Segments

LEAST_ROWS = 200_000
"""Of fewer the exact scan takes some 5 ms for a query (128 numbers, two cores): nothing to save."""
LEAST_SHARE = 0.05
"""Where a filter allows a smaller share of rows they are scanned exactly, which is fast: of 1 % of 200,000 rows a graph
found 0.24 to 0.5 of the ten nearest, and lists 0.53 to 0.95."""
TAIL = 0.2
"""So many rows, as a share of those built, are scanned exactly before they are added to lists or graph."""
RETRAIN = 2
"""Lists are laid out anew once there are so many times the rows that they were laid out for."""
GOAL = 0.99
"""The least effort is taken that finds this share of the ten nearest."""
LEAST_RECALL = 0.9
"""Vectors of which any effort finds less, such as random ones or all but equal ones, are scanned exactly after all."""
_MORE, _AT_LEAST = 2, 40
"""For k rows so many times k are asked for, and never fewer than these: of the ten nearest of 200,000 vectors 8 bits
found 0.97 to 0.99 among ten, and all of them among twenty."""
_QUERIES, _K = 256, 10
_LINKS, _CONSTRUCTION = 32, 80
_BLOCK = 1 << 16
_FILE = "built"


@dataclass(frozen=True)
class _Built:
    """An index of faiss over the first ``rows``, and how well it finds."""

    index: Any
    rows: int
    trained: int
    """How many rows there were when its lists were laid out."""
    effort: int = 0
    """Lists to look into, or nodes of the graph to keep in mind, for an image and its ten neighbours."""
    recall: float = 0.0
    """The share of the ten nearest that it finds, of stored vectors that were not used to choose the effort."""

    @property
    def is_used(self) -> bool:
        return self.recall >= LEAST_RECALL


class FaissEngine:
    """Lists around centres of k-means; a query looks into those whose centres are nearest."""

    effort_name: ClassVar = "lists searched"

    def __init__(self, folder: Path, vectors: Segments, distance: Distance) -> None:
        self._faiss = require("faiss", "faiss")
        self._folder, self._vectors, self._distance = folder, vectors, distance
        self._exact = ExactEngine(folder / "exact", vectors, distance)
        self._shown: tuple[_Built | None, int] = (None, 0)
        self._loaded: tuple[object, _Built | None] = (None, None)

    def add(self, first: int, vectors: NDArray[np.float32]) -> None:
        self._exact.add(first, vectors)

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Nothing to do: rows that are not allowed are not proposed."""

    def show(self, rows: int) -> None:
        self._exact.show(rows)
        built = self._load()
        # One that is ahead of what is shown was written since; it is taken with the next change.
        self._shown = (built if built is not None and built.rows <= rows else None, rows)

    def rebuild(self, rows: int) -> None:
        self._exact.rebuild(rows)
        built = self._load()
        if built is not None and (built.rows > rows or rows > RETRAIN * built.trained):
            built = None
        if rows < LEAST_ROWS or (built is not None and rows - built.rows <= TAIL * built.rows):
            return
        with self._threads():
            if built is None:
                built = _Built(self._trained(rows), 0, rows)
            index = self._faiss.clone_index(built.index)  # others may be searching in it
            for first in range(built.rows, rows, _BLOCK):
                index.add(self._vectors.take(np.arange(first, min(first + _BLOCK, rows))))
            self._save(self._measured(replace(built, index=index, rows=rows)))

    def candidates(
        self, queries: NDArray[np.float64], k: int, allowed: NDArray[np.int64] | None
    ) -> list[NDArray[np.int64]]:
        built, rows = self._shown
        among = rows if allowed is None else len(allowed)
        effort = 0 if built is None else self._effort(built, k, among / max(rows, 1))
        if built is None or not built.is_used or among < LEAST_SHARE * rows or effort > self._most(built):
            return self._exact.candidates(queries, k, allowed)
        found = self._found(built, queries, k, effort, allowed)
        if built.rows < rows:
            tail = np.arange(built.rows, rows) if allowed is None else allowed[np.searchsorted(allowed, built.rows) :]
            new = self._exact.candidates(queries, k, tail)
            found = [np.concatenate(both) for both in zip(found, new, strict=True)]
        few = [place for place, each in enumerate(found) if len(each) < min(k, among)]
        if few:
            for place, each in zip(few, self._exact.candidates(queries[few], k, allowed), strict=True):
                found[place] = each
        return found

    def status(self) -> Mapping[str, Any]:
        built, rows = self._shown
        if built is None:
            return {"rows": rows, "built": 0, "scan": "exact"}
        if not built.is_used:
            why = f"as faiss finds {built.recall:.2f} of the {_K} nearest"
            return {"rows": rows, "built": built.rows, "scan": f"exact, {why}"}
        told = {"rows": rows, "built": built.rows, f"recall@{_K}": round(built.recall, 4)}
        return told | {self.effort_name: built.effort}

    def discard(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _trained(self, rows: int) -> Any:
        """An empty index that was laid out for the stored vectors."""
        lists = max(1, round(2 * math.sqrt(rows)))
        index = self._faiss.IndexIVFScalarQuantizer(
            (self._faiss.IndexFlatIP if self._distance == "cosine" else self._faiss.IndexFlatL2)(self._vectors.width),
            self._vectors.width,
            lists,
            self._faiss.ScalarQuantizer.QT_8bit,
            self._metric,
        )
        index.cp.niter, index.cp.min_points_per_centroid = 10, 1
        index.train(self._sample(rows, 64 * lists))
        return index

    def _most(self, built: _Built) -> int:
        """The effort above which a scan of everything is no slower."""
        return int(built.index.nlist) // 2

    def _parameters(self, effort: int, selector: Any) -> Any:
        return self._faiss.SearchParametersIVF(nprobe=effort, sel=selector)

    @property
    def _metric(self) -> Any:
        return self._faiss.METRIC_INNER_PRODUCT if self._distance == "cosine" else self._faiss.METRIC_L2

    def _sample(self, rows: int, most: int) -> NDArray[np.float32]:
        some = np.random.default_rng(0).choice(rows, min(rows, most), replace=False)
        taken: NDArray[np.float32] = self._vectors.take(np.sort(some))
        return taken

    def _effort(self, built: _Built, k: int, share: float) -> int:
        """As many rows that are allowed are looked at for each that is wanted, whatever the filter and k."""
        return math.ceil(built.effort * max(1.0, k / (_K + 1)) / max(share, 1e-9))

    def _found(
        self, built: _Built, queries: NDArray[np.float64], k: int, effort: int, allowed: NDArray[np.int64] | None
    ) -> list[NDArray[np.int64]]:
        """Rows that the index of faiss finds, of each query."""
        selector = None
        if allowed is not None:
            mask = np.zeros(built.rows, dtype=np.bool_)
            mask[allowed[: np.searchsorted(allowed, built.rows)]] = True
            bits = np.packbits(mask, bitorder="little")  # which has to live as long as the selector
            selector = self._faiss.IDSelectorBitmap(built.rows, self._faiss.swig_ptr(bits))
        wanted = min(max(_MORE * k, _AT_LEAST), built.rows)
        with self._threads():
            rows = built.index.search(queries.astype(np.float32), wanted, params=self._parameters(effort, selector))[1]
        return [row[row >= 0] for row in rows]

    def _measured(self, built: _Built) -> _Built:
        """With the least effort that reaches the goal on some stored vectors, and what it finds for others."""
        rows = np.random.default_rng(1).choice(built.rows, min(built.rows, 2 * _QUERIES), replace=False)
        queries = self._vectors.take(rows).astype(np.float64)
        trial = type(self)(self._folder, self._vectors, self._distance)
        trial._exact.show(built.rows)
        truth = nearest_of(trial._exact, self._vectors, self._distance, queries, _K + 1, None)

        def recall(effort: int, part: slice) -> float:
            trial._shown = (replace(built, effort=effort, recall=1.0), built.rows)
            found = nearest_of(trial, self._vectors, self._distance, queries[part], _K + 1, None)
            each = zip(rows[part].tolist(), truth[part], found, strict=True)
            return float(np.mean([_share_found(own, true, mine) for own, true, mine in each]))

        effort, most = 8, self._most(built)
        while effort < most and recall(effort, slice(None, None, 2)) < GOAL:
            effort = min(2 * effort, most)
        return replace(built, effort=effort, recall=recall(effort, slice(1, None, 2)))

    def _save(self, built: _Built) -> None:
        """Whole or not at all, with a sum by which a damaged file is told."""
        path = self._folder / _FILE
        make_folder(self._folder)
        remove_leftovers(self._folder)
        body = self._faiss.serialize_index(built.index)
        about = {key: getattr(built, key) for key in ("rows", "trained", "effort", "recall")} | {"sum": _sum(body)}
        with writing(path, needed=body.nbytes), replacing(path) as file:
            file.write(json.dumps(about).encode() + b"\n")
            file.write(body)

    def _load(self) -> _Built | None:
        """What was built, or None where there is nothing or it is damaged."""
        path = self._folder / _FILE
        try:
            stat = path.stat()
            key = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if key == self._loaded[0]:
                return self._loaded[1]
            with open(path, "rb") as file:
                about = json.loads(file.readline(10_000))
                body = np.fromfile(file, dtype=np.uint8)
        except (OSError, ValueError):
            return None
        built = None
        if isinstance(about, dict) and about.pop("sum", None) == _sum(body):
            built = _Built(self._faiss.deserialize_index(body), **about)
        self._loaded = (key, built)
        return built

    @contextlib.contextmanager
    def _threads(self) -> Iterator[None]:
        """As many threads as torch takes, which is what people set."""
        before = self._faiss.omp_get_max_threads()
        self._faiss.omp_set_num_threads(torch.get_num_threads())
        try:
            yield
        finally:
            self._faiss.omp_set_num_threads(before)


class FaissGraphEngine(FaissEngine):
    """A graph from each vector to some near ones, along which a query walks: faster than lists, and slow to build."""

    effort_name: ClassVar = "nodes kept in mind"

    def _trained(self, rows: int) -> Any:
        index = self._faiss.IndexHNSWSQ(self._vectors.width, self._faiss.ScalarQuantizer.QT_8bit, _LINKS, self._metric)
        index.hnsw.efConstruction = _CONSTRUCTION
        index.train(self._sample(rows, _BLOCK))
        return index

    def _most(self, built: _Built) -> int:
        return max(64, built.rows // 50)

    def _parameters(self, effort: int, selector: Any) -> Any:
        return self._faiss.SearchParametersHNSW(efSearch=effort, sel=selector)


def _share_found(
    own: int, true: tuple[NDArray[np.int64], NDArray[np.float64]], mine: tuple[NDArray[np.int64], NDArray[np.float64]]
) -> float:
    """Of the nearest of a stored vector, the share that was found; by scores, as of equally near ones any will do.

    That it finds itself is no merit, and is left out on both sides.
    """
    scores = true[1][true[0] != own][:_K]
    found = mine[1][mine[0] != own][:_K]
    return float((found >= scores[-1]).sum() / len(scores)) if len(scores) else 1.0


def _sum(body: NDArray[np.uint8]) -> str:
    return blake2b(body.data, digest_size=16).hexdigest()
