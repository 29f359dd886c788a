"""An approximate engine by faiss, for more vectors than can be scanned for every query: inverted lists (IVF).

It holds vectors in 8 bits and is asked for more rows than are wanted, as all candidates are scored again. Rows that
were added since the lists were built are scanned exactly, so that they are found at once. Everything is scanned exactly
where that is no slower, under a filter, and where the lists give too few. Removed rows stay in the lists and are
skipped.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.disk import make_folder, remove_leftovers, replacing, writing
from nearkin.errors import require
from nearkin.index.engine import RECALL_AT, Distance, recall_measure
from nearkin.index.exact import ExactEngine
from nearkin.index.segments import Segments

LEAST_ROWS = 200_000
"""The exact scan of fewer rows takes some 5 ms for a query (128 numbers, two cores): nothing to save."""
LEAST_SHARE = 0.9
"""Where fewer rows are allowed, a filter leaves out whole lists, and the rest is scanned exactly. Where more are, some
were removed."""
TAIL_SHARE = 0.2
"""Rows, as a share of those built, that are scanned exactly before they are added to the lists."""
RETRAIN_FACTOR = 2
"""The lists are trained again once there are so many times the rows that they were trained for."""
GOAL = 0.99
"""The least effort is taken that finds this share of the ten nearest."""
LEAST_RECALL = 0.9
"""Vectors of which any effort finds less, such as random or nearly equal ones, are scanned exactly after all."""
_OVERSAMPLING, _LEAST_CANDIDATES = 2, 40
"""Candidates for each row wanted, and at least in all: of the ten nearest of 200,000 vectors 8 bits found 0.97 to 0.99
among ten, and all of them among twenty."""
_QUERIES = 512
_BLOCK = 1 << 16
_FILE = "built.npz"


@dataclass(frozen=True)
class _Built:
    """An index of faiss over the first ``rows``, and how well it finds."""

    index: Any
    rows: int
    trained: int
    """How many rows there were when its lists were trained."""
    effort: int = 0
    """Lists to look into for ten neighbours."""
    recall: float = 0.0
    """The share of the ten nearest of unseen queries that it finds."""


class FaissEngine:
    """Lists around centres of k-means; a query looks into those whose centres are nearest."""

    def __init__(self, folder: Path, vectors: Segments, distance: Distance) -> None:
        self._faiss = require("faiss", "faiss")
        self._folder, self._vectors, self._distance = folder, vectors, distance
        self._exact = ExactEngine(folder / "exact", vectors, distance)
        self._shown: tuple[_Built | None, int] = (None, 0)
        self._loaded: tuple[object, _Built | None] = (None, None)
        self._selected: tuple[NDArray[np.int64], int, Any] | None = None
        """Allowed rows in the form that faiss takes, kept for the next search, which has the same."""

    def add(self, first: int, vectors: NDArray[np.float32]) -> None:
        self._exact.add(first, vectors)

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Nothing to do: rows that are not allowed are not proposed."""

    def show(self, rows: int) -> None:
        self._exact.show(rows)
        built = self._load()
        # One that is ahead of the rows shown was written since; it is used after the next change.
        self._shown = (built if built is not None and built.rows <= rows else None, rows)

    def rebuild(self, rows: int) -> None:
        self._exact.rebuild(rows)
        built = self._load()
        if built is not None and (built.rows > rows or rows > RETRAIN_FACTOR * built.trained):
            built = None
        if rows < LEAST_ROWS or (built is not None and rows - built.rows <= TAIL_SHARE * built.rows):
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
        available = rows if allowed is None else len(allowed)
        effort = 0 if built is None else math.ceil(built.effort * max(1.0, k / RECALL_AT))
        if (
            built is None
            or built.recall < LEAST_RECALL
            or effort > built.index.nlist // 2
            or available < LEAST_SHARE * rows
        ):
            return self._exact.candidates(queries, k, allowed)
        selector = None if allowed is None else self._selector(allowed, built.rows)
        parameters = self._faiss.SearchParametersIVF(nprobe=effort, sel=selector)
        wanted = min(max(_OVERSAMPLING * k, _LEAST_CANDIDATES), built.rows)
        with self._threads():
            # With faiss.contrib.torch_utils imported, search takes no parameters, and what does has another name.
            search = getattr(built.index, "search_numpy", built.index.search)
            found = [row[row >= 0] for row in search(queries.astype(np.float32), wanted, params=parameters)[1]]
        if built.rows < rows:
            tail = np.arange(built.rows, rows) if allowed is None else allowed[np.searchsorted(allowed, built.rows) :]
            new = self._exact.candidates(queries, k, tail)
            found = [np.concatenate(both) for both in zip(found, new, strict=True)]
        if few := [i for i, candidates in enumerate(found) if len(candidates) < min(k, available)]:
            for i, candidates in zip(few, self._exact.candidates(queries[few], k, allowed), strict=True):
                found[i] = candidates
        return found

    def status(self) -> Mapping[str, Any]:
        built, rows = self._shown
        if built is None:
            return {"rows": rows, "built": 0, "scan": "exact"}
        if built.recall < LEAST_RECALL:
            why = f"as faiss finds {built.recall:.2f} of the {RECALL_AT} nearest"
            return {"rows": rows, "built": built.rows, "scan": f"exact, {why}"}
        found = {f"recall@{RECALL_AT}": round(built.recall, 4), "lists searched": built.effort}
        return {"rows": rows, "built": built.rows, **found}

    def discard(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _trained(self, rows: int) -> Any:
        """An empty index whose lists are trained on the stored vectors."""
        width, lists = self._vectors.width, max(1, round(2 * math.sqrt(rows)))
        is_cosine = self._distance == "cosine"
        index = self._faiss.IndexIVFScalarQuantizer(
            (self._faiss.IndexFlatIP if is_cosine else self._faiss.IndexFlatL2)(width),
            width,
            lists,
            self._faiss.ScalarQuantizer.QT_8bit,
            self._faiss.METRIC_INNER_PRODUCT if is_cosine else self._faiss.METRIC_L2,
        )
        index.cp.niter, index.cp.min_points_per_centroid = 10, 1
        sample = np.random.default_rng(0).choice(rows, min(rows, 64 * lists), replace=False)
        index.train(self._vectors.take(np.sort(sample)))
        return index

    def _selector(self, allowed: NDArray[np.int64], rows: int) -> Any:
        selected = self._selected
        if selected is None or selected[0] is not allowed or selected[1] != rows:
            mask = np.zeros(rows, dtype=np.bool_)
            mask[allowed[: np.searchsorted(allowed, rows)]] = True
            selector = self._faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))
            self._selected = selected = (allowed, rows, selector)
        return selected[2]

    def _measured(self, built: _Built) -> _Built:
        """With the least effort that reaches the goal, and the recall that it reaches."""
        trial = type(self)(self._folder, self._vectors, self._distance)
        trial._exact.show(built.rows)
        recall = recall_measure(trial._exact, self._vectors, self._distance, np.arange(built.rows), _QUERIES)
        effort, most = 8, int(built.index.nlist) // 2
        while True:
            trial._shown = (replace(built, effort=effort, recall=1.0), built.rows)
            if (share := recall(trial)) >= GOAL or effort >= most:
                return replace(built, effort=effort, recall=share)
            effort = min(2 * effort, most)

    def _save(self, built: _Built) -> None:
        """Write the file whole or not at all; the checksums of an .npz reveal a damaged one."""
        path = self._folder / _FILE
        make_folder(self._folder)
        remove_leftovers(self._folder)
        body = self._faiss.serialize_index(built.index)
        with writing(path, needed=body.nbytes), replacing(path) as file:
            np.savez(file, index=body, facts=np.array([built.rows, built.trained, built.effort, built.recall]))

    def _load(self) -> _Built | None:
        """What was built, or None where there is nothing or it is damaged."""
        path, built = self._folder / _FILE, None
        try:
            stat = path.stat()
            key = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if key == self._loaded[0]:
                return self._loaded[1]
            with np.load(path, allow_pickle=False) as stored:
                rows, trained, effort, recall = stored["facts"].tolist()
                # faiss raises a RuntimeError for what another version of it wrote.
                index = self._faiss.deserialize_index(stored["index"])
                built = _Built(index, int(rows), int(trained), int(effort), recall)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile):
            pass
        self._loaded = (key, built)
        return built

    @contextlib.contextmanager
    def _threads(self) -> Iterator[None]:
        """As many threads as torch takes, which is what people set; without torch, faiss's own number."""
        torch = sys.modules.get("torch")
        if torch is None:
            yield
            return
        before = self._faiss.omp_get_max_threads()
        self._faiss.omp_set_num_threads(torch.get_num_threads())
        try:
            yield
        finally:
            self._faiss.omp_set_num_threads(before)
