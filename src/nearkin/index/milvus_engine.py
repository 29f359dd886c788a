"""An engine on Milvus, on one machine or many: each index has a collection with an HNSW index.

Credentials are in the address, ``http://user:password@host:19530``, or in ``MILVUS_TOKEN`` as a token or
``user:password``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from nearkin.errors import require
from nearkin.evaluation.neighbours import Distance, Ints, Singles
from nearkin.index.engine import without_password
from nearkin.index.remote import Answer, Refused, Unreachable

TOKEN = "MILVUS_TOKEN"
_LINKS, _CONSTRUCTION, _EFFORT, _MOST_EFFORT = 16, 200, 200, 32_768
_SECONDS = 30.0
"""To wait for an answer; a server that is starting is slow."""
_FRESH = 10.0
"""For so many seconds after a change a search waits for all writes; later searches may lag by some 5 s."""
_BUILD_SECONDS = 600.0
_INVALID = 1100
"""Its code for a request that is always wrong."""


class MilvusCollection:
    """A collection of ``id`` (the primary key) and ``vector``."""

    most = 16_384
    exact_below = 1024
    """Milvus builds no index of a segment with fewer rows."""

    def __init__(self, address: str, name: str, dim: int, distance: Distance) -> None:
        self._pymilvus = require("pymilvus", "milvus")
        # The client logs a traceback before it raises an error.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        self.server = f"Milvus at {without_password(address)}"
        parts = urlsplit(address)
        self._uri = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        credentials = unquote(parts.netloc.rpartition("@")[0])
        self._token = credentials if ":" in credentials else os.environ.get(TOKEN, "")
        self._name, self._dim, self._is_cosine = name, dim, distance == "cosine"
        self._connected: Any = None
        self._lock = threading.Lock()

    def create(self) -> None:
        milvus = self._pymilvus.MilvusClient
        if not self._ask("has_collection", self._name):
            types = self._pymilvus.DataType
            schema = milvus.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("id", types.INT64, is_primary=True)
            schema.add_field("vector", types.FLOAT_VECTOR, dim=self._dim)
            self._ask("create_collection", self._name, schema=schema, consistency_level="Strong")
        if not self._ask("list_indexes", self._name):
            index = milvus.prepare_index_params()
            metric = "IP" if self._is_cosine else "L2"
            graph = {"M": _LINKS, "efConstruction": _CONSTRUCTION}
            index.add_index("vector", index_type="HNSW", metric_type=metric, params=graph)
            self._ask("create_index", self._name, index)
        self._ask("load_collection", self._name, timeout=_BUILD_SECONDS)

    def count(self, first: int = 0) -> int:
        if not self._ask("has_collection", self._name):
            return 0
        return int(self._query(f"id >= {first:d}", "count(*)")[0]["count(*)"])

    def rows(self, first: int, last: int) -> Ints:
        rows = self._query(f"id >= {first:d} and id < {last:d}", "id")
        return np.sort(np.array([row["id"] for row in rows], dtype=np.int64))

    def put(self, rows: Ints, vectors: Singles) -> None:
        data = [{"id": row, "vector": vector} for row, vector in zip(rows.tolist(), vectors, strict=True)]
        self._ask("upsert", self._name, data)

    def delete(self, rows: Ints) -> None:
        for start in range(0, len(rows), 4096):
            self._ask("delete", self._name, ids=rows[start : start + 4096].tolist())

    def delete_from(self, first: int) -> None:
        self._ask("delete", self._name, filter=f"id >= {first:d}")

    def nearest(self, queries: Singles, limit: int, age: float) -> list[Answer]:
        results = self._ask(
            "search",
            self._name,
            data=list(queries),
            anns_field="vector",
            limit=limit,
            search_params={"params": {"ef": min(_MOST_EFFORT, max(_EFFORT, 4 * limit))}},
            consistency_level="Strong" if age < _FRESH else "Bounded",
        )
        answers = []
        for hits in results:
            numbers = np.array([hit["id"] for hit in hits], dtype=np.int64)
            distances = np.array([hit["distance"] for hit in hits], dtype=np.float64)
            answers.append((numbers, -distances if self._is_cosine else distances))
        return answers

    def build(self) -> None:
        """Milvus indexes full segments by itself; a flush makes it index the rest, too, which takes some time."""
        self._ask("flush", self._name, timeout=_BUILD_SECONDS)
        end, rows = time.monotonic() + _BUILD_SECONDS, self.count()
        while time.monotonic() < end:
            segments = self._ask("list_loaded_segments", self._name)
            # A segment with few rows gets no index.
            if sum(part.num_rows for part in segments if part.index_name or part.num_rows < self.exact_below) >= rows:
                return
            time.sleep(0.5)

    def about(self) -> Mapping[str, Any]:
        version = self._ask("get_server_version").removeprefix("v")
        return {"version": f"Milvus {version}", "collection": self._name, "index": "hnsw"}

    def drop(self) -> None:
        self._ask("drop_collection", self._name)

    def _query(self, filter: str, field: str) -> Any:
        """A field of some rows, including all recent writes."""
        return self._ask("query", self._name, filter=filter, output_fields=[field], consistency_level="Strong")

    def _ask(self, method: str, *args: Any, timeout: float = _SECONDS, **options: Any) -> Any:
        """The result of a method of the client; errors become one line, as a type that tells whether to ask again."""
        try:
            with self._lock:
                if self._connected is None:
                    self._connected = self._pymilvus.MilvusClient(uri=self._uri, token=self._token, timeout=_SECONDS)
            return getattr(self._connected, method)(*args, timeout=timeout, **options)
        except self._pymilvus.MilvusException as error:
            message = " ".join(str(error.message).split())
            raise (Refused if error.code == _INVALID else Unreachable)(message) from error
