"""What an engine of an index does: from many vectors it picks the few that could be among the nearest.

The vectors of an index and its table of items are the truth. An engine only proposes: what it proposes is scored again
from the stored vectors, and what is filtered out or removed is settled before it is asked. So its own files can be
thrown away and built anew, and an engine that is approximate can miss a neighbour but never show a wrong one.

An engine is chosen by its name, or by the address of the server that it is: ``exact``, ``postgresql://host/database``.
"""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit, urlunsplit

import numpy as np
from numpy.typing import NDArray

from nearkin.errors import RecipeError, did_you_mean, require
from nearkin.index.segments import Segments

Distance = Literal["cosine", "euclidean"]
_SECRET = ("password", "sslpassword", "token")


class Engine(Protocol):
    """Rows of vectors are numbered as they were added; a number is never used twice.

    The constructor of one on this machine takes ``(folder, vectors, distance)``, where ``folder`` is for its own files;
    that of one behind an address ``(address, identity, folder, vectors, distance)``, where ``identity`` is a name that
    no other index has, of small letters, digits and underscores. It neither writes nor connects to anything.
    """

    def add(self, first: int, vectors: NDArray[np.float32]) -> None:
        """Take in rows ``first`` and following; they are on the disk, or wherever they belong, on return.

        They may be rows that a killed writer added before, with other vectors: these take their place.
        """

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Forget rows, if that saves anything: they are not among those allowed any more."""

    def show(self, rows: int) -> None:
        """Search the first ``rows`` from now on, which another process may have added."""

    def rebuild(self, rows: int) -> None:
        """Bring the engine's own files up to the first ``rows`` of the stored vectors, and take away what lies behind.

        Only a writer calls this, before and after it writes; where there is nothing to do it takes no time.
        """

    def candidates(
        self, queries: NDArray[np.float64], k: int, allowed: NDArray[np.int64] | None
    ) -> list[NDArray[np.int64]]:
        """For each query ``[Q, dim]`` the rows that may be among its ``k`` nearest, in any order, more than k or not.

        At least ``k`` where so many are allowed, each row once. ``allowed`` are the rows to choose from, ascending;
        None for all. Several threads may ask at once.
        """

    def status(self) -> Mapping[str, Any]:
        """What there is to say of it, for people."""

    def discard(self) -> None:
        """Take away all that is its own, wherever it is: another engine has taken its place."""


@dataclass(frozen=True)
class _Kind:
    """Where an engine is to be found, and which package it needs of which extra."""

    name: str
    place: str
    needs: str | None = None
    extra: str = ""


ENGINES = {
    kind.name: kind
    for kind in (
        _Kind("exact", "nearkin.index.exact:ExactEngine"),
        _Kind("faiss", "nearkin.index.faiss_engine:FaissEngine", "faiss", "faiss"),
        _Kind("faiss-hnsw", "nearkin.index.faiss_engine:FaissGraphEngine", "faiss", "faiss"),
    )
}
_PGVECTOR = _Kind("pgvector", "nearkin.index.pgvector_engine:PgvectorEngine", "psycopg", "pgvector")
_MILVUS = _Kind("milvus", "nearkin.index.milvus_engine:MilvusEngine", "pymilvus", "milvus")
ADDRESSES = {"postgresql": _PGVECTOR, "postgres": _PGVECTOR, "http": _MILVUS, "https": _MILVUS}
"""By the scheme of their address, the engines that are servers."""


def check_engine(name: str) -> None:
    """Refuse a name that no engine has, and an engine whose package is not installed."""
    kind = _kind(name)
    if kind.needs is not None:
        require(kind.needs, kind.extra)


def open_engine(name: str, folder: Path, vectors: Segments, distance: Distance, identity: str = "alone") -> Engine:
    """The engine of that name or address for an index that is called ``identity``, with its own files in ``folder``."""
    check_engine(name)
    kind = _kind(name)
    module, _, cls = kind.place.partition(":")
    make = getattr(importlib.import_module(module), cls)
    before = () if name in ENGINES else (name, identity)
    engine: Engine = make(*before, folder / kind.name, vectors, distance)
    return engine


def new_identity() -> str:
    """A name for tables and collections of an index that no other index has."""
    return f"nearkin_{secrets.token_hex(8)}"


def without_password(name: str) -> str:
    """What may be stored and shown of an engine's name or address.

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
    query = "&".join(each for each in parts.query.split("&") if each.partition("=")[0].lower() not in _SECRET)
    return urlunsplit(parts._replace(netloc=user.partition(":")[0] + at + host, query=query))


def _kind(name: str) -> _Kind:
    scheme = name.partition("://")[0] if "://" in name else None
    known: Mapping[str, _Kind] = ENGINES if scheme is None else ADDRESSES
    if (scheme or name) not in known:
        addresses = "postgresql://… (pgvector) or http://… (Milvus)"
        guess = f"{did_you_mean(name, ENGINES)}, or an address: {addresses}" if scheme is None else f"give {addresses}"
        raise RecipeError(f"unknown engine {without_password(name)!r}; {guess}")
    return known[scheme or name]
