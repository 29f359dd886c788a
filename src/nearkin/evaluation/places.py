"""At which places of its exact ranking a query finds its true references, without ranking anything.

A place is one plus the references that come before, and of these only the false ones have to be counted: a false
reference adds to the place of every true one that it is nearer than. Similarities are computed in float32; a false
reference whose similarity lies within the error bound of a true one's is compared by the definition instead
(:mod:`nearkin.evaluation.pairs`), so that places do not depend on how a matrix product adds up. Only what lies above a
query's threshold is looked at: below its last true reference, or below the depth that scores ask for, nothing counts.
How similar a reference at that depth is, a sample tells; the counts verify it, and queries for which it was too high
are left to be ranked. Where queries are searched among themselves, one product serves both its sides.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from nearkin import ranks
from nearkin.evaluation.pairs import Cosine, unit_rows
from nearkin.evaluation.products import Block, Product, half_pays, pair_products, single_error, workers
from nearkin.evaluation.selection import above, at_places, places_for_sure, positions, spread
from nearkin.evaluation.vectors import Vectors
from nearkin.numerics import true_float32

BLOCK = {"cpu": 2048, "cuda": 16384}
"""Queries and references of one product: smaller ones are slower, larger ones compute more of the diagonal twice."""
SAMPLE = 2048
"""References from which it is guessed how similar one at a given depth is."""
MOST_TRUE_IN_HALF = 16
"""True references of a query, on average, beyond which half precision can hardly tell a false one from some of them."""
MOST_COMPARED = 16
"""Pairs of a query, on average, that are compared by the definition before ranking is no slower."""
AT_ONCE = 1 << 24
"""Pairs of one product that are looked at together: of embeddings that have collapsed nearly all are near."""


@dataclass(frozen=True)
class Places:
    """The places, from 1, of the true references of each query, rising: of query q ``places[first[q]:first[q + 1]]``.

    Places beyond the depth that was asked for are lower bounds. Of queries that are not ``settled [Q]`` they say
    nothing.
    """

    first: Tensor
    places: Tensor
    settled: Tensor

    def hits(self, queries: Tensor, width: int) -> Tensor:
        """Bool ``[len(queries), width]``: whether the reference at that place is true.

        >>> found = Places(torch.tensor([0, 2, 3]), torch.tensor([1, 4, 2]), torch.tensor([True, True]))
        >>> found.hits(torch.tensor([0, 1]), 3).int()
        tensor([[1, 0, 0],
                [0, 1, 0]], dtype=torch.int32)
        """
        counts = self.first[queries + 1] - self.first[queries]
        row = torch.repeat_interleave(torch.arange(len(queries)), counts)
        places = self.places[spread(self.first[queries], counts)]
        near = places <= width
        hits = torch.zeros(len(queries), width, dtype=torch.bool)
        hits[row[near], places[near] - 1] = True
        return hits


@torch.no_grad()
def places_of_true(
    queries: Vectors,
    references: Vectors,
    query_classes: Tensor,
    reference_classes: Tensor,
    *,
    depth: Tensor,
    first_depth: Tensor,
    by_all: bool = False,
) -> Places | None:
    """Places of all references of each query's class, by cosine; None where ranking would be no slower.

    Args:
        queries: searched among themselves, each without itself, where ``references`` is the same object.
        references: what is searched.
        query_classes: ``[Q]``, numbered 0, 1, …
        reference_classes: ``[N]``, likewise.
        depth: ``[Q]``, down to which place true references are to be found.
        first_depth: ``[Q]``, the same for the first of them, at least ``depth``.
        by_all: whether all processes of a run ask for the same, and each is to do a share of the work.
    """
    together = queries is references
    generator = torch.Generator().manual_seed(0)
    there = _Side.shuffled(references, reference_classes, generator)
    here = there if together else _Side.shuffled(queries, query_classes, generator)
    with true_float32():
        return _Search(here, there).places(depth, first_depth, by_all=by_all)


@dataclass(frozen=True)
class _Side:
    """Queries or references in a random order, so that the first block of them is a sample."""

    vectors: Vectors
    order: Tensor
    """Which of the vectors each is."""
    units: Tensor
    """Float32 ``[N, D]``."""
    classes: Tensor

    @classmethod
    def shuffled(cls, vectors: Vectors, classes: Tensor, generator: torch.Generator) -> _Side:
        order = torch.randperm(len(vectors), generator=generator)
        units = torch.empty(len(vectors), vectors.dim, device=vectors.device)
        for part in vectors.parts():
            units[part] = _unit_rows(vectors, order[part])
        return cls(vectors, order.to(vectors.device), units, classes[order].to(vectors.device))


def _unit_rows(vectors: Vectors, which: Tensor) -> Tensor:
    """Float32 rows of length 1, each number rounded once."""
    x = vectors.rows(which)
    if vectors.source.dtype == torch.float64:
        return unit_rows(x).float()
    return x.div_(torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min_(1e-300)).float()


class _Search:
    def __init__(self, queries: _Side, references: _Side) -> None:
        self.queries, self.references = queries, references
        self.together = queries is references
        self.device = queries.units.device
        self.error = single_error(queries.vectors.dim)
        """How far a float32 similarity may be from the true one."""
        self.metric = Cosine(queries.vectors, references.vectors)

    def places(self, depth: Tensor, first_depth: Tensor, *, by_all: bool) -> Places | None:
        queries, references = self.queries, self.references
        depths = [each.to(self.device)[queries.order] for each in (depth, first_depth)]
        true = self._true_pairs()
        tally = _Tally(self, true)
        product = self._product(len(true.query) / len(queries.order))
        enough_of = torch.empty(len(queries.order), device=self.device)
        """Above this similarity a query's references are counted."""
        thresholds = torch.empty_like(enough_of)
        block = _block(len(references.order), self.device)
        query_starts, starts = (range(0, len(side.order), block) for side in (queries, references))
        blocks = [(row, start) for start in starts for row in query_starts if row >= start or not self.together]
        own = set(blocks[ranks.rank() :: ranks.world()] if by_all else blocks)

        def count(place: Block) -> None:
            begin, start = place
            if tally.is_hopeless:
                return
            rows = slice(begin, min(begin + block, len(queries.order)))
            columns = slice(start, min(start + block, len(references.order)))
            similarities = product.of(rows, columns)
            diagonal = self.together and begin == start
            if diagonal:
                similarities.fill_diagonal_(-torch.inf)
            if start == 0:
                sure = self._at_depths(similarities[:, :SAMPLE], [each[rows] for each in depths])
                enough = torch.minimum(torch.maximum(sure[0], true.last[rows]), torch.maximum(sure[1], true.best[rows]))
                enough_of[rows] = enough
                thresholds[rows] = product.rounded_down(enough - product.error(enough) - self.error)
            if place not in own:
                return
            turned = self.together and not diagonal
            near = above(similarities, thresholds[rows], thresholds[columns] if turned else None)
            for found in near.split(AT_ONCE):  # type: ignore[no-untyped-call]
                value = similarities.flatten()[found].float()
                row, column = begin + found // similarities.shape[1], start + found % similarities.shape[1]
                false = queries.classes[row] != references.classes[column]
                row, column, value = row[false], column[false], value[false]
                if turned:
                    counts = value > thresholds[column]
                    tally.add(columns, column[counts], row[counts], value[counts], product.error(value[counts]))
                    counts = value > thresholds[row]
                    row, column, value = row[counts], column[counts], value[counts]
                tally.add(rows, row, column, value, product.error(value))

        # Every process finds all thresholds, from the first block of references; the first block of queries has its own
        # before others are held against it.
        first = len(query_starts)
        count(blocks[0])
        with workers(self.device) as each_of:
            each_of(count, blocks[1:first])
            each_of(count, [place for place in blocks[first:] if place in own])
        compared = torch.tensor([tally.compared])
        if by_all:
            ranks.add_up_([compared])
        if int(compared) > MOST_COMPARED * len(queries.order):
            return None
        if by_all:
            ranks.add_up_([tally.falses])
            ranks.largest_of_all_(enough_of)
        return self._settled(true, tally, enough_of, *depths)

    def _product(self, true_per_query: float) -> Product:
        units = self.queries.units, self.references.units
        half = self.device.type == "cpu" and true_per_query <= MOST_TRUE_IN_HALF and half_pays()
        return Product.half(*units, self.error) if half else Product.single(*units, self.error)

    def similarities(self, query: Tensor, reference: Tensor) -> Tensor:
        """In float32, of pairs ``[P]``."""
        return pair_products(self.queries.units, query, self.references.units, reference)

    def _true_pairs(self) -> _TruePairs:
        """Class by class, those of the same size at once."""
        queries, references = self.queries, self.references
        classes = int(torch.maximum(queries.classes.max(), references.classes.max())) + 1
        asking, found = (torch.bincount(side.classes, minlength=classes) for side in (queries, references))
        counts = found[queries.classes] - int(self.together)
        true = _TruePairs.empty(counts)
        members = queries.classes.argsort(stable=True)
        others = members if self.together else references.classes.argsort(stable=True)
        first_member, first_other = asking.cumsum(0) - asking, found.cumsum(0) - found
        sizes, alike = torch.unique(torch.stack([asking, found], 1), dim=0, return_inverse=True)
        dim = queries.vectors.dim
        for number, (rows, columns) in enumerate(sizes.tolist()):
            kept = columns - int(self.together)
            if not rows or not kept:
                continue
            step = max(1, (1 << 24) // ((rows + columns) * dim + 4 * rows * columns))
            for part in (alike == number).nonzero()[:, 0].split(step):
                row = members[first_member[part, None] + torch.arange(rows, device=self.device)]
                column = others[first_other[part, None] + torch.arange(columns, device=self.device)]
                similarities = queries.units[row] @ references.units[column].transpose(1, 2)
                if self.together:
                    similarities.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
                similarities, order = similarities.sort(dim=2, descending=True)
                slots = true.first[row][:, :, None] + torch.arange(kept, device=self.device)
                true.similarities[slots] = similarities[:, :, :kept]
                true.references[slots] = column[:, None, :].expand(-1, rows, -1).gather(2, order)[:, :, :kept]
        return true

    def _at_depths(self, sample: Tensor, depths: list[Tensor]) -> list[Tensor]:
        """For each depth ``[B]`` a similarity that about so many references exceed, rather more than fewer."""
        drawn = sample.shape[1]
        places = [places_for_sure(each, drawn / len(self.references.order)).clamp(1, drawn) for each in depths]
        return list(at_places(sample, torch.stack(places, dim=1)).unbind(1))

    def codes(self, query: Tensor, reference: Tensor) -> Tensor:
        return self.metric.codes(self.queries.order[query], self.references.order[reference])

    def _settled(self, true: _TruePairs, tally: _Tally, enough: Tensor, depth: Tensor, first_depth: Tensor) -> Places:
        rank = torch.arange(len(true.query), device=self.device) - true.first[true.query]
        before = pad(tally.falses.cumsum(0), (1, 0))
        begin = true.first[true.query] + true.query
        places = rank + 1 + before[begin + rank + 1] - before[begin]
        # Where all false references that may come before have been counted; else the place is a lower bound.
        counted = true.similarities >= enough[true.query]
        wanted = torch.where(rank == 0, first_depth[true.query], depth[true.query])
        settled = torch.ones(len(enough), dtype=torch.bool, device=self.device)
        settled[true.query[~counted & (places <= wanted)]] = False
        back = self.queries.order.argsort()
        counts = true.first.diff()[back]
        places = places[spread(true.first[back], counts)]
        return Places(pad(counts.cumsum(0), (1, 0)).cpu(), places.cpu(), settled[back].cpu())


@dataclass(frozen=True)
class _TruePairs:
    """The true references of every query, the most similar first; those of query q are ``first[q]:first[q + 1]``."""

    first: Tensor
    query: Tensor
    similarities: Tensor
    references: Tensor

    @classmethod
    def empty(cls, counts: Tensor) -> _TruePairs:
        query = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
        first = pad(counts.cumsum(0), (1, 0))
        return cls(first, query, torch.empty(len(query), device=counts.device), torch.empty_like(query))

    @cached_property
    def best(self) -> Tensor:
        return self._at(self.first[:-1])

    @cached_property
    def last(self) -> Tensor:
        return self._at(self.first[1:] - 1)

    def _at(self, slots: Tensor) -> Tensor:
        """More than any similarity for queries without any: nothing is to be counted for them."""
        without = self.first.diff() == 0
        return self.similarities[slots.masked_fill(without, 0)].masked_fill(without, 3.0)


class _Tally:
    """How many false references come before each true one. Workers may add to it side by side."""

    def __init__(self, search: _Search, true: _TruePairs) -> None:
        self.search, self.true = search, true
        # One rising sequence for all queries: similarities fall from 1 to -1, queries are 4 apart.
        keys = true.query.double() * 4.0 - true.similarities
        self._keys = pad(pad(keys, (1, 0), value=-torch.inf), (0, 1), value=torch.inf)
        self._first = true.first.tolist()
        self.falses = torch.zeros(len(keys) + len(true.first) - 1, dtype=torch.int64, device=keys.device)
        """How many false references of query q have h true ones before them, at ``first[q] + q + h``."""
        self.compared = 0
        """Pairs that only the definition could tell apart."""
        self._lock = threading.Lock()

    @property
    def is_hopeless(self) -> bool:
        """Whether ranking is no slower by now: nothing is counted from there on, and what was counts for nothing."""
        return self.compared > MOST_COMPARED * len(self.search.queries.order)

    def add(self, among: slice, query: Tensor, reference: Tensor, value: Tensor, error: Tensor) -> None:
        """Count false references ``[P]`` of queries ``among`` these; similarities are known to within ``error [P]``."""
        if not len(query) or self.is_hopeless:
            return
        # Few keys are searched faster than all.
        begin, end = self._first[among.start], self._first[among.stop]
        keys = self._keys[begin : end + 2]
        key = query.double() * 4.0 - value
        after = torch.searchsorted(keys, key)
        margin = error + self.search.error
        close = (keys[after] - key <= margin) | (key - keys[after - 1] <= margin)
        which = positions(close)
        if len(which):
            compared = query[which], reference[which]
            if float(error.max()) > self.search.error:
                again = self.search.similarities(*compared)
                self.add(among, *compared, again, torch.full_like(again, self.search.error, dtype=torch.float64))
            else:
                with self._lock:
                    self.compared += len(which)
                if self.is_hopeless:
                    return
                before = self._by_definition(*compared, key[which], margin[which])
                self._count(among, before, compared[0])
            after, query = after[~close], query[~close]
        self._count(among, after + (begin - 1), query)

    def _by_definition(self, query: Tensor, reference: Tensor, key: Tensor, margin: Tensor) -> Tensor:
        """After how many true references each false one comes, told from ``first[q]``."""
        low = torch.searchsorted(self._keys, key - margin) - 1
        high = torch.searchsorted(self._keys, key + margin, right=True) - 1
        rivals = spread(low, high - low)
        which = torch.repeat_interleave(torch.arange(len(query), device=query.device), high - low)
        slots, again = torch.unique(rivals, return_inverse=True)
        theirs = self.search.codes(self.true.query[slots], self.true.references[slots])[again]
        own = self.search.codes(query, reference)[which]
        index = self.search.references.order
        earlier = index[self.true.references[rivals]] < index[reference[which]]
        nearer = (theirs < own) | ((theirs == own) & earlier)
        return low.index_add(0, which, nearer.long())

    def _count(self, among: slice, before: Tensor, query: Tensor) -> None:
        begin, end = (self._first[q] + q for q in (among.start, among.stop))
        counts = torch.bincount(before + query - begin, minlength=end - begin)
        with self._lock:
            self.falses[begin:end] += counts


def _block(count: int, device: torch.device) -> int:
    """On a CPU smaller for few references, of which the diagonal would else be a large part."""
    return BLOCK["cuda"] if device.type == "cuda" else min(BLOCK["cpu"], max(256, count // 4 // 256 * 256))
