"""An approximate engine by faiss, for more vectors than can be scanned for every query: inverted lists (IVF).

It stores vectors in 8 bits and gives more rows than are wanted, as all candidates are scored again. Rows that were
added since the lists were built are scanned exactly. Everything is scanned exactly if that is no slower, under a
filter, and if the lists give too few rows. Removed rows stay in the lists until they are built again.
"""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.disk import make_folder, remove_leftovers, replacing, writing
from nearkin.errors import require
from nearkin.evaluation.neighbours import Distance, Floats, Ints
from nearkin.index.engine import RECALL_AT, recall_measure
from nearkin.index.exact_engine import ExactEngine
from nearkin.index.segments import Segments

LEAST_ROWS = 200_000
"""The exact scan of fewer rows takes some 5 ms for a query, so there is nothing to save."""
LEAST_SHARE = 0.9
"""If a filter allows a smaller share of rows, they are scanned exactly, as it may exclude whole lists."""
TAIL_SHARE = 0.2
"""New rows, as a share of those in the lists, that are scanned exactly before the lists are built again."""
GOAL = 0.99
"""The share of the ten nearest to find, with as few lists as possible."""
LEAST_RECALL = 0.9
"""If any number of lists finds less, as among random or nearly equal vectors, everything is scanned exactly."""
_OVERSAMPLING, _LEAST_CANDIDATES = 2, 40
"""Candidates for each row wanted, and in all at least: in 8 bits the ten nearest of 200,000 were among twenty."""
_QUERIES = 512
_BLOCK = 1 << 16
_FILE = "built.npz"


@dataclass(frozen=True)
class _Built:
    """A faiss index of the first ``rows``, the lists to search for ten neighbours (``effort``), and its recall."""

    index: Any
    rows: int
    effort: int
    recall: float


class FaissEngine(ExactEngine):
    """Lists around centres of k-means; a query searches those whose centres are nearest."""

    def __init__(self, folder: Path, vectors: Segments, distance: Distance) -> None:
        super().__init__(folder, vectors, distance)
        self._faiss = require("faiss", "faiss")
        self._lists: tuple[_Built | None, int] = (None, 0)
        self._loaded: tuple[object, _Built | None] = (None, None)

    def show(self, rows: int, live: Ints | None = None) -> None:
        super().show(rows)
        built = self._load()
        # Lists that are ahead of the rows shown have just been written; they are used after the next change.
        self._lists = (built if built is not None and built.rows <= rows else None, rows)

    def rebuild(self, rows: int, live: Ints | None = None) -> None:
        super().rebuild(rows)
        built = self._load()
        is_recent = built is not None and built.rows <= rows <= (1 + TAIL_SHARE) * built.rows
        if rows >= LEAST_ROWS and not is_recent:
            self._save(self._measured(self._filled(rows), rows))

    def candidates(self, queries: Floats, k: int, allowed: Ints | None) -> list[Ints]:
        built, rows = self._lists
        available = rows if allowed is None else len(allowed)
        effort = 0 if built is None else math.ceil(built.effort * max(1.0, k / RECALL_AT))
        is_filtered = available < LEAST_SHARE * rows
        if built is None or is_filtered or built.recall < LEAST_RECALL or effort > built.index.nlist // 2:
            return super().candidates(queries, k, allowed)
        parameters = self._faiss.SearchParametersIVF(nprobe=effort)
        wanted = min(max(_OVERSAMPLING * k, _LEAST_CANDIDATES), built.rows)
        # With faiss.contrib.torch_utils imported, search takes no parameters, and what does has another name.
        search = getattr(built.index, "search_numpy", built.index.search)
        proposed = [row[row >= 0] for row in search(queries.astype(np.float32), wanted, params=parameters)[1]]
        tail = np.arange(built.rows, rows)
        if allowed is not None:
            is_allowed = np.zeros(rows, dtype=bool)
            is_allowed[allowed] = True
            proposed = [row[is_allowed[row]] for row in proposed]
            tail = allowed[np.searchsorted(allowed, built.rows) :]
        if len(tail):
            newer = super().candidates(queries, k, tail)
            proposed = [np.concatenate(both) for both in zip(proposed, newer, strict=True)]
        if few := [i for i, candidates in enumerate(proposed) if len(candidates) < min(k, available)]:
            for i, candidates in zip(few, super().candidates(queries[few], k, allowed), strict=True):
                proposed[i] = candidates
        return proposed

    def status(self) -> Mapping[str, Any]:
        built, rows = self._lists
        if built is None:
            return {"rows": rows, "built": 0, "scan": "exact"}
        facts = {"rows": rows, "built": built.rows}
        if built.recall < LEAST_RECALL:
            return facts | {"scan": f"exact, as faiss finds {built.recall:.2f} of the {RECALL_AT} nearest"}
        return facts | {f"recall@{RECALL_AT}": round(built.recall, 4), "lists searched": built.effort}

    def _filled(self, rows: int) -> Any:
        """A faiss index of the first ``rows`` stored vectors."""
        lists = max(1, round(2 * math.sqrt(rows)))
        metric = self._faiss.METRIC_INNER_PRODUCT if self._distance == "cosine" else self._faiss.METRIC_L2
        index = self._faiss.index_factory(self._vectors.width, f"IVF{lists},SQ8", metric)
        index.cp.niter, index.cp.min_points_per_centroid = 10, 1
        sample = np.random.default_rng(0).choice(rows, min(rows, 64 * lists), replace=False)
        index.train(self._vectors.take(np.sort(sample)))
        for first in range(0, rows, _BLOCK):
            index.add(self._vectors.take(np.arange(first, min(first + _BLOCK, rows))))
        return index

    def _measured(self, index: Any, rows: int) -> _Built:
        """The index with the least effort that reaches the goal, or the most, and the recall measured with it."""
        exact = ExactEngine(self._folder, self._vectors, self._distance)
        trial = FaissEngine(self._folder, self._vectors, self._distance)
        for engine in (exact, trial):
            ExactEngine.show(engine, rows)
        recall = recall_measure(exact, self._vectors, self._distance, np.arange(rows), _QUERIES)
        effort, most = 8, int(index.nlist) // 2
        while True:
            built = _Built(index, rows, effort, recall=1.0)
            trial._lists = (built, rows)
            if (share := recall(trial)) >= GOAL or effort >= most:
                return replace(built, recall=share)
            effort = min(2 * effort, most)

    def _save(self, built: _Built) -> None:
        """Write the file atomically; the checksums of an .npz reveal damage."""
        path = self._folder / _FILE
        make_folder(self._folder)
        remove_leftovers(self._folder)
        body = self._faiss.serialize_index(built.index)
        with writing(path, needed=body.nbytes), replacing(path) as file:
            np.savez(file, index=body, facts=np.array([built.rows, built.effort, built.recall]))

    def _load(self) -> _Built | None:
        """The lists that were built; None if there are none or the file is damaged."""
        path, built = self._folder / _FILE, None
        if not path.is_file():
            return None
        stat = path.stat()
        if (key := (stat.st_ino, stat.st_size, stat.st_mtime_ns)) != self._loaded[0]:
            # faiss raises a RuntimeError for the file of another version.
            damaged = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile)
            with contextlib.suppress(*damaged), np.load(path, allow_pickle=False) as stored:
                rows, effort, recall = stored["facts"].tolist()
                built = _Built(self._faiss.deserialize_index(stored["index"]), int(rows), int(effort), recall)
            self._loaded = (key, built)
        return self._loaded[1]
