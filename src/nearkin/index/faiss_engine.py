"""An approximate engine by faiss, for more vectors than can be scanned for every query: inverted lists (IVF).

It holds vectors in 8 bits and is asked for more rows than are wanted, as all candidates are scored again. Rows that
were added since the lists were built are scanned exactly, so that they are found at once. Everything is scanned exactly
where that is no slower, where a filter leaves few rows, and where the lists give too few. Removed rows stay in the
lists and are skipped, as are those that a filter leaves out.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.disk import make_folder, remove_leftovers, replacing, writing
from nearkin.errors import require
from nearkin.index.engine import RECALL_AT, Distance, Engine, nearest, recall, unseen_queries
from nearkin.index.exact import ExactEngine
from nearkin.index.segments import Segments

LEAST_ROWS = 200_000
"""The exact scan of fewer rows takes some 5 ms for a query (128 numbers, two cores): nothing to save."""
LEAST_SHARE = 0.05
"""Where a filter allows a smaller share of rows, they are scanned exactly, which is fast."""
FILTER_EFFORT = 4
"""By how much more effort to search with a filter that follows appearance, as it leaves out whole lists. Of half or a
tenth of the classes 0.92 to 0.97 of the nearest were found without it, 0.97 to 1 with it."""
UNFILTERED_SHARE = 0.9
"""Where at least this share of rows is allowed, a few rows were removed and nothing is filtered."""
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
_QUERIES = 256
_BLOCK = 1 << 16
_FILE = "built"


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
    """The share of the ten nearest that it finds, of queries that were not used to choose the effort."""

    @functools.cached_property
    def list_of_row(self) -> NDArray[np.int32]:
        """The number of the list that each row is in."""
        lists, numbers = self.index.invlists, np.empty(self.rows, dtype=np.int32)
        for number in range(self.index.nlist):
            if size := lists.list_size(number):
                numbers[require("faiss", "faiss").rev_swig_ptr(lists.get_ids(number), size)] = number
        return numbers


@dataclass(frozen=True)
class _Selection:
    """Allowed rows in the form that faiss takes; kept for the next search, which often has the same filter."""

    allowed: NDArray[np.int64]
    built: _Built
    rows: Any
    lists: Any = None
    list_count: int = 0
    """Lists that hold any of the rows."""
    effort_factor: float = 1.0


class FaissEngine:
    """Lists around centres of k-means; a query looks into those whose centres are nearest."""

    def __init__(self, folder: Path, vectors: Segments, distance: Distance) -> None:
        self._faiss = require("faiss", "faiss")
        self._folder, self._vectors, self._distance = folder, vectors, distance
        self._exact = ExactEngine(folder / "exact", vectors, distance)
        self._shown: tuple[_Built | None, int] = (None, 0)
        self._loaded: tuple[object, _Built | None] = (None, None)
        self._selection: _Selection | None = None

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
        parameters = None
        if built is not None and built.recall >= LEAST_RECALL and available >= LEAST_SHARE * rows:
            selection = None if allowed is None else self._select(built, allowed)
            parameters = self._parameters(built, built.effort * max(1.0, k / RECALL_AT), selection)
        if built is None or parameters is None:
            return self._exact.candidates(queries, k, allowed)
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

    def _parameters(self, built: _Built, effort: float, selection: _Selection | None) -> Any | None:
        """How to search; None where a scan of everything is no slower."""
        if selection is None or selection.lists is None:
            if effort > built.index.nlist // 2:
                return None
            return self._faiss.SearchParametersIVF(nprobe=math.ceil(effort), sel=selection and selection.rows)
        if effort * selection.effort_factor > selection.list_count / 2:
            return None
        coarse = self._faiss.SearchParameters(sel=selection.lists)
        nprobe = math.ceil(effort * selection.effort_factor)
        return self._faiss.SearchParametersIVF(nprobe=nprobe, sel=selection.rows, quantizer_params=coarse)

    def _select(self, built: _Built, allowed: NDArray[np.int64]) -> _Selection:
        """Allowed rows, and under a filter only the lists that hold any of them.

        A filter by class leaves out most lists; one that has nothing to do with appearance leaves out most of what each
        list holds, so the effort grows with the share that is left out.
        """
        before = self._selection
        if before is not None and before.allowed is allowed and before.built is built:
            return before
        inside = allowed[: np.searchsorted(allowed, built.rows)]
        selection = _Selection(allowed, built, self._bitmap(inside, built.rows))
        if len(inside) < UNFILTERED_SHARE * built.rows:
            list_of_row = built.list_of_row
            sizes = np.bincount(list_of_row, minlength=built.index.nlist)
            used = np.bincount(list_of_row[inside], minlength=len(sizes)) > 0
            spread = int(sizes[used].sum())
            by_appearance = FILTER_EFFORT if spread < UNFILTERED_SHARE * len(list_of_row) else 1
            selection = replace(
                selection,
                lists=self._bitmap(np.flatnonzero(used), len(used)),
                list_count=int(used.sum()),
                effort_factor=by_appearance * spread / max(len(inside), 1),
            )
        self._selection = selection
        return selection

    def _bitmap(self, numbers: NDArray[np.int64], size: int) -> Any:
        mask = np.zeros(size, dtype=np.bool_)
        mask[numbers] = True
        return self._faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))

    def _measured(self, built: _Built) -> _Built:
        """With the least effort that reaches the goal on some queries, and the recall on others."""
        trial = type(self)(self._folder, self._vectors, self._distance)
        trial._exact.show(built.rows)
        queries = unseen_queries(trial._exact, self._vectors, self._distance, np.arange(built.rows), 2 * _QUERIES)

        def scores(engine: Engine, part: slice) -> list[NDArray[np.float64]]:
            ranked = nearest(engine, self._vectors, self._distance, queries[part], RECALL_AT, None)
            return [scores for _, scores in ranked]

        def recall_with(effort: int, part: slice) -> float:
            trial._shown = (replace(built, effort=effort, recall=1.0), built.rows)
            return recall(truth[part], scores(trial, part))

        truth = scores(trial._exact, slice(None))
        effort, most = 8, int(built.index.nlist) // 2
        while effort < most and recall_with(effort, slice(None, None, 2)) < GOAL:
            effort = min(2 * effort, most)
        return replace(built, effort=effort, recall=recall_with(effort, slice(1, None, 2)))

    def _save(self, built: _Built) -> None:
        """Write the file whole or not at all, with a checksum that tells a damaged one."""
        path = self._folder / _FILE
        make_folder(self._folder)
        remove_leftovers(self._folder)
        body = self._faiss.serialize_index(built.index)
        head = json.dumps({key: getattr(built, key) for key in ("rows", "trained", "effort", "recall")}).encode()
        with writing(path, needed=body.nbytes), replacing(path) as file:
            file.write(_checksum(head, body) + b"\n" + head + b"\n")
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
                checksum, head = (file.readline(10_000).removesuffix(b"\n") for _ in range(2))
                body = np.fromfile(file, dtype=np.uint8)
        except OSError:
            return None
        built = None
        if checksum == _checksum(head, body):
            with contextlib.suppress(RuntimeError):  # written by a faiss that this one does not understand
                built = _Built(self._faiss.deserialize_index(body), **json.loads(head))
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


def _checksum(head: bytes, body: NDArray[np.uint8]) -> bytes:
    return blake2b(body.data, digest_size=16, key=blake2b(head).digest()).hexdigest().encode()
