"""Exact nearest neighbours, for scores, searches, confidences and maps.

**The order.** A reference is nearer if its cosine with the query is larger, or its squared distance smaller. Both are
computed in float64 in a fixed order, which every processor rounds alike, and then rounded to 44 bits. Equal references
are ordered by index. So a ranking is the same on every machine and device.

**How it is found.** Products of 8-bit copies, or of float32 ones where the processor has no exact 8-bit product,
propose every reference that could be among the first k: their error is bounded (:func:`propose`). Proposed references
are compared by products in float64, and what those leave too close to call by the definition. On a GPU everything is
compared in float64 at once, and only groups of columns with a large maximum are sorted. Copies of a vector are ranked
once. Without torch, NumPy computes the products.
"""

from __future__ import annotations

import functools
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nearkin.evaluation.vectors import ArrayLike, Vectors, as_count, as_gallery, as_vectors, check_distance, is_tensor

torch: Any
try:
    import torch
except ImportError:  # an index of an exported encoder works without
    torch = None

Distance = Literal["cosine", "euclidean"]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Receive = Callable[[Ints, Ints, Floats], None]
"""Called with queries ``[B]``, indices of their neighbours ``[B, L]``, nearest first, and similarities ``[B, L]``."""

BLOCK_BYTES = 96 * 2**20
"""Memory for a block of queries, next to the vectors and two copies of them. Larger arrays would go back to the system
after each block, and getting them again costs a tenth of the time."""
_QUERIES, _TILE = 512, 1024
"""Queries and references of one product: their products stay in the processor's cache."""
_SAMPLE = 4096
"""References from which it is guessed how similar the k-th is."""
_SAFETY = (4.5, 1.0)
"""How far guesses of that err on the safe side, in standard deviations: the boldest that proves right counts."""
_DENSE = 0.33
"""Share of queries from which it is cheaper to compare a reference with all of them."""
_PAIRS = 1 << 16
"""Numbers of pairs of vectors that are compared at a time, within the processor's cache."""
_BEYOND = 32
"""Ranks beyond the k-th that are kept, among which there is usually one that is clearly farther."""
_GROUP, _GPU_ROWS = 32, (128, 2048)
"""On a GPU: columns of which only the maximum is compared at first, and the least and most queries of one product."""
_MOST_WORKERS, _GPU_WORKERS, _GPU_BYTES = 16, 4, 3 * 2**30
"""Threads, and what each may hold on a GPU: more of them wait for each other."""

_TRUSTED_BITS = 44
"""Float64 carries 52; the last eight are left to rounding in normalisation and sums."""
_ROUNDING = 2.0**-20
"""A few float32 operations make an error of at most this share."""
_LEVELS = 127


def nearest(
    queries: ArrayLike,
    gallery: ArrayLike | None = None,
    *,
    k: int,
    distance: Distance = "cosine",
    exclude_self: bool | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[Any, Any]:
    """The ``k`` nearest gallery rows of every query, nearest first, equal ones by index.

    Args:
        queries: ``[Q, D]``, tensor or array; the work is done on its device.
        gallery: ``[N, D]``; without it the queries are searched among themselves.
        k: how many neighbours, at most the number of rows that can be found.
        distance: ``"cosine"`` or ``"euclidean"``. A zero vector has cosine 0 with everything.
        exclude_self: leave gallery row ``i`` out for query ``i``; by default when there is no gallery.
        progress: called with the number of queries done so far.

    Returns:
        Indices ``[Q, k]`` (int64) and similarities ``[Q, k]`` (float64): the cosine, or minus the Euclidean distance.
        Tensors on the queries' device where the queries are a tensor, else arrays.

    Example:
        >>> indices, similarities = nearest([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]], k=2)
        >>> indices.tolist()
        [[3, 2], [2, 0], [0, 1], [0, 2]]
        >>> similarities[0].round(4).tolist()
        [1.0, 0.7071]
    """
    check_distance(distance)
    asked = as_vectors(queries, "queries")
    references = asked if gallery is None else as_gallery(gallery, asked)
    without_self = gallery is None if exclude_self is None else exclude_self
    if without_self and len(references) != len(asked):
        raise ValueError(f"exclude_self needs as many gallery rows as queries ({len(asked)}), got {len(references)}")
    k, available = as_count(k, "k"), len(references) - int(without_self)
    if k > available:
        raise ValueError(f"k must be at most {available}, the rows each query can find, got {k}")
    indices, similarities = np.empty((len(asked), k), dtype=np.int64), np.empty((len(asked), k))
    done, lock = 0, threading.Lock()

    def receive(rows: Ints, order: Ints, similar: Floats) -> None:
        nonlocal done
        indices[rows], similarities[rows] = order[:, :k], similar[:, :k]
        if progress is not None:
            with lock:
                done += len(rows)
                progress(done)

    rank(asked, references, np.full(len(asked), k), receive, distance=distance, exclude_self=without_self)
    if not is_tensor(queries):
        return indices, similarities
    return tuple(torch.from_numpy(result).to(queries.device) for result in (indices, similarities))


def rank(
    queries: Vectors,
    references: Vectors,
    depth: Ints,
    receive: Receive,
    *,
    distance: Distance,
    exclude_self: bool,
    classes: tuple[Ints, Ints] | None = None,
) -> None:
    """Rank ``references [N, D]`` for ``queries [Q, D]`` down to rank ``depth [Q]`` at least; 0 leaves a query out.

    ``receive`` is called for some queries at a time, possibly by several threads. ``classes`` of the queries and of the
    references change nothing but speed: what is probably near lies in one block then.
    """
    asked = np.flatnonzero(depth)
    if not len(asked):
        return
    search = _Search(queries, references, distance, None if classes is None else classes[1])
    # Copies of a query share a ranking, which they find themselves in, too.
    same = search.copies.which[asked] if queries is references else asked
    names, first, group = np.unique(same, return_index=True, return_inverse=True)
    deepest = np.zeros(len(names), dtype=np.int64)
    np.maximum.at(deepest, group, depth[asked])
    deepest = np.minimum(deepest + int(exclude_self), len(references))
    near = first if classes is None else classes[0][asked[first]]
    order = np.lexsort((near, np.ceil(np.log2(deepest)))) if classes is not None else np.argsort(deepest, kind="stable")
    members = asked[np.argsort(np.argsort(order)[group], kind="stable")]
    sizes = np.bincount(group)[order]
    ends = np.cumsum(sizes)

    def work(block: slice) -> None:
        these = order[block]
        indices, similarities = search.ranked(names[these], asked[first[these]], int(deepest[these].max()))
        copies = members[ends[block.start] - sizes[block.start] : ends[block.stop - 1]]
        which = np.repeat(np.arange(len(these)), sizes[block])
        for start in range(0, len(copies), _QUERIES):
            rows, ranked = copies[start : start + _QUERIES], which[start : start + _QUERIES]
            rankings = indices[ranked], similarities[ranked]
            receive(rows, *(without_itself(*rankings, rows) if exclude_self else rankings))

    with workers(_GPU_WORKERS if queries.is_cuda else None) as parallel_map:
        for _ in parallel_map(work, search.blocks(deepest[order])):
            pass


def without_itself(indices: Ints, similarities: Floats, rows: Ints) -> tuple[Ints, Floats]:
    """Rankings ``[B, L + 1]`` without the query itself, or without the last where copies displace it: ``[B, L]``."""
    keep = indices != rows[:, None]
    keep[keep.all(axis=1), -1] = False
    shape = (len(rows), indices.shape[1] - 1)
    return indices[keep].reshape(shape), similarities[keep].reshape(shape)


class _Search:
    """References as they are compared: each different one once, those of a class next to each other."""

    def __init__(self, queries: Vectors, references: Vectors, distance: Distance, classes: Ints | None) -> None:
        self.queries, self.references, self.distance = queries, references, distance
        self.copies = _Copies.of(references, classes)
        self.together = queries is references
        largest = max(queries.largest(), references.largest()) if distance == "euclidean" else 1.0
        self.factor = math.ldexp(1.0, -max(math.frexp(largest)[1], -1000))
        """A power of two keeps every value exact and squares within range."""
        kept = self.copies.kept
        self.position_bits = len(kept).bit_length()
        if queries.is_cuda:
            self.rows = self._scaled_on_gpu(references, torch.from_numpy(kept).to(references.source.device))
            self.squares = self.rows.square().sum(1) if distance == "euclidean" else None
            return
        self.rows = np.empty((len(kept), references.dim))

        def prepared(start: int) -> Coded:
            part = slice(start, start + _TILE)
            self.rows[part] = self._scaled(references, kept[part])
            return Coded.of(self.rows[part])

        with workers() as parallel_map:
            self.coded = Coded.joined(list(parallel_map(prepared, range(0, len(kept), _TILE))))
        self.tiles = list(_tiles(self.coded))
        self.squares = None
        if distance == "euclidean":
            self.squares = np.concatenate([np.einsum("nd,nd->n", tile, tile) for tile in _tiles(self.rows)])
        self.sample = None
        if len(kept) > _SAMPLE // 4:
            count = min(_SAMPLE, max(_SAMPLE // 4, len(kept) // 8))
            self.sample = self.coded[np.random.default_rng(0).choice(len(kept), count, replace=False)]

    def _scaled(self, vectors: Vectors, which: Ints) -> Floats:
        """Rows in float64 as the definition compares them."""
        rows = vectors.rows(which)
        rows = rows.cpu().numpy() if vectors.is_cuda else rows
        return unit_rows(rows) if self.distance == "cosine" else rows * self.factor

    def _scaled_on_gpu(self, vectors: Vectors, which: Any) -> Any:
        rows = vectors.rows(which)
        if self.distance == "euclidean":
            return rows * self.factor
        rows = rows / rows.abs().amax(dim=1, keepdim=True).clamp_min(1e-300)
        return rows / rows.norm(dim=1, keepdim=True).clamp_min(1.0)

    def blocks(self, depth: Ints) -> list[slice]:
        """Queries in blocks of about the same memory, by how deep each is ranked."""
        blocks, stop = [], 0
        columns = np.minimum(2 * depth + _TILE, len(self.rows))
        while (start := stop) < len(depth):
            most = min(_QUERIES, BLOCK_BYTES // (64 * int(columns[start : start + _QUERIES].max())))
            if self.queries.is_cuda:
                # Each worker has a block of products in float64, and of their maxima.
                free: int = torch.cuda.mem_get_info(self.rows.device)[0]
                most = min(_GPU_ROWS[1], min(_GPU_BYTES, free // (2 * _GPU_WORKERS)) // (9 * len(self.rows)))
                most -= most % _GPU_ROWS[0] if most > _GPU_ROWS[0] else 0
            stop = min(start + max(1, most), len(depth))
            blocks.append(slice(start, stop))
        return blocks

    def ranked(self, names: Ints, rows: Ints, depth: int, *, guess: bool = True) -> tuple[Ints, Floats]:
        """Indices and similarities ``[B, depth]`` of the nearest references of queries ``rows [B]``.

        ``names`` are those of the queries among the different references, where they are the same vectors.
        """
        query: Any
        if self.queries.is_cuda:
            query = self._scaled_on_gpu(self.queries, torch.from_numpy(rows).to(self.rows.device))
            ids, gaps = self._nearest_on_gpu(query, depth)
        else:
            query = self.rows[names] if self.together else self._scaled(self.queries, rows)
            coded = self.coded[names] if self.together else Coded.of(query)
            proposed, settled = propose(coded, self.tiles, self.sample if guess else None, depth, self.distance)
            if not settled.all():  # those for which the guess was too high are compared with everything
                indices, similarities = np.empty((len(rows), depth), dtype=np.int64), np.empty((len(rows), depth))
                step = max(1, BLOCK_BYTES // (64 * len(self.rows)))
                few = np.flatnonzero(~settled)
                parts = [(np.flatnonzero(settled), True)] if settled.any() else []
                parts += [(few[start : start + step], False) for start in range(0, len(few), step)]
                for part, guess in parts:
                    indices[part], similarities[part] = self.ranked(names[part], rows[part], depth, guess=guess)
                return indices, similarities
            ids, gaps = self._nearest_on_cpu(query, proposed, depth)
        tied = self._settle(ids, gaps, rows, query)
        indices, gaps = self.copies.spread(ids, gaps, tied, depth)
        if self.distance == "euclidean":
            return indices, -np.sqrt(gaps) / self.factor + 0.0
        unit = float(1 << _TRUSTED_BITS)
        return indices, np.round((1.0 - gaps) * unit) / unit + 0.0

    def _gaps(self, products: Any, squares: Any, columns: Any) -> Floats:
        """How far references are, from products in float64: 1 − cosine, or the squared distance; overwrites them."""
        if self.squares is None:
            products *= -1.0
            products += 1.0
        else:
            products *= -2.0
            products += self.squares[columns]
            products += squares
        gaps: Floats = np.maximum(products, 0.0, out=products)
        return gaps

    def _nearest_on_gpu(self, query: Any, depth: int) -> tuple[Ints, Floats]:
        closeness, length = query @ self.rows.T, 1.0
        if self.squares is not None:
            closeness, length = closeness.mul_(2.0).sub_(self.squares), query.square().sum(1, keepdim=True)
        for count in (min(depth + _BEYOND, len(self.rows)), len(self.rows)):
            near, ids = _largest(closeness, count)
            gaps = (length - near).clamp_min_(0.0).cpu().numpy()
            if not self._cut_short(query, gaps, depth):
                break
        return ids.cpu().numpy(), gaps

    def _nearest_on_cpu(self, query: Floats, proposed: list[tuple[Ints, Ints]], depth: int) -> tuple[Ints, Floats]:
        squares = None if self.squares is None else (query * query).sum(1)
        whole, single = [], []
        for number, (columns, where) in enumerate(proposed):
            start, tile = number * _TILE, self.rows[number * _TILE : (number + 1) * _TILE]
            if len(columns):
                products = _product(query, tile if len(columns) == len(tile) else tile[columns])
                square = None if squares is None else squares[:, None]
                whole.append((columns + start, self._gaps(products, square, columns + start)))
            if len(where):
                row = where // len(tile)
                column = where - row * len(tile)
                products = _pair_products(query, row, tile, column)
                square = None if squares is None else squares[row]
                single.append((row, column + start, self._gaps(products, square, column + start)))
        ids, gaps = _gathered(len(query), whole, single)
        # The last bits of a gap give way to its position, so that sorting one number sorts both.
        lost = (1 << self.position_bits) - 1
        order = gaps.view(np.int64) & ~lost
        order |= np.arange(gaps.shape[1])
        order.sort(axis=1)
        order &= lost
        order += np.arange(0, gaps.size, gaps.shape[1])[:, None]  # as one index into all of them, which is faster
        kept = order[:, : depth + _BEYOND]
        near = gaps.take(kept)
        if kept.shape[1] < order.shape[1] and self._cut_short(query, near, depth):
            kept, near = order, gaps.take(order)
        return ids.take(kept).astype(np.int64), near

    def _close(self, query: Any, gaps: Floats) -> NDArray[np.bool_]:
        """Which neighbours ``[B, L - 1]`` are too close to the next one for products in float64 to tell."""
        error = 4.0 * (query.shape[1] + 16) * 2.0**-53
        margin: Any = error + 2.0 ** (1 - _TRUSTED_BITS)
        sorting = gaps[:, 1:] * 2.0 ** (self.position_bits - 52)  # its last bits were left out there
        if self.squares is not None:
            squares = (query * query).sum(1) + self.squares.max()
            squares = squares.cpu().numpy() if self.queries.is_cuda else squares
            margin = 2.0 * error * squares[:, None] + gaps[:, 1:] * 2.0 ** (2 - _TRUSTED_BITS)
        with np.errstate(invalid="ignore"):  # of the infinities that fill up short rows
            close: NDArray[np.bool_] = (np.diff(gaps, axis=1) <= margin + sorting) & np.isfinite(gaps[:, 1:])
        return close

    def _cut_short(self, query: Any, gaps: Floats, depth: int) -> bool:
        """Whether something that was left out may be as near as what is at the last rank."""
        if gaps.shape[1] == len(self.rows):
            return False
        return bool(self._close(query, gaps[:, min(depth, gaps.shape[1]) - 1 :]).all(axis=1).any())

    def _settle(self, ids: Ints, gaps: Floats, rows: Ints, query: Any) -> NDArray[np.bool_] | None:
        """Put neighbours that are too close for float64 into the order of the definition, in ``ids [B, M]`` itself.

        Says which are equal to the one before by the definition; None where none is.
        """
        close = self._close(query, gaps)
        if not close.any():
            return None
        edge = np.zeros((len(close), 1), dtype=bool)
        after = np.concatenate([edge, close], axis=1)
        touched = np.flatnonzero(after | np.concatenate([close, edge], axis=1))
        begins = ~after.ravel()[touched]  # a run begins where nothing before is close
        run = np.cumsum(begins)
        column = ids.ravel()[touched]
        code = self._codes(rows, query, touched // ids.shape[1], column)
        order = np.lexsort((self.copies.kept[column], code, run))
        ids.ravel()[touched] = column[order]
        equal = np.zeros(len(touched), dtype=bool)
        equal[1:] = (np.diff(code[order]) == 0) & ~begins[1:]
        # Equal ones get one gap, that of the first.
        values = gaps.ravel()[touched][order]
        values = values[np.maximum.accumulate(np.where(equal, 0, np.arange(len(values))))]
        gaps.ravel()[touched] = values
        tied = np.zeros(ids.shape, dtype=bool)
        tied.ravel()[touched] = equal
        return tied

    def _codes(self, rows: Ints, query: Any, which: Ints, ids: Ints) -> Ints:
        """The definition: int64 ``[P]``, less is nearer, for queries ``which`` and different references ``ids``."""
        references = self.rows
        if self.queries.is_cuda:  # the definition is that of the CPU
            used, ids = np.unique(ids, return_inverse=True)
            query, references = self._scaled(self.queries, rows), self._scaled(self.references, self.copies.kept[used])
        step = max(1, _PAIRS // self.references.dim)
        parts = []
        for start in range(0, len(ids), step):
            part = slice(start, start + step)
            x, y = query[which[part]], references[ids[part]]
            if self.distance == "cosine":
                parts.append(np.round(tree_sum(x * y) * -float(1 << _TRUSTED_BITS)).astype(np.int64))
            else:
                # The bits of a positive number order as an integer; the squared distance is rounded relative to itself.
                dropped = 52 - _TRUSTED_BITS
                parts.append((tree_sum((x - y) ** 2).view(np.int64) + (1 << (dropped - 1))) >> dropped)
        return np.concatenate(parts)


def _largest(x: Any, count: int) -> tuple[Any, Any]:
    """The ``count`` largest numbers of every row ``[B, N]``, in order, and their columns.

    They lie in the ``count`` groups of columns whose maxima are largest, so only those are sorted.
    """
    size = min(_GROUP, x.shape[1] // (4 * count))
    if size < 2:
        return tuple(x.topk(count, dim=1))
    grouped = x.shape[1] - x.shape[1] % size
    best = x[:, :grouped].unflatten(1, (size, -1)).amax(1).topk(count, dim=1, sorted=False).indices
    columns = (best[:, :, None] + torch.arange(0, grouped, grouped // size, device=x.device)).flatten(1)
    rest = torch.arange(grouped, x.shape[1], device=x.device).expand(len(x), -1)
    columns = torch.cat([columns, rest], dim=1)
    values, order = x.gather(1, columns).topk(count, dim=1)
    return values, columns.gather(1, order)


def _tiles(x: Any) -> Iterator[Any]:
    return (x[start : start + _TILE] for start in range(0, len(x), _TILE))


def unit_rows(x: Floats) -> Floats:
    """Float64 rows of length 1, the same on every machine; zero rows stay zero."""
    # By the largest entry first: no overflow in the norm, and exact multiples of a vector become exact copies.
    largest = np.abs(x).max(axis=1, keepdims=True)
    x = x / np.where(largest > 0, largest, 1.0)
    x /= np.maximum(np.sqrt(tree_sum(x * x)), 1.0)[:, None]
    return x


def tree_sum(x: Floats) -> Floats:
    """Sums of the rows of ``x [N, D]``, halves added to halves: single additions, whose order nothing changes."""
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        folded = x[:, :half] + x[:, half : 2 * half]
        x = np.concatenate([folded, x[:, 2 * half :]], axis=1) if x.shape[1] % 2 else folded
    return x[:, 0] + 0.0


@dataclass(frozen=True)
class _Copies:
    """The different rows among vectors, and the rows that are copies of each."""

    kept: Ints
    """``[U]``: the first row of each."""
    which: Ints
    """``[N]``: which of the different ones a row is."""
    members: Ints
    """``[N]``: rows by that; those of u begin at ``starts[u]``."""
    starts: Ints

    @classmethod
    def of(cls, vectors: Vectors, classes: Ints | None) -> _Copies:
        """Different rows are ordered by the class of their first, where classes are given."""
        hashes = np.concatenate([_hashes(vectors.source[part]) for part in vectors.parts()])
        names, first, which = np.unique(hashes, return_index=True, return_inverse=True)
        if len(names) < len(hashes):
            again = np.flatnonzero(first[which] != np.arange(len(which)))
            step = max(1, _PAIRS // vectors.dim)
            for rows in np.split(again, range(step, len(again), step)):
                if not bool((vectors.source[rows] == vectors.source[first[which[rows]]]).all()):
                    first = which = np.arange(len(which))  # different rows with one hash: all count as different
                    break
        order = np.lexsort((first,) if classes is None else (first, classes[first]))
        which = np.argsort(order)[which]
        sizes = np.bincount(which)
        return cls(first[order], which, np.argsort(which, kind="stable"), np.cumsum(sizes) - sizes)

    def spread(self, ids: Ints, gaps: Floats, tied: NDArray[np.bool_] | None, depth: int) -> tuple[Ints, Floats]:
        """Rankings of different rows ``[B, M]`` as rankings of rows ``[B, depth]``, equal ones by index."""
        if len(self.kept) == len(self.which):
            return self.kept[ids[:, :depth]], gaps[:, :depth]
        counts = np.diff(np.append(self.starts, len(self.which)))[ids] * np.isfinite(gaps)
        begins = np.cumsum(counts, axis=1) - counts
        group = np.arange(ids.size).reshape(ids.shape)
        if tied is not None:
            group = np.maximum.accumulate(np.where(tied, 0, group), axis=1)
            begins = begins.ravel()[group]
        counts = np.where(begins < depth, np.minimum(counts, depth), 0).ravel()
        entry = np.repeat(np.arange(ids.size), counts)
        within = np.arange(len(entry)) - np.repeat(np.cumsum(counts) - counts, counts)
        index = self.members[self.starts[ids.ravel()[entry]] + within]
        if tied is not None:
            order = np.lexsort((index, group.ravel()[entry]))
            index, entry = index[order], entry[order]
        row = entry // ids.shape[1]
        first = np.searchsorted(row, np.arange(len(ids)))
        taken = first[:, None] + np.arange(depth)
        return index[taken], gaps.ravel()[entry[taken]]


def _hashes(x: Any) -> Ints:
    """A number for each row, the same for rows of the same bits: integers wrap round, alike in every order."""
    factors = np.random.default_rng(0).integers(-(2**62), 2**62, x.shape[1]) | 1
    if isinstance(x, np.ndarray):
        return np.asarray((np.ascontiguousarray(x).view(f"i{x.itemsize}") * factors).sum(axis=1))
    bits = x.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])
    return (bits * torch.from_numpy(factors).to(x.device)).sum(dim=1).cpu().numpy()  # type: ignore[no-any-return]


def _gathered(
    queries: int, whole: list[tuple[Ints, Floats]], single: list[tuple[Ints, Ints, Floats]]
) -> tuple[NDArray[np.int32], Floats]:
    """References and gaps ``[B, M]`` from whole columns and single pairs; short rows end with infinity."""
    wide = sum(len(columns) for columns, _ in whole)
    row = np.concatenate([pairs[0] for pairs in single] or [np.empty(0, dtype=np.int64)])
    counts = np.bincount(row, minlength=queries)
    ids = np.zeros((queries, wide + int(counts.max())), dtype=np.int32)
    gaps = np.full(ids.shape, np.inf)
    at = 0
    for columns, values in whole:
        ids[:, at : at + len(columns)], gaps[:, at : at + len(columns)] = columns, values
        at += len(columns)
    if len(row):
        order = np.argsort(row.astype(np.uint16), kind="stable")
        row = row[order]
        slot = wide + np.arange(len(row)) - (np.cumsum(counts) - counts)[row]
        ids[row, slot] = np.concatenate([pairs[1] for pairs in single])[order]
        gaps[row, slot] = np.concatenate([pairs[2] for pairs in single])[order]
    return ids, gaps


def _product(x: Any, y: Any) -> Any:
    return x @ y.T if torch is None else (torch.from_numpy(x) @ torch.from_numpy(y).T).numpy()


def _pair_products(x: Floats, rows: Ints, y: Floats, columns: Ints) -> Floats:
    """Inner products of rows ``rows [P]``, ascending, of ``x`` and ``columns [P]`` of ``y``."""
    if torch is None:
        step = max(1, _PAIRS // x.shape[1])
        parts = [slice(start, start + step) for start in range(0, len(rows), step)]
        return np.concatenate([np.einsum("pd,pd->p", x[rows[part]], y[columns[part]]) for part in parts])
    # As a sparse matrix, for which no row is copied: ten times as fast.
    starts = np.searchsorted(rows, np.arange(len(x) + 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once that sparse matrices are new to it
        csr = (torch.from_numpy(array) for array in (starts, columns, np.zeros(len(rows))))
        pattern = torch.sparse_csr_tensor(*csr, size=(len(x), len(y)), check_invariants=False)
    products = torch.sparse.sampled_addmm(pattern, torch.from_numpy(x), torch.from_numpy(y).T, beta=0.0)
    return np.asarray(products.values().numpy())


@dataclass(frozen=True)
class Coded:
    """Vectors ``[N, D]`` in 8 bits, and what bounds the error of their products.

    A vector x is stored as whole numbers c of −127 … 127 and a scale s, x̂ = s·c. Products of whole numbers are computed
    without rounding, and by Cauchy and Schwarz q·x is within ‖q − q̂‖·‖x‖ + ‖q̂‖·‖x − x̂‖ of q̂·x̂.
    """

    codes: NDArray[np.int8]
    figures: Singles
    """``[N, 3]``: scale, ‖x‖ and ‖x − x̂‖, the last two rounded up."""
    vectors: Singles | None
    """In float32; None where products are in 8 bits."""

    @classmethod
    def of(cls, vectors: NDArray[np.floating[Any]]) -> Coded:
        x = np.asarray(vectors, dtype=np.float64)
        largest = np.abs(x).max(axis=1, initial=0.0)
        scale = (np.where(largest > 0, largest, _LEVELS) / _LEVELS).astype(np.float32)
        scale = np.where(scale > 0, scale, np.float32(1.0))  # numbers too small for float32 become zeros
        steps = scale[:, None].astype(np.float64)
        codes = np.clip(np.rint(x / steps), -_LEVELS, _LEVELS)
        lost = x - codes * steps
        lengths = np.sqrt(np.stack([np.einsum("nd,nd->n", rows, rows) for rows in (x, lost)], axis=1))
        figures = np.column_stack([scale, (lengths * (1 + _ROUNDING)).astype(np.float32)])
        return cls(codes.astype(np.int8), figures, None if in_8_bits(x.shape[1]) else x.astype(np.float32))

    @classmethod
    def joined(cls, parts: Sequence[Coded]) -> Coded:
        vectors = [part.vectors for part in parts if part.vectors is not None]
        return cls(
            np.concatenate([part.codes for part in parts]),
            np.concatenate([part.figures for part in parts]),
            np.concatenate(vectors) if vectors else None,
        )

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, which: slice | Ints | NDArray[np.bool_]) -> Coded:
        return Coded(self.codes[which], self.figures[which], None if self.vectors is None else self.vectors[which])

    @functools.cached_property
    def _largest(self) -> tuple[np.float32, np.float32]:
        """The longest length, and the most that rounding took off."""
        return self.figures[:, 1].max(), self.figures[:, 2].max()

    def products(self, others: Coded, distance: Distance) -> tuple[Singles, Singles]:
        """What orders others x for each q, ``[N, M]`` in float32, and how far each row may be off ``[N, 1]``.

        It is q·x for the cosine of vectors of length 1, and q·x − ‖x‖²/2 for Euclidean distances.
        """
        scale, length, lost = (column[:, None] for column in self.figures.T)
        longest, most_lost = others._largest
        if others.vectors is None:
            products = torch._int_mm(torch.from_numpy(self.codes), torch.from_numpy(others.codes).T).float()
            products = products.mul_(torch.from_numpy(others.figures[:, 0])).mul_(torch.from_numpy(scale)).numpy()
            error = lost * longest + (length + lost) * most_lost + 4 * _ROUNDING * length * longest
        else:
            assert self.vectors is not None
            products = _product(self.vectors, others.vectors)
            # Rounded to float32, multiplied, added in any order (Higham, Accuracy and Stability, 3.1).
            error = (2 * (others.vectors.shape[1] + 3) * 2.0**-24 + _ROUNDING) * length * longest
        if distance == "euclidean":
            half = 0.5 * others.figures[:, 1] ** 2
            products -= half
            error = error + 4 * _ROUNDING * half.max()
        return products, error


def propose(
    queries: Coded,
    tiles: Sequence[Coded],
    sample: Coded | None,
    k: int,
    distance: Distance,
    *,
    masks: Sequence[NDArray[np.bool_] | None] | None = None,
    map_tiles: Callable[..., Iterator[Any]] = map,
) -> tuple[list[tuple[Ints, Ints]], NDArray[np.bool_]]:
    """Every reference that could be among the ``k`` nearest of a query, and few others.

    The ``sample`` of references, drawn at random, tells roughly how similar the k-th is. What is certainly less similar
    is left out; the guess was too high where fewer than k are certainly more similar. Without it all are proposed.
    ``masks`` say which references of a tile count, None for all. ``map_tiles`` is ``map`` or a parallel one.

    Returns for each tile the references that are proposed to all queries, as most of them want them, and the positions
    of further pairs in the flattened ``[Q, tile]``; and for which queries ``[Q]`` nothing is missing.
    """
    masks = masks or [None] * len(tiles)
    total = sum(len(tile) if mask is None else int(mask.sum()) for tile, mask in zip(tiles, masks, strict=True))
    k = min(k, total)
    limits = np.full((len(queries), 1), np.finfo(np.float32).min)
    if sample is not None and len(sample):
        expected = k * len(sample) / total
        sample_ranks = [max(1, math.ceil(expected + safety * (math.sqrt(expected) + 1))) for safety in _SAFETY]
        if sample_ranks[0] <= len(sample):
            similar, error = queries.products(sample, distance)
            least = len(sample) - sample_ranks[0]
            nearest_ones = np.sort(np.partition(similar, least, axis=1)[:, least:], axis=1)
            limits = nearest_ones[:, [sample_ranks[0] - rank for rank in sample_ranks]] - error

    def scan(number: int) -> tuple[Ints, Singles, Ints]:
        """Pairs that may exceed the lowest limit, how similar they are at most, and how many surely exceed each."""
        similar, error = queries.products(tiles[number], distance)
        if (mask := masks[number]) is not None:
            similar[:, ~mask] = -np.inf
        where = np.flatnonzero(similar >= limits[:, :1] - error)
        rows, values = where // similar.shape[1], similar.ravel()[where]
        if len(where) > similar.size // 16:  # then it is cheaper to count everything
            exceed = [(similar >= limit[:, None]).view(np.uint8) for limit in (limits + error).T]
            certain = [np.add.reduce(above, axis=1, dtype=np.int64) for above in exceed]
        else:
            exceed = [values >= limit[rows] for limit in (limits + error).T]
            certain = [np.bincount(rows[above], minlength=len(queries)) for above in exceed]
        return where, values + error[rows, 0], np.stack(certain)

    scanned = list(map_tiles(scan, range(len(tiles))))
    # The highest limit that at least k references certainly exceed.
    right = sum(certain for *_, certain in scanned) >= k
    limit = np.take_along_axis(limits, np.maximum(right.sum(axis=0) - 1, 0)[:, None], axis=1)[:, 0]
    proposed = []
    for (where, upper, _), tile in zip(scanned, tiles, strict=True):
        where = where[upper >= limit[where // len(tile)]]
        column = where - where // len(tile) * len(tile)  # faster than the remainder
        wanted = np.bincount(column, minlength=len(tile)) > _DENSE * len(queries)
        proposed.append((np.flatnonzero(wanted), where[~wanted[column]]))
    return proposed, right[0]


@functools.cache
def in_8_bits(dim: int) -> bool:
    """Whether products are of 8-bit copies: this processor must not cut off sums, as older ones do.

    Torch multiplies single columns wrongly.
    """
    if torch is None or dim == 1:
        return False
    ends = torch.full((64, 256), _LEVELS, dtype=torch.int8)
    ends[::2] = -_LEVELS
    try:
        products = torch._int_mm(ends, ends.T)
    except (AttributeError, RuntimeError):
        return False
    return bool((products.long() == ends.long() @ ends.long().T).all())


@contextmanager
def workers(most: int | None = None) -> Iterator[Callable[..., Iterator[Any]]]:
    """A function like ``map`` whose calls run in parallel, with one thread each, so that small operations do, too."""
    if torch is None:
        yield map
        return
    from nearkin.numerics import tf32

    threads = torch.get_num_threads()
    with tf32(False):
        if (count := min(threads, most or _MOST_WORKERS)) == 1:
            yield map
            return
        torch.set_num_threads(1)
        pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))
        try:
            yield pool.map
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)
