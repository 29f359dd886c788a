"""Which places of its exact ranking are hits, for queries with too many true references to keep a list of them.

A fast product finds the false references above a query's threshold, and which they are is kept. For some queries at a
time their similarities, and those of all true references, are then computed in float64 and sorted together as float32.
The threshold is a similarity that somewhat more references exceed than the depth that scores ask for, by a sample;
queries for which it was too high are left to be ranked. Where rounding to float32 leaves true and false references too
close to each other they are put in order by float64, and where that cannot tell by the definition
(:mod:`nearkin.evaluation.pairs`). Where queries are searched among themselves, one product serves both its sides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from nearkin import ranks
from nearkin.evaluation.pairs import Cosine, unit_rows
from nearkin.evaluation.products import Block, Product, pair_products, workers
from nearkin.evaluation.selection import above, at_places, falling, places_for_sure, positions, sorted_by, spread
from nearkin.evaluation.vectors import Vectors
from nearkin.numerics import true_float32

BLOCK = {"cpu": 1024, "cuda": 8192}
"""Queries and references of one product."""
SAMPLE = 4096
"""References, at most, from which it is guessed how similar one at a given depth is."""
DEVIATIONS = 3.5
"""How far the guess errs on the safe side: of 4,000 queries one is left to be ranked; more would keep more of all."""
KEPT = {"cpu": 64_000_000, "cuda": 250_000_000}
"""False references that are kept, 4 bytes each; where there are more, a product serves fewer sides."""
SORTED = {"cpu": 1 << 20, "cuda": 1 << 24}
"""References that are sorted at a time."""
BEYOND = 64
"""Places beyond the depth at which it is looked for one that certainly comes after it."""
MOST_CLOSE = 0.5
"""Share of the references too close to others to be told by float32, beyond which ranking is no slower."""
MOST_COMPARED = 256
"""References of a query, on average, that are compared by the definition before ranking is no slower."""


@torch.no_grad()
def hits_by_merging(
    queries: Vectors,
    references: Vectors,
    query_classes: Tensor,
    reference_classes: Tensor,
    *,
    depth: Tensor,
    found: Callable[[Tensor, Tensor], None],
    by_all: bool = False,
) -> Tensor:
    """Call ``found(rows, hits)`` with queries ``[B]`` and bool ``[B, L]``, their hits, by cosine; by several threads.

    Args:
        queries: searched among themselves, each without itself, where ``references`` is the same object.
        references: what is searched.
        query_classes: ``[Q]``, numbered 0, 1, …
        reference_classes: ``[N]``, likewise.
        depth: ``[Q]``, down to which place hits are asked for; queries without a true reference are left out.
        found: what to do with hits; those beyond a query's depth mean nothing.
        by_all: whether all processes of a run ask for the same, and each is to do a share of the work.

    Returns:
        Bool ``[Q]``: queries that are left to be ranked, by this process.
    """
    sizes = torch.bincount(reference_classes, minlength=int(query_classes.max()) + 1)
    # Classes of about the same size follow each other, so that rows that are sorted together are about as long.
    rank = sizes.argsort(stable=True).argsort()
    there = _Side.by_class(references, rank[reference_classes], len(sizes))
    here = there if queries is references else _Side.by_class(queries, rank[query_classes], len(sizes))
    search = _Search(here, there, depth)
    blocks = search.blocks[ranks.rank() :: ranks.world()] if by_all else search.blocks
    with true_float32(), workers(search.device) as each_of:
        each_of(search.guess, [(block, 0) for block in blocks])
        for some in search.in_parts(blocks):
            kept = _Kept({block: [] for block in some})
            each_of(partial(search.keep_false, kept), search.pairs(some))
            each_of(partial(search.merge, kept, found), [(block, 0) for block in some])
    left = torch.zeros(len(queries), dtype=torch.bool)
    left[here.order[search.left].cpu()] = True
    return left


@dataclass(frozen=True)
class _Side:
    """Queries or references class by class; of class c those from ``first[c]`` to ``first[c + 1]``."""

    vectors: Vectors
    order: Tensor
    """Which of the vectors each is."""
    units: Tensor
    """Float64 ``[N, D]``."""
    classes: Tensor
    first: list[int]

    @classmethod
    def by_class(cls, vectors: Vectors, classes: Tensor, count: int) -> _Side:
        order = classes.argsort(stable=True)
        units = torch.empty(len(vectors), vectors.dim, dtype=torch.float64, device=vectors.device)
        for part in vectors.parts():
            units[part] = unit_rows(vectors.rows(order[part]))
        first = torch.bincount(classes, minlength=count).cumsum(0).tolist()
        place = vectors.device
        return cls(vectors, order.to(place), units, classes[order].to(place), [0, *first])

    def runs(self, rows: slice) -> list[tuple[int, slice]]:
        """The classes of these rows, and which rows are of each."""
        classes, counts = torch.unique_consecutive(self.classes[rows], return_counts=True)
        ends = (rows.start + counts.cumsum(0)).tolist()
        return [
            (number, slice(end - count, end))
            for number, end, count in zip(classes.tolist(), ends, counts.tolist(), strict=True)
        ]


@dataclass(frozen=True)
class _Kept:
    """False references above the thresholds of some blocks of queries."""

    pieces: dict[int, list[tuple[int, Tensor]]]
    """Of each block of queries: where a block of references begins, and int16 ``[2, P]``, both in their blocks."""

    def add(self, block: int, start: int, query: Tensor, reference: Tensor) -> None:
        self.pieces[block].append((start, torch.stack([query.short(), reference.short()])))


class _Search:
    def __init__(self, queries: _Side, references: _Side, depth: Tensor) -> None:
        self.queries, self.references = queries, references
        self.together = queries is references
        self.device = queries.units.device
        self.metric = Cosine(queries.vectors, references.vectors)
        self.exact_margin = 2.0 * float(self.metric.error(queries.units[:1], queries.units[:1])) + 2.0**-43
        """How far apart products in float64 must be to tell which is nearer; the definition rounds something away."""
        self.margin = 1.5 * 2.0**-24
        """The same for products that were rounded to float32: each by 2^-25 at most, and the rest is ample."""
        self.product = Product.fastest(queries.units, references.units)
        self.block = BLOCK[self.device.type]
        self.blocks = list(range(0, len(queries.order), self.block))
        self.depth = depth.to(self.device)[queries.order]
        self.true = torch.tensor(references.first, device=self.device).diff()[queries.classes]
        """How many references are of each query's class, itself among them."""
        self.first_true = torch.tensor(references.first, device=self.device)[queries.classes]
        self.enough = torch.full((len(queries.order),), 3.0, device=self.device)
        """Above this similarity all false references of a query are kept."""
        self.thresholds = torch.full_like(self.enough, 3.0)
        """What that is for the fast product."""
        self.left = torch.zeros(len(queries.order), dtype=torch.bool, device=self.device)
        self._expected: dict[int, float] = {}
        """How many false references of a block lie above its queries' thresholds, about."""
        # One of each stretch of references: of every class its share, which makes counts vary less.
        count = len(references.order)
        sample = min(SAMPLE, max(1024, count // 8), count)
        within = torch.rand(sample, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        drawn = ((torch.arange(sample) + within) * (count / sample)).long().clamp_max_(count - 1)
        self._sample = drawn.to(self.device)
        self._first_sampled: list[int] = torch.searchsorted(drawn, torch.tensor(references.first)).tolist()
        """Where each class begins in the sample, which is in the order of the references."""

    def guess(self, place: Block) -> None:
        """Find thresholds for a block of queries."""
        rows = self._rows(place[0])
        similarities = self.product.of(rows, self._sample).float()
        drawn = len(self._sample)
        share = drawn / len(self.references.order)
        depth = self.depth[rows] + int(self.together)
        # No place beyond what is certain if true and false ones vary alike.
        last = int(places_for_sure(depth, share, deviations=DEVIATIONS).max().clamp_max(drawn))
        nearest = at_places(similarities, torch.arange(1, last + 1, device=self.device).expand(len(depth), last))
        # They are drawn apart, so that counts vary less: by as much as at the place that is likely.
        likely = (depth * share).ceil().long().clamp_(1, last)
        hits, true = self._true_above(similarities, rows, nearest.gather(1, likely[:, None] - 1))
        variance = hits * (1.0 - hits / true.clamp_min(1)) + (likely - hits).clamp_min(0)
        places = (depth * share + DEVIATIONS * variance.clamp_min(1.0).sqrt() * (share < 1.0) + 4.0).ceil().long()
        enough = nearest.gather(1, places.clamp_max(last)[:, None] - 1)[:, 0]
        enough[places > drawn] = -2.0  # below all
        enough[self.true[rows] <= int(self.together)] = 3.0  # nothing to be found
        self.enough[rows] = enough
        thresholds = self.thresholds[rows] = self.product.rounded_down(enough - self.product.error(enough))
        hits, _ = self._true_above(similarities, rows, thresholds[:, None])
        above_all = int((similarities >= thresholds[:, None]).count_nonzero())
        self._expected[place[0]] = (above_all - int(hits.sum())) / share

    def _true_above(self, similarities: Tensor, rows: slice, thresholds: Tensor) -> tuple[Tensor, Tensor]:
        """How many of each query's true references in the sample are above ``[B, 1]``, and how many there are."""
        hits, true = (torch.zeros(len(thresholds), dtype=torch.int64, device=self.device) for _ in range(2))
        for number, run in self.queries.runs(rows):
            own = slice(*self._first_sampled[number : number + 2])
            those = slice(run.start - rows.start, run.stop - rows.start)
            hits[those] = (similarities[those, own] >= thresholds[those]).sum(1)
            true[those] = own.stop - own.start
        return hits, true

    def in_parts(self, blocks: list[int]) -> list[list[int]]:
        """Blocks of queries whose false references can be kept together."""
        expected = torch.tensor([self._expected[block] for block in blocks], dtype=torch.float64)
        part = (expected.cumsum(0) / KEPT[self.device.type]).long().tolist()
        return [[block for block, of in zip(blocks, part, strict=True) if of == number] for number in sorted(set(part))]

    def pairs(self, some: list[int]) -> list[Block]:
        """Blocks of queries and references; of those that serve both sides, one."""
        within = set(some) if self.together else set()
        starts = range(0, len(self.references.order), self.block)
        return [(block, start) for block in some for start in starts if start <= block or start not in within]

    def keep_false(self, kept: _Kept, place: Block) -> None:
        begin, start = place
        rows, columns = self._rows(begin), slice(start, min(start + self.block, len(self.references.order)))
        similarities: Tensor | None = None
        for number, run in self.queries.runs(rows):
            first = max(self.references.first[number], columns.start)
            last = min(self.references.first[number + 1], columns.stop)
            if first < last:
                if run == rows and last - first == columns.stop - columns.start:
                    return  # all of them are true
                similarities = self.product.of(rows, columns) if similarities is None else similarities
                similarities[run.start - begin : run.stop - begin, first - start : last - start] = -torch.inf
        similarities = self.product.of(rows, columns) if similarities is None else similarities
        thresholds = self.thresholds[rows]
        turned = self.thresholds[columns] if self.together and start != begin and start in kept.pieces else None
        where = above(similarities, thresholds, turned)
        query, reference = where // similarities.shape[1], where % similarities.shape[1]
        if turned is not None:
            value = similarities.flatten()[where].float()
            counts = value > turned[reference]
            kept.add(start, begin, reference[counts], query[counts])
            counts = value > thresholds[query]
            query, reference = query[counts], reference[counts]
        kept.add(begin, start, query, reference)

    def merge(self, kept: _Kept, found: Callable[[Tensor, Tensor], None], place: Block) -> None:
        """Sort true and false references of a block of queries together."""
        rows = self._rows(place[0])
        query, reference, value = self.false_of(rows, kept.pieces.pop(place[0]))
        counts = torch.bincount(query, minlength=rows.stop - rows.start)
        ends = counts.cumsum(0).tolist()
        step = max(1, SORTED[self.device.type] // int((self.true[rows] + counts).max()))
        for start in range(rows.start, rows.stop, step):
            some = slice(start, min(start + step, rows.stop))
            begin, end = start - rows.start, some.stop - rows.start
            those = slice(ends[begin - 1] if begin else 0, ends[end - 1])
            merged = _Merged.of(self, some, counts[begin:end], reference[those], value[those])
            settled = merged.settle()
            asked = self.true[some] > int(self.together)
            self.left[some] = asked & ~settled
            which = (asked & settled).cpu()
            if bool(which.any()):
                found(self.queries.order[some].cpu()[which], merged.hits.cpu()[which])

    def false_of(self, rows: slice, pieces: list[tuple[int, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries in their block, rising, their false references and similarities in float32, ``[P]`` each."""
        queries = [torch.empty(0, dtype=torch.int16, device=self.device)]
        references = [torch.empty(0, dtype=torch.int32, device=self.device)]
        values = [torch.empty(0, device=self.device)]
        units = self.queries.units[rows]
        for start, piece in pieces:
            if piece.shape[1]:
                # Block by block, as few rows stay in the processor's cache.
                others = self.references.units[start : start + self.block]
                values.append(pair_products(units, piece[0].long(), others, piece[1].long()).float())
                queries.append(piece[0])
                references.append(piece[1].int() + start)
        query = torch.cat(queries)
        order = sorted_by(query)
        return query[order].long(), torch.cat(references)[order].long(), torch.cat(values)[order]

    def _rows(self, block: int) -> slice:
        return slice(block, min(block + self.block, len(self.queries.order)))


@dataclass(frozen=True)
class _Merged:
    """The references of some queries that matter, the most similar first, ``[B, L]``."""

    search: _Search
    rows: slice
    values: Tensor
    order: Tensor
    """Which it is: of the references of the query's class, and beyond their number of its false ones."""
    hits: Tensor
    false: Tensor
    """False references of all these queries."""
    first_false: Tensor
    everything: bool
    """Whether none was cut off."""

    @classmethod
    def of(cls, search: _Search, rows: slice, counts: Tensor, false: Tensor, value: Tensor) -> _Merged:
        """From the false references of each query, their number and their similarities."""
        true = search.true[rows]
        unsorted = value.new_full((len(true), int((true + counts).max())), -torch.inf)
        for number, run in search.queries.runs(rows):
            columns = slice(*search.references.first[number : number + 2])
            if columns.start < columns.stop:
                similarities = search.queries.units[run] @ search.references.units[columns].T
                if search.together:
                    similarities.diagonal(run.start - columns.start).fill_(-torch.inf)
                unsorted[run.start - rows.start : run.stop - rows.start, : similarities.shape[1]] = similarities
        query = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
        unsorted[query, spread(true, counts)] = value
        length = int(search.depth[rows].max()) + BEYOND
        order = falling(unsorted)[:, :length]
        everything = length >= unsorted.shape[1]
        first_false = counts.cumsum(0) - counts
        values = unsorted.gather(1, order)
        hits = (order < true[:, None]) & values.isfinite()  # not itself
        return cls(search, rows, values, order, hits, false, first_false, everything)

    def settle(self) -> Tensor:
        """Put hits in the order of the definition; says for which queries ``[B]`` that was possible."""
        close = self.values[:, :-1] - self.values[:, 1:] <= self.search.margin
        settled = self._complete(close)
        mixed = pad(close & (self.hits[:, 1:] != self.hits[:, :-1]), (0, 1)).flatten()
        close = pad(close, (0, 1)).flatten()  # to the next one
        before = positions(mixed)
        touched = mixed
        touched[before + 1] = True
        for step in (-1, 1):
            last = before + (step > 0)
            while len(last):
                last = last[close[last if step > 0 else last - 1]] + step
                last = last[~touched[last]]
                touched[last] = True
        found = positions(touched)
        if not len(found):
            return settled
        if len(found) > MOST_CLOSE * close.numel() or not self._order(found, ~close[found - 1]):
            return torch.zeros_like(settled)
        return settled

    def _complete(self, close: Tensor) -> Tensor:
        """For which queries a reference at their depth or a little beyond certainly comes before all others."""
        depth, length = self.search.depth[self.rows], self.values.shape[1]
        begin = min(int(depth.min()), length) - 1
        apart = pad(~close, (0, 1), value=self.everything)[:, begin:]
        apart &= torch.arange(begin, length, device=depth.device) >= depth[:, None] - 1
        least = self.values[:, begin:].gather(1, apart.byte().argmax(dim=1, keepdim=True))[:, 0]
        return apart.any(dim=1) & (least > self.search.enough[self.rows] + self.search.margin)

    def _order(self, found: Tensor, begins: Tensor) -> bool:
        """Order hits ``found [P]``, by their flattened form, within runs; says whether that was done."""
        search, flat = self.search, self.hits.view(-1)
        row, slot = found // self.order.shape[1], self.order.flatten()[found]
        true = search.true[self.rows]
        query = row + self.rows.start
        own_class = search.first_true[query] + slot
        falses = self.false[(self.first_false[row] + slot - true[row]).clamp_(0, len(self.false) - 1)]
        reference = torch.where(slot < true[row], own_class, falses)
        run = begins.cumsum(0)
        value = pair_products(search.queries.units, query, search.references.units, reference)
        order = sorted_by(run, -value)
        hit = flat[found][order]
        flat[found] = hit
        query, reference, value = query[order], reference[order], value[order]
        begins[1:] = (run[1:] != run[:-1]) | (value[:-1] - value[1:] > search.exact_margin)
        run = begins.cumsum(0) - 1
        mixed = torch.zeros(int(run[-1]) + 1, dtype=torch.bool, device=run.device)
        mixed[run[hit != hit[begins][run]]] = True
        which = positions(mixed[run])
        if len(which) > MOST_COMPARED * len(self.hits):
            return False
        original = search.references.order[reference[which]]
        code = search.metric.codes(search.queries.order[query[which]], original)
        flat[found[which]] = hit[which][sorted_by(run[which], code, original)]
        return True
