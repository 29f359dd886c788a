"""From the vectors of queries to hits: what the engine finds, refined, and as deep as it takes to show enough."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from nearkin.index.calibration import Calibration
from nearkin.index.engine import Engine
from nearkin.index.items import Items
from nearkin.index.queries import nearest_of
from nearkin.index.refining import Ranked, refined
from nearkin.index.results import Hit, as_hits, one_of_each
from nearkin.index.segments import Segments
from nearkin.index.where import Where


class SearchOptions(TypedDict, total=False):
    """What may be asked of a search by name; :meth:`Index.search <nearkin.Index.search>` says what each means."""

    where: Where | None
    like: Sequence[int]
    unlike: Sequence[int]
    group_by: str | None
    min_confidence: float | None
    offset: int
    crop: Sequence[float] | None
    rerank: int | None


@dataclass(frozen=True)
class Searched:
    """What is searched: the rows, who proposes some of them, what is known of them and what their scores mean."""

    vectors: Segments
    engine: Engine
    items: Items
    calibration: Calibration | None
    distance: str
    allowed: NDArray[np.int64] | None
    """The rows to search among, ascending; None for all."""

    def hits(
        self,
        queries: NDArray[np.float64],
        excluded: Sequence[set[int]],
        wanted: int,
        group_by: str | None,
        *,
        rerank: int | None,
    ) -> Iterator[list[Hit]]:
        """For each query ``[Q, dim]`` as many hits as it takes to show ``wanted``, or all there are.

        What is ``excluded`` of a query is not among its hits. With ``group_by`` it takes as many as have ``wanted``
        different values of that field.
        """
        there = self.vectors.rows if self.allowed is None else len(self.allowed)
        if not there:
            yield from ([] for _ in queries)
            return

        def ranked(some: NDArray[np.float64], out: Sequence[set[int]], depth: int) -> Ranked:
            return refined(self._nearest, self.vectors, some, out, depth, rerank=rerank)

        depth = wanted + max(map(len, excluded), default=0)
        for query, out, found in zip(queries, excluded, ranked(queries, excluded, depth), strict=True):
            hits, deep = as_hits(*found, out, self.items, self.calibration), depth
            while group_by is not None and deep < there and len(one_of_each(hits, group_by)) < wanted:
                deep *= 4
                (again,) = ranked(query[None], [out], deep)
                hits = as_hits(*again, out, self.items, self.calibration)
            yield hits

    def _nearest(self, queries: NDArray[np.float64], k: int) -> Ranked:
        return nearest_of(self.engine, self.vectors, self.distance, queries, k, self.allowed)
