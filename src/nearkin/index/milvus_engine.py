"""An engine on Milvus, of one machine or of many: one collection with an HNSW index for each index.

The address is ``http://host:19530``, or ``https://…``. Credentials go into the address,
``http://user:password@host:19530``, or as a token or ``user:password`` into ``MILVUS_TOKEN``.

There is no partition key: filters are settled before the server is asked, so it knows no field of an item.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from nearkin.errors import require
from nearkin.index.engine import Distance, without_password
from nearkin.index.remote import Answer, Refused, Unreachable

TOKEN = "MILVUS_TOKEN"
_LINKS, _CONSTRUCTION, _EFFORT, _MOST_EFFORT = 16, 200, 200, 32_768
_SECONDS = 30.0
"""Timeout of an answer; a server that is starting up is slow."""
_FRESH = 10.0
"""Seconds after a change in which a search waits for all that was written, some 0.2 s. Later searches may see the state
of a few seconds before (Milvus' "bounded staleness", 5 s by default)."""
_BUILD_SECONDS = 600.0
_INVALID = 1100
"""Its code for a request that is wrong whenever it is made."""


class MilvusCollection:
    """A collection of ``id`` (the primary key) and ``vector``."""

    most = 16_384
    exact_below = 1024
    """It builds no index of a segment with fewer rows."""

    def __init__(self, address: str, name: str, dim: int, distance: Distance) -> None:
        self._pymilvus = require("pymilvus", "milvus")
        # Before it raises an error, it writes it with a traceback to the error output.
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
        with self._client() as client:
            if not client.has_collection(self._name, timeout=_SECONDS):
                types = self._pymilvus.DataType
                schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
                schema.add_field("id", types.INT64, is_primary=True)
                schema.add_field("vector", types.FLOAT_VECTOR, dim=self._dim)
                client.create_collection(self._name, schema=schema, consistency_level="Strong", timeout=_SECONDS)
            if not client.list_indexes(self._name):
                index = client.prepare_index_params()
                metric = "IP" if self._is_cosine else "L2"
                graph = {"M": _LINKS, "efConstruction": _CONSTRUCTION}
                index.add_index("vector", index_type="HNSW", metric_type=metric, params=graph)
                client.create_index(self._name, index, timeout=_SECONDS)
            client.load_collection(self._name, timeout=_BUILD_SECONDS)

    def count(self, first: int = 0) -> int:
        with self._client() as client:
            if not client.has_collection(self._name, timeout=_SECONDS):
                return 0
            return int(self._query(client, f"id >= {first:d}", "count(*)")[0]["count(*)"])

    def rows(self, first: int, last: int) -> NDArray[np.int64]:
        with self._client() as client:
            rows = self._query(client, f"id >= {first:d} and id < {last:d}", "id")
            return np.sort(np.array([row["id"] for row in rows], dtype=np.int64))

    def put(self, rows: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        with self._client() as client:
            client.upsert(
                self._name,
                [{"id": row, "vector": vector} for row, vector in zip(rows.tolist(), vectors, strict=True)],
                timeout=_SECONDS,
            )

    def delete(self, rows: NDArray[np.int64]) -> None:
        with self._client() as client:
            for start in range(0, len(rows), 4096):
                client.delete(self._name, ids=rows[start : start + 4096].tolist(), timeout=_SECONDS)

    def delete_from(self, first: int) -> None:
        with self._client() as client:
            client.delete(self._name, filter=f"id >= {first:d}", timeout=_SECONDS)

    def nearest(self, queries: NDArray[np.float32], limit: int, age: float) -> list[Answer]:
        with self._client() as client:
            results = client.search(
                self._name,
                data=list(queries),
                anns_field="vector",
                limit=limit,
                search_params={"params": {"ef": min(_MOST_EFFORT, max(_EFFORT, 4 * limit))}},
                consistency_level="Strong" if age < _FRESH else "Bounded",
                timeout=_SECONDS,
            )
        answers = []
        for hits in results:
            numbers = np.array([hit["id"] for hit in hits], dtype=np.int64)
            distances = np.array([hit["distance"] for hit in hits], dtype=np.float64)
            answers.append((numbers, -distances if self._is_cosine else distances))
        return answers

    def build(self) -> None:
        """Milvus builds full segments by itself; a flush makes it build the rest, which is waited for."""
        with self._client() as client:
            client.flush(self._name, timeout=_BUILD_SECONDS)
        end, rows = time.monotonic() + _BUILD_SECONDS, self.count()
        while time.monotonic() < end:
            with self._client() as client:
                segments = client.list_loaded_segments(self._name, timeout=_SECONDS)
            # A segment with few rows gets no index.
            if sum(part.num_rows for part in segments if part.index_name or part.num_rows < self.exact_below) >= rows:
                return
            time.sleep(0.5)

    def about(self) -> Mapping[str, Any]:
        with self._client() as client:
            version = client.get_server_version(timeout=_SECONDS)
        return {"version": f"Milvus {version.removeprefix('v')}", "collection": self._name, "index": "hnsw"}

    def drop(self) -> None:
        with self._client() as client:
            client.drop_collection(self._name, timeout=_SECONDS)

    def _query(self, client: Any, filter: str, field: str) -> Any:
        """A field of some rows, with all that was written before."""
        return client.query(
            self._name, filter=filter, output_fields=[field], consistency_level="Strong", timeout=_SECONDS
        )

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        """A client whose errors become one line, and tell whether to ask again."""
        try:
            with self._lock:
                if self._connected is None:
                    self._connected = self._pymilvus.MilvusClient(uri=self._uri, token=self._token, timeout=_SECONDS)
            yield self._connected
        except self._pymilvus.MilvusException as error:
            message = " ".join(str(error.message).split())
            raise (Refused if error.code == _INVALID else Unreachable)(message) from error
