"""Approximate engines by faiss, for more vectors than one scans for every query: lists (IVF), and a graph (HNSW).

Both hold vectors in 8 bits and are asked for more rows than are wanted, as all are scored again. What was added since
they were built is scanned exactly beside them, so that it is found at once; and so is everything where that is no
slower, where a filter leaves few rows, and where they find too few. faiss cannot delete from a graph: rows that were
removed stay in both, and are passed over as those are that a filter leaves out.
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
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from nearkin.disk import make_folder, remove_leftovers, replacing, writing
from nearkin.errors import require
from nearkin.index.engine import Distance, Engine
from nearkin.index.exact import ExactEngine
from nearkin.index.queries import nearest_of
from nearkin.index.recall import K, held_out, recall
from nearkin.index.segments import Segments

LEAST_ROWS = 200_000
"""Of fewer the exact scan takes some 5 ms for a query (128 numbers, two cores): nothing to save."""
LEAST_SHARE = 0.05
"""Where a filter allows a smaller share of rows they are scanned exactly, which is fast."""
FILTERED = 4
"""So much more effort with a filter that has to do with looks, as it leaves out whole lists: where the query's own kind
is left out, the nearest of others are spread (of half or a tenth of the kinds 0.92 to 0.97 were found, then 0.97 to
1)."""
MOST = 0.9
"""What allows this share of rows is no filter, but a few removed rows. With fewer a graph is not used: a walk to rows
of other kinds ends too early (of a tenth of the kinds it found 0.59 of the ten nearest, of 1 % of rows 0.24 to 0.5)."""
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
_QUERIES = 256
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
    """Lists to look into, or nodes of the graph to keep in mind, for ten neighbours."""
    recall: float = 0.0
    """The share of the ten nearest that it finds, of queries that were not used to choose the effort."""

    @functools.cached_property
    def list_of_row(self) -> NDArray[np.int32]:
        """Which list each row is in."""
        lists, found = self.index.invlists, np.empty(self.rows, dtype=np.int32)
        for number in range(self.index.nlist):
            if size := lists.list_size(number):
                found[require("faiss", "faiss").rev_swig_ptr(lists.get_ids(number), size)] = number
        return found


@dataclass(frozen=True)
class _Selected:
    """Rows that are allowed, as faiss wants them told; kept for the next search, as few change from one to the next."""

    allowed: NDArray[np.int64]
    built: _Built
    rows: Any
    lists: Any = None
    count: int = 0
    """Lists that hold any of them."""
    times: float = 1.0
    """By how much more effort to search among them."""


class FaissEngine:
    """Lists around centres of k-means; a query looks into those whose centres are nearest."""

    effort_name: ClassVar = "lists searched"
    least_share: ClassVar = LEAST_SHARE

    def __init__(self, folder: Path, vectors: Segments, distance: Distance) -> None:
        self._faiss = require("faiss", "faiss")
        self._folder, self._vectors, self._distance = folder, vectors, distance
        self._exact = ExactEngine(folder / "exact", vectors, distance)
        self._shown: tuple[_Built | None, int] = (None, 0)
        self._loaded: tuple[object, _Built | None] = (None, None)
        self._selected: _Selected | None = None

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
        parameters = None
        if built is not None and built.recall >= LEAST_RECALL and among >= self.least_share * rows:
            selected = None if allowed is None else self._select(built, allowed)
            parameters = self._parameters(built, built.effort * max(1.0, k / K), selected)
        if built is None or parameters is None:
            return self._exact.candidates(queries, k, allowed)
        wanted = min(max(_MORE * k, _AT_LEAST), built.rows)
        with self._threads():
            # With faiss.contrib.torch_utils imported, search takes no parameters, and what does has another name.
            search = getattr(built.index, "search_numpy", built.index.search)
            places = search(queries.astype(np.float32), wanted, params=parameters)[1]
        found = [row[row >= 0] for row in places]
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
        if built.recall < LEAST_RECALL:
            why = f"as faiss finds {built.recall:.2f} of the {K} nearest"
            return {"rows": rows, "built": built.rows, "scan": f"exact, {why}"}
        told = {"rows": rows, "built": built.rows, f"recall@{K}": round(built.recall, 4)}
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
        """The greatest effort: with more a scan of everything is no slower."""
        return int(built.index.nlist) // 2

    def _parameters(self, built: _Built, effort: float, selected: _Selected | None) -> Any | None:
        """How to search; None where it is better to scan."""
        if selected is None or selected.lists is None:
            if effort > self._most(built):
                return None
            return self._faiss.SearchParametersIVF(nprobe=math.ceil(effort), sel=selected and selected.rows)
        if effort * selected.times > selected.count / 2:
            return None
        coarse = self._faiss.SearchParameters(sel=selected.lists)
        nprobe = math.ceil(effort * selected.times)
        return self._faiss.SearchParametersIVF(nprobe=nprobe, sel=selected.rows, quantizer_params=coarse)

    def _select(self, built: _Built, allowed: NDArray[np.int64]) -> _Selected:
        before = self._selected
        if before is not None and before.allowed is allowed and before.built is built:
            return before
        inside = allowed[: np.searchsorted(allowed, built.rows)]
        selected = _Selected(allowed, built, self._only(inside, built.rows))
        if len(inside) < MOST * built.rows:
            selected = self._select_lists(selected, inside)
        self._selected = selected
        return selected

    def _select_lists(self, selected: _Selected, inside: NDArray[np.int64]) -> _Selected:
        """Only lists that hold any, and the more of them the fewer of what they hold are allowed.

        A filter by kind leaves out most lists, and one that has nothing to do with looks most of what each holds.
        """
        where = selected.built.list_of_row
        sizes = np.bincount(where, minlength=selected.built.index.nlist)
        held = np.bincount(where[inside], minlength=len(sizes)) > 0
        spread = int(sizes[held].sum())
        times = (FILTERED if spread < MOST * len(where) else 1) * spread / max(len(inside), 1)
        return replace(selected, lists=self._only(np.flatnonzero(held), len(held)), count=int(held.sum()), times=times)

    def _only(self, numbers: NDArray[np.int64], of: int) -> Any:
        mask = np.zeros(of, dtype=np.bool_)
        mask[numbers] = True
        return self._faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))

    @property
    def _metric(self) -> Any:
        return self._faiss.METRIC_INNER_PRODUCT if self._distance == "cosine" else self._faiss.METRIC_L2

    def _sample(self, rows: int, most: int) -> NDArray[np.float32]:
        some = np.random.default_rng(0).choice(rows, min(rows, most), replace=False)
        taken: NDArray[np.float32] = self._vectors.take(np.sort(some))
        return taken

    def _measured(self, built: _Built) -> _Built:
        """With the least effort that reaches the goal on some queries, and what it finds for others."""
        trial = type(self)(self._folder, self._vectors, self._distance)
        trial._exact.show(built.rows)
        queries = held_out(trial._exact, self._vectors, self._distance, np.arange(built.rows), 2 * _QUERIES)

        def scores(engine: Engine, part: slice) -> list[NDArray[np.float64]]:
            return [each for _, each in nearest_of(engine, self._vectors, self._distance, queries[part], K, None)]

        def found(effort: int, part: slice) -> float:
            trial._shown = (replace(built, effort=effort, recall=1.0), built.rows)
            return recall(truth[part], scores(trial, part))

        truth = scores(trial._exact, slice(None))
        effort, most = 8, self._most(built)
        while effort < most and found(effort, slice(None, None, 2)) < GOAL:
            effort = min(2 * effort, most)
        return replace(built, effort=effort, recall=found(effort, slice(1, None, 2)))

    def _save(self, built: _Built) -> None:
        """Whole or not at all, with a sum by which a damaged file is told."""
        path = self._folder / _FILE
        make_folder(self._folder)
        remove_leftovers(self._folder)
        body = self._faiss.serialize_index(built.index)
        about = json.dumps({key: getattr(built, key) for key in ("rows", "trained", "effort", "recall")}).encode()
        with writing(path, needed=body.nbytes), replacing(path) as file:
            file.write(_sum(about, body) + b"\n" + about + b"\n")
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
                told, about = (file.readline(10_000).removesuffix(b"\n") for _ in range(2))
                body = np.fromfile(file, dtype=np.uint8)
        except OSError:
            return None
        built = None
        if told == _sum(about, body):
            with contextlib.suppress(RuntimeError):  # written by a faiss that this one does not understand
                built = _Built(self._faiss.deserialize_index(body), **json.loads(about))
        self._loaded = (key, built)
        return built

    @contextlib.contextmanager
    def _threads(self) -> Iterator[None]:
        """As many threads as torch takes, which is what people set; where it is not in use, as many as faiss does."""
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


class FaissGraphEngine(FaissEngine):
    """A graph from each vector to some near ones, along which a query walks: faster than lists, and slow to build."""

    effort_name: ClassVar = "nodes kept in mind"
    least_share: ClassVar = MOST

    def _trained(self, rows: int) -> Any:
        index = self._faiss.IndexHNSWSQ(self._vectors.width, self._faiss.ScalarQuantizer.QT_8bit, _LINKS, self._metric)
        index.hnsw.efConstruction = _CONSTRUCTION
        index.train(self._sample(rows, _BLOCK))
        return index

    def _most(self, built: _Built) -> int:
        return max(64, built.rows // 50)

    def _parameters(self, built: _Built, effort: float, selected: _Selected | None) -> Any | None:
        if effort > self._most(built):
            return None
        return self._faiss.SearchParametersHNSW(efSearch=math.ceil(effort), sel=selected and selected.rows)

    def _select_lists(self, selected: _Selected, inside: NDArray[np.int64]) -> _Selected:
        return selected


def _sum(about: bytes, body: NDArray[np.uint8]) -> bytes:
    return blake2b(body.data, digest_size=16, key=blake2b(about).digest()).hexdigest().encode()
