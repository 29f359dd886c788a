"""Exact nearest neighbours, block by block, with ties in a defined order.

The order is that of :mod:`nearkin.evaluation.pairs`. A matrix product in float64 decides where it is certain to agree
with that, and what lies too close together for it is compared by the definition. Rows of the gallery that are copies
of each other share one product, whichever tile they fell into; queries that are copies share one ranking.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nearkin.errors import did_you_mean
from nearkin.evaluation.pairs import Distance, Metric, metric_of
from nearkin.evaluation.selection import argsort_rows, columns_of, places_for_sure, positions, sorted_by, spread
from nearkin.evaluation.vectors import ArrayLike, Vectors, as_count, as_gallery, as_vectors, row_hashes

# What a block of queries against the whole gallery may take; larger blocks are hardly faster.
BLOCK_BYTES = 256 * 2**20
# Products, one expanded or masked copy of them, and what is kept of them.
_BYTES_PER_PAIR = 24
# Columns from which it is guessed how near the last place of a ranking is.
_SAMPLE = 2048


def nearest(
    queries: ArrayLike,
    gallery: ArrayLike | None = None,
    *,
    k: int,
    distance: Distance = "cosine",
    exclude_self: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """The ``k`` nearest gallery rows of every query, nearest first, equal ones by index.

    Args:
        queries: ``[Q, D]``, tensor or array; the work is done on its device.
        gallery: ``[N, D]``; without it the queries are searched among themselves.
        k: how many neighbours, at most the number of rows that can be found.
        distance: ``"cosine"`` or ``"euclidean"``. A zero vector has cosine 0 with everything.
        exclude_self: leave gallery row ``i`` out for query ``i``; by default when there is no gallery.

    Returns:
        Indices ``[Q, k]`` (int64) and similarities ``[Q, k]`` (float64): the cosine, or minus the Euclidean distance.

    Example:
        >>> indices, similarities = nearest(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]), k=2)
        >>> indices.tolist()
        [[3, 2], [2, 0], [0, 1], [0, 2]]
        >>> similarities[0]
        tensor([1.0000, 0.7071], dtype=torch.float64)
    """
    check_distance(distance)
    query_rows = as_vectors(queries, "queries")
    gallery_rows = query_rows if gallery is None else as_gallery(gallery, query_rows)
    without_self = gallery is None if exclude_self is None else exclude_self
    if without_self and len(gallery_rows) != len(query_rows):
        raise ValueError(
            f"exclude_self needs as many gallery rows as queries ({len(query_rows)}), got {len(gallery_rows)}"
        )
    k = as_count(k, "k")
    available = len(gallery_rows) - int(without_self)
    if k > available:
        raise ValueError(f"k must be at most {available}, the rows each query can find, got {k}")
    indices = torch.empty(len(query_rows), k, dtype=torch.int64, device=query_rows.device)
    similarities = torch.empty(len(query_rows), k, dtype=torch.float64, device=query_rows.device)
    depth = torch.full((len(query_rows),), k)
    for block in ranked_blocks(query_rows, gallery_rows, depth, distance=distance, exclude_self=without_self):
        rows = block.rows.to(query_rows.device)
        indices[rows] = block.indices
        similarities[rows] = block.similarities
    return indices, similarities


@dataclass(frozen=True)
class RankedBlock:
    """The neighbours of some queries: positions ``rows [B]`` (on the CPU), ``indices`` and ``similarities [B, L]``."""

    rows: Tensor
    indices: Tensor
    similarities: Tensor

    def of(self, rows: Tensor, ranked: Tensor, *, exclude_self: bool) -> RankedBlock:
        """The rankings ``ranked [M]`` of this for copies ``rows [M]`` of the queries, each with itself left out."""
        indices, similarities = self.indices[ranked], self.similarities[ranked]
        if exclude_self:
            itself = indices == rows.to(indices.device)[:, None]
            itself[:, -1] |= ~itself.any(dim=1)
            kept = torch.arange(indices.shape[1] - 1, device=indices.device)
            kept = kept + (kept >= itself.byte().argmax(dim=1, keepdim=True))
            indices, similarities = indices.gather(1, kept), similarities.gather(1, kept)
        return RankedBlock(rows, indices, similarities)


def ranked_blocks(
    queries: Vectors, gallery: Vectors, depth: Tensor, *, distance: Distance, exclude_self: bool
) -> Iterator[RankedBlock]:
    """Rank ``gallery [N, D]`` for ``queries [Q, D]`` to at least ``depth [Q]`` places.

    Queries of similar depth share a block, so one large class does not make every ranking long; queries of depth 0
    are left out. Memory is bounded by ``BLOCK_BYTES`` beside the vectors themselves and a float64 copy of the gallery.
    """
    asked = (depth > 0).nonzero()[:, 0]
    if not len(asked):
        return
    metric = metric_of(distance, queries, gallery)
    columns = torch.empty(len(gallery), gallery.dim, dtype=torch.float64, device=gallery.device)
    for part in gallery.parts():
        columns[part] = metric.scale(gallery.rows(part))
    columns, copy_of = _distinct(columns)
    same = copy_of.cpu()[asked] if copy_of is not None and queries is gallery else torch.arange(len(asked))
    _, group, sizes = torch.unique(same, return_inverse=True, return_counts=True)
    # Each group is ranked once, with itself, which is then left out: copies of a query differ in nothing else.
    deepest = torch.zeros_like(sizes).scatter_reduce_(0, group, depth[asked], "amax") + int(exclude_self)
    order = deepest.argsort(stable=True)
    members = asked[order.argsort()[group].argsort(stable=True)]
    sizes = sizes[order]
    ends = sizes.cumsum(0)
    block = max(1, BLOCK_BYTES // (_BYTES_PER_PAIR * len(gallery)))
    for start in range(0, len(order), block):
        part = slice(start, start + block)
        rows = members[(ends - sizes)[part]].to(queries.device)
        scaled = metric.scale(queries.rows(rows))
        values = metric.products(scaled, columns)
        if copy_of is not None:
            values = columns_of(values, copy_of)
        places = min(int(deepest[order[part]].max()), len(gallery))
        error = 2.0 * metric.error(scaled, columns)[:, None]
        values, indices = _nearest_first(values, places, error, metric)
        close = (values.diff(dim=1) <= error + metric.resolution(values[:, 1:])) & values[:, 1:].isfinite()
        if bool(close.any()):
            _order_close_ones(indices, close, rows, copy_of, metric)
        ranking = RankedBlock(rows.cpu(), indices[:, :places], metric.similarity(values[:, :places]))
        which = torch.repeat_interleave(sizes[part])
        copies = members[int(ends[start] - sizes[start]) :][: len(which)]
        for own, ranked in zip(copies.split(block), which.split(block), strict=True):  # type: ignore[no-untyped-call]
            yield ranking.of(own, ranked.to(queries.device), exclude_self=exclude_self)


def _nearest_first(values: Tensor, places: int, error: Tensor, metric: Metric) -> tuple[Tensor, Tensor]:
    """Of each row of ``values [B, N]`` the least ones in order, with their columns: ``places`` and all that are close.

    Rows that have fewer are filled with infinity.
    """
    rows, total = values.shape
    if total <= 2 * _SAMPLE or 4 * places > total:
        order = argsort_rows(values)
        return values.gather(1, order), order
    sample = values[:, :: total // _SAMPLE]
    place = int(places_for_sure(torch.tensor([places]), sample.shape[1] / total))
    limit = sample.topk(min(place, sample.shape[1]), dim=1, largest=False).values[:, -1:]
    found = positions(values <= limit)
    lacking = torch.bincount(found // total, minlength=rows) < places
    if bool(lacking.any()):
        limit[lacking] = values[lacking].kthvalue(places, dim=1, keepdim=True).values
    found = positions(values <= limit + error + metric.resolution(limit))
    row, column = found // total, found % total
    counts = torch.bincount(row, minlength=rows)
    within = spread(torch.zeros_like(counts), counts)
    least = values.new_full((rows, int(counts.max())), torch.inf)
    indices = torch.zeros(least.shape, dtype=torch.int64, device=values.device)
    least[row, within] = values.flatten()[found]
    indices[row, within] = column
    order = argsort_rows(least)
    return least.gather(1, order), indices.gather(1, order)


def _order_close_ones(
    indices: Tensor, close: Tensor, query_rows: Tensor, copy_of: Tensor | None, metric: Metric
) -> None:
    """Put neighbours that follow each other closely into the order of the definition, in ``indices [B, M]`` itself.

    ``close [B, M - 1]`` tells which are close to the next one.
    """
    edge = close.new_zeros(len(close), 1)
    touched = torch.cat([close, edge], dim=1) | torch.cat([edge, close], dim=1)
    found = positions(touched)
    # A run begins where nothing before is close.
    begins = ~torch.cat([edge, close], dim=1).flatten()[found]
    run = begins.cumsum(0) - 1
    column = indices.flatten()[found]
    same = column if copy_of is None else copy_of[column]
    first_of_run = same[begins][run]
    mixed = torch.zeros(int(run[-1]) + 1, dtype=torch.bool, device=run.device)
    mixed[run[same != first_of_run]] = True
    code = torch.zeros_like(column)
    compared = mixed[run]
    code[compared] = metric.codes(query_rows[found[compared] // indices.shape[1]], column[compared])
    indices.view(-1)[found] = column[sorted_by(run, code, column)]


def _distinct(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """The different rows of ``x`` and, for each row, which of them it is; ``None`` when all differ."""
    # Adding zero turns -0.0 into 0.0.
    hashes = torch.cat([row_hashes(some + 0.0) for some in x.split(1 << 13)])  # type: ignore[no-untyped-call]
    names, which = torch.unique(hashes, return_inverse=True)
    if len(names) == len(x):
        return x, None
    first = torch.full_like(names, len(x)).scatter_reduce_(0, which, torch.arange(len(x), device=x.device), "amin")
    if not torch.equal(x[first][which], x):  # two different rows with the same hash
        rows, which = torch.unique(x, dim=0, return_inverse=True)
        return (x, None) if len(rows) == len(x) else (rows, which)
    return x[first], which


def check_distance(distance: str) -> None:
    if distance not in ("cosine", "euclidean"):
        raise ValueError(f"unknown distance {distance!r}: {did_you_mean(str(distance), ['cosine', 'euclidean'])}")
