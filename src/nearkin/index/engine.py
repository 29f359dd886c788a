"""What an engine of an index does: out of many vectors it proposes the few that may be among the nearest.

Its candidates are scored again from the stored vectors, and filters and removals are applied before it is called. So an
engine can miss a neighbour but never show a wrong one, and its files can be deleted and rebuilt.
"""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

import numpy as np

from nearkin.errors import RecipeError, did_you_mean, require
from nearkin.evaluation.neighbours import Distance, Floats, Ints, Singles, unit_rows
from nearkin.index.segments import Segments

Ranked = list[tuple[Ints, Floats]]
"""For each query its nearest rows, nearest first, and their scores."""

RECALL_AT = 10
"""The number of neighbours at which an engine's recall is measured."""
_ROWS_AT_ONCE = 1 << 14
_SECRET = ("password", "sslpassword", "token")


class Engine(Protocol):
    """A search over numbered rows of vectors: numbers ascend in the order of adding, and none is used twice.

    The constructor takes ``(folder, vectors, distance)``, where ``folder`` is for the engine's files. It neither writes
    nor connects. ``Singles`` and ``Floats`` are arrays of float32 and float64, ``Ints`` of int64. ``live`` are the rows
    whose items have not been removed, ascending; None for all.
    """

    def add(self, first: int, vectors: Singles) -> None:
        """Store rows from number ``first`` on durably, replacing what a killed writer may have left there."""

    def remove(self, rows: Ints) -> None:
        """Delete copies of rows if that is cheap; searches no longer allow these rows in any case."""

    def show(self, rows: int, live: Ints | None = None) -> None:
        """Search the first ``rows`` from now on; another process may have added them."""

    def rebuild(self, rows: int, live: Ints | None = None) -> None:
        """Make the engine's files match the first ``rows`` stored vectors; a writer calls this before and after."""

    def candidates(self, queries: Floats, k: int, allowed: Ints | None) -> list[Ints]:
        """For each query ``[Q, dim]`` at least ``k`` different rows that may be among its nearest, in any order.

        ``allowed`` are the rows to choose from, ascending; None for all. Several threads may call this at once.
        """

    def status(self) -> Mapping[str, Any]:
        """Facts about the engine, to be shown."""

    def discard(self) -> None:
        """Delete the engine's files, or its table on a server, after another engine has replaced it."""


@dataclass(frozen=True)
class EngineEntry:
    """An engine's name, its class as ``module:class``, and the package and extra that it needs.

    For a server the class is a :class:`~nearkin.index.remote.RemoteTable`, made from ``(address, identity, dim,
    distance)``, where ``identity`` is a name unique to the index.
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
"""Servers as engines, by the scheme of their address."""


def check_engine(name: str) -> EngineEntry:
    """The entry for an engine's name or address; an error if it is unknown or its package is missing."""
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
    """The engine with this name or address for the index ``identity``, with its files in ``folder``."""
    entry = check_engine(name)
    module, _, cls = entry.cls.partition(":")
    make = getattr(importlib.import_module(module), cls)
    if name in ENGINES:
        engine: Engine = make(folder / entry.name, vectors, distance)
        return engine
    from nearkin.index.remote import RemoteEngine

    return RemoteEngine(make(name, identity, vectors.width, distance), folder / entry.name, vectors, distance)


def new_identity() -> str:
    """A unique name for an index's tables and collections."""
    return f"nearkin_{secrets.token_hex(8)}"


def without_password(name: str) -> str:
    """An engine's name, or its address without the parts that must not be stored or shown.

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


def nearest(engine: Engine, vectors: Segments, distance: str, queries: Floats, k: int, allowed: Ints | None) -> Ranked:
    """For each query the ``k`` nearest of the engine's candidates by float64 scores; equal ones are ordered by row."""
    ranked = []
    for query, rows in zip(queries, engine.candidates(queries, k, allowed), strict=True):
        parts = [rows[start : start + _ROWS_AT_ONCE] for start in range(0, len(rows), _ROWS_AT_ONCE)]
        scores = np.concatenate([_scores(vectors.take(part), query, distance) for part in parts] or [np.empty(0)])
        order = np.lexsort((rows, -scores))[:k]
        ranked.append((rows[order], scores[order]))
    return ranked


def _scores(rows: Singles, query: Floats, distance: str) -> Floats:
    # Not as a matrix product, whose last bits depend on a row's position: equal rows must score the same.
    if distance == "cosine":
        return np.asarray((rows * query).sum(axis=1))
    return np.asarray(-np.sqrt(((rows - query) ** 2).sum(axis=1)))


def unseen_queries(exact: Engine, vectors: Segments, distance: Distance, rows: Ints, count: int) -> Floats:
    """At most ``count`` queries distributed as the stored ``rows``; stored vectors themselves would be easier to find.

    For a vector a, its fifth nearest b and its tenth nearest c, the query is (2a + 2b − c) / 3. The weights and their
    squares sum to 1, so the query lies as far from a common centre as they do. ``exact`` finds the neighbours.
    """
    chosen = np.random.default_rng(1).choice(rows, min(len(rows), count), replace=False)
    stored = vectors.take(chosen).astype(np.float64)
    ranked = nearest(exact, vectors, distance, stored, RECALL_AT + 1, rows)
    fifth, tenth = (
        vectors.take(np.array([near[min(rank, len(near) - 1)] for near, _ in ranked], dtype=np.int64))
        for rank in (RECALL_AT // 2, RECALL_AT)
    )
    queries = np.asarray((2 * stored + 2 * fifth - tenth) / 3)
    return unit_rows(queries) if distance == "cosine" else queries


def recall_measure(
    exact: Engine, vectors: Segments, distance: Distance, rows: Ints, count: int
) -> Callable[[Engine], float]:
    """A function that measures an engine's recall: the share of the nearest of ``count`` unseen queries that it finds.

    ``exact`` finds the true nearest among ``rows``. Of equally near rows any counts.
    """
    queries = unseen_queries(exact, vectors, distance, rows, count)
    true = nearest(exact, vectors, distance, queries, RECALL_AT, rows)

    def recall(engine: Engine) -> float:
        ranked = nearest(engine, vectors, distance, queries, RECALL_AT, rows)
        pairs = zip(true, ranked, strict=True)
        return float(np.mean([(scores >= best[-1]).sum() / len(best) for (_, best), (_, scores) in pairs]))

    return recall
