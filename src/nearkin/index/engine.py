"""What an engine of an index does: out of many vectors it proposes the few that may be among the nearest.

An engine only proposes: its candidates are scored again from the stored vectors, and filters and removals are settled
before it is called. So its files can be deleted and rebuilt, and it can miss a neighbour but never show a wrong one.
"""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit, urlunsplit

import numpy as np
from numpy.typing import NDArray

from nearkin.errors import RecipeError, did_you_mean, require
from nearkin.index.segments import Segments

Distance = Literal["cosine", "euclidean"]
Ranked = list[tuple[NDArray[np.int64], NDArray[np.float64]]]
"""For each query the rows that are nearest to it, nearest first, and their scores."""

RECALL_AT = 10
"""Neighbours that an engine's recall is measured on."""
_ROWS_AT_ONCE = 1 << 14
_SECRET = ("password", "sslpassword", "token")


class Engine(Protocol):
    """Rows of vectors are numbered in the order they were added; a number is never used twice.

    The constructor takes ``(folder, vectors, distance)``, where ``folder`` is for the engine's files. It neither writes
    nor connects. ``live`` are the rows whose items have not been removed, ascending; None for all.
    """

    def add(self, first: int, vectors: NDArray[np.float32]) -> None:
        """Store rows ``first`` and following durably, replacing what a killed writer may have left there."""

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Delete the engine's copies of rows, where that takes little time: they are no longer among those allowed."""

    def show(self, rows: int, live: NDArray[np.int64] | None = None) -> None:
        """Search the first ``rows`` from now on, which another process may have added."""

    def rebuild(self, rows: int, live: NDArray[np.int64] | None = None) -> None:
        """Bring the engine's files to the first ``rows`` of the stored vectors; a writer calls it, before and after."""

    def candidates(
        self, queries: NDArray[np.float64], k: int, allowed: NDArray[np.int64] | None
    ) -> list[NDArray[np.int64]]:
        """For each query ``[Q, dim]`` at least ``k`` rows that may be among its nearest, each once, in any order.

        ``allowed`` are the rows to choose from, ascending; None for all. Several threads may call it at once.
        """

    def status(self) -> Mapping[str, Any]:
        """Facts about the engine, for people."""

    def discard(self) -> None:
        """Delete the engine's files, or its table on a server: another engine has replaced it."""


@dataclass(frozen=True)
class EngineEntry:
    """An engine's name, its class as ``module:class``, and the package and extra that it needs.

    The class of a server is its :class:`~nearkin.index.remote.RemoteTable`, made from ``(address, identity, dim,
    distance)``, where ``identity`` is a name that no other index has.
    """

    name: str
    cls: str
    package: str | None = None
    extra: str = ""


ENGINES = {
    entry.name: entry
    for entry in (
        EngineEntry("exact", "nearkin.index.exact_engine:ExactEngine"),
        EngineEntry("faiss", "nearkin.index.faiss_engine:FaissEngine", "faiss", "faiss"),
    )
}
_PGVECTOR = EngineEntry("pgvector", "nearkin.index.pgvector_engine:PostgresTable", "psycopg", "pgvector")
_MILVUS = EngineEntry("milvus", "nearkin.index.milvus_engine:MilvusCollection", "pymilvus", "milvus")
ADDRESSES = {"postgresql": _PGVECTOR, "postgres": _PGVECTOR, "http": _MILVUS, "https": _MILVUS}
"""Engines that are servers, by the scheme of their address."""


def check_engine(name: str) -> EngineEntry:
    """The entry of an engine's name or address; an error for an unknown one and where its package is missing."""
    scheme, is_address, _ = name.partition("://")
    entry = (ADDRESSES if is_address else ENGINES).get(scheme)
    if entry is None:
        addresses = "postgresql://… (pgvector) or http://… (Milvus)"
        guess = f"give {addresses}" if is_address else f"{did_you_mean(name, ENGINES)}, or an address: {addresses}"
        raise RecipeError(f"unknown engine {without_password(name)!r}; {guess}")
    if entry.package is not None:
        require(entry.package, entry.extra)
    return entry


def open_engine(name: str, folder: Path, vectors: Segments, distance: Distance, identity: str = "alone") -> Engine:
    """The engine of that name or address for the index called ``identity``, with its files in ``folder``."""
    entry = check_engine(name)
    module, _, cls = entry.cls.partition(":")
    make = getattr(importlib.import_module(module), cls)
    if name in ENGINES:
        engine: Engine = make(folder / entry.name, vectors, distance)
        return engine
    from nearkin.index.remote import RemoteEngine

    return RemoteEngine(make(name, identity, vectors.width, distance), folder / entry.name, vectors, distance)


def new_identity() -> str:
    """A name for an index's tables and collections that no other index has."""
    return f"nearkin_{secrets.token_hex(8)}"


def without_password(name: str) -> str:
    """The part of an engine's name or address that may be stored and shown.

    >>> without_password("postgresql://me:secret@db:5432/birds?sslmode=require&password=x")
    'postgresql://me@db:5432/birds?sslmode=require'
    >>> without_password("exact")
    'exact'
    """
    if "://" not in name:
        return name
    try:
        parts = urlsplit(name)
    except ValueError as error:
        raise RecipeError(f"the address of an engine cannot be read: {error}") from error
    user, at, host = parts.netloc.rpartition("@")
    query = "&".join(part for part in parts.query.split("&") if part.partition("=")[0].lower() not in _SECRET)
    return urlunsplit(parts._replace(netloc=user.partition(":")[0] + at + host, query=query))


def nearest(
    engine: Engine,
    vectors: Segments,
    distance: str,
    queries: NDArray[np.float64],
    k: int,
    allowed: NDArray[np.int64] | None,
) -> Ranked:
    """For each query the ``k`` nearest of the engine's candidates, by scores in float64, equal ones by row."""
    ranked = []
    for query, rows in zip(queries, engine.candidates(queries, k, allowed), strict=True):
        parts = [rows[start : start + _ROWS_AT_ONCE] for start in range(0, len(rows), _ROWS_AT_ONCE)]
        scores = np.concatenate([_scores(vectors.take(part), query, distance) for part in parts] or [np.empty(0)])
        order = np.lexsort((rows, -scores))[:k]
        ranked.append((rows[order], scores[order]))
    return ranked


def _scores(rows: NDArray[np.float32], query: NDArray[np.float64], distance: str) -> NDArray[np.float64]:
    # Row by row and not as a matrix product, whose last bits depend on a row's position: equal rows score the same.
    if distance == "cosine":
        scores: NDArray[np.float64] = (rows * query).sum(axis=1)
        return scores
    distances: NDArray[np.float64] = np.sqrt(((rows - query) ** 2).sum(axis=1))
    return -distances


def unit_rows(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows of length 1; zeros stay zeros."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: NDArray[np.float64] = rows / np.where(lengths > 0, lengths, 1.0)
    return unit


def unseen_queries(
    exact: Engine, vectors: Segments, distance: Distance, rows: NDArray[np.int64], count: int
) -> NDArray[np.float64]:
    """At most ``count`` queries distributed as the stored ``rows``: a stored vector is easier to find than a new one.

    Of a vector a, its fifth nearest b and its tenth nearest c, the query is (2a + 2b − c) / 3. The weights and their
    squares sum to 1, so around a common centre it lies as far away as they do. ``exact`` finds the neighbours.
    """
    chosen = np.random.default_rng(1).choice(rows, min(len(rows), count), replace=False)
    stored = vectors.take(chosen).astype(np.float64)
    ranked = nearest(exact, vectors, distance, stored, RECALL_AT + 1, rows)
    fifth, tenth = (
        vectors.take(np.array([near[min(rank, len(near) - 1)] for near, _ in ranked], dtype=np.int64))
        for rank in (RECALL_AT // 2, RECALL_AT)
    )
    queries: NDArray[np.float64] = (2 * stored + 2 * fifth - tenth) / 3
    return unit_rows(queries) if distance == "cosine" else queries


def recall_measure(
    exact: Engine, vectors: Segments, distance: Distance, rows: NDArray[np.int64], count: int
) -> Callable[[Engine], float]:
    """A function that gives the share of the nearest of ``count`` unseen queries that an engine finds, by scores.

    ``exact`` finds the true ones among ``rows``; of equally near rows any counts.
    """
    queries = unseen_queries(exact, vectors, distance, rows, count)
    true = nearest(exact, vectors, distance, queries, RECALL_AT, rows)

    def recall(engine: Engine) -> float:
        ranked = nearest(engine, vectors, distance, queries, RECALL_AT, rows)
        pairs = zip(true, ranked, strict=True)
        return float(np.mean([(scores >= best[-1]).sum() / len(best) for (_, best), (_, scores) in pairs]))

    return recall
