"""An engine that is a Milvus, of one machine or of many: one collection for an index, with an HNSW index of it.

An address is ``http://host:19530``, or ``https://…``. Who must say who they are put it into the address,
``http://user:password@host:19530``, or a token or ``user:password`` into ``MILVUS_TOKEN``.

There is no partition key: an index is a collection of its own, so that it can be dropped without a look at others, and
filters are settled before a server is asked, so no field of an item is known there by which to part them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from nearkin.errors import RecipeError, require
from nearkin.index.engine import Distance, without_password
from nearkin.index.remote import Found, Lost, Refused, RemoteEngine
from nearkin.index.segments import Segments

TOKEN = "MILVUS_TOKEN"
MOST_DIMENSIONS = 32_768
_LINKS, _CONSTRUCTION, _EFFORT, _MOST_EFFORT = 16, 200, 200, 32_768
_SECONDS = 30.0
"""For an answer; those of a server that starts up come late."""
_FRESH = 10.0
"""Seconds after a change in which a search waits for all that was written, some 0.2 s; afterwards it is told what was
there a few seconds before (Milvus' "bounded staleness", 5 s unless its administrator says otherwise)."""
_BUILD_SECONDS = 600.0
_INVALID = 1100
"""Its code for a question that is wrong, whenever it is asked."""


class MilvusEngine(RemoteEngine):
    """Rows in a collection of a Milvus."""

    def __init__(self, address: str, identity: str, folder: Path, vectors: Segments, distance: Distance) -> None:
        super().__init__(MilvusCollection(address, identity, vectors.width, distance), folder, vectors, distance)


class MilvusCollection:
    """A collection of ``id`` (the primary key) and ``vector``."""

    most = 16_384
    exact_below = 1024
    """Of a segment with fewer rows it builds no index."""

    def __init__(self, address: str, name: str, dim: int, distance: Distance) -> None:
        self._pymilvus = require("pymilvus", "milvus")
        # What it cannot do it writes with a traceback to the error output, and raises, too.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        if dim > MOST_DIMENSIONS:
            raise RecipeError(f"Milvus holds vectors of at most {MOST_DIMENSIONS:,} numbers, and these have {dim:,}")
        shown = without_password(address)
        self.server = f"Milvus at {shown}"
        parts = urlsplit(address)
        self._uri = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        given = unquote(parts.netloc.rpartition("@")[0])
        self._token = given if ":" in given else os.environ.get(TOKEN, "")
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
                how = {"M": _LINKS, "efConstruction": _CONSTRUCTION}
                index.add_index("vector", index_type="HNSW", metric_type=metric, params=how)
                client.create_index(self._name, index, timeout=_SECONDS)
            client.load_collection(self._name, timeout=_BUILD_SECONDS)

    def count(self, first: int = 0) -> int:
        with self._client() as client:
            if not client.has_collection(self._name, timeout=_SECONDS):
                return 0
            found = self._query(client, f"id >= {first:d}", "count(*)")
            return int(found[0]["count(*)"])

    def rows(self, first: int, last: int) -> NDArray[np.int64]:
        with self._client() as client:
            found = self._query(client, f"id >= {first:d} and id < {last:d}", "id")
            return np.sort(np.array([row["id"] for row in found], dtype=np.int64))

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

    def nearest(self, queries: NDArray[np.float32], limit: int, age: float) -> list[Found]:
        with self._client() as client:
            given = client.search(
                self._name,
                data=list(queries),
                anns_field="vector",
                limit=limit,
                search_params={"params": {"ef": min(_MOST_EFFORT, max(_EFFORT, 4 * limit))}},
                consistency_level="Strong" if age < _FRESH else "Bounded",
                timeout=_SECONDS,
            )
        found = []
        for hits in given:
            far = np.array([hit["distance"] for hit in hits], dtype=np.float64)
            found.append((np.array([hit["id"] for hit in hits], dtype=np.int64), -far if self._is_cosine else far))
        return found

    def build(self) -> None:
        """Milvus builds by itself what is full; here it is told to build the rest, and waited for."""
        with self._client() as client:
            client.flush(self._name, timeout=_BUILD_SECONDS)
        end, rows = time.monotonic() + _BUILD_SECONDS, self.count()
        while time.monotonic() < end and self._searched_by_graph() < rows:
            time.sleep(0.5)

    def _searched_by_graph(self) -> int:
        """Rows of loaded segments that have their index, or are too small to get one."""
        with self._client() as client:
            loaded = client.list_loaded_segments(self._name, timeout=_SECONDS)
        return sum(each.num_rows for each in loaded if each.index_name or each.num_rows < self.exact_below)

    def about(self) -> Mapping[str, Any]:
        with self._client() as client:
            version = client.get_server_version(timeout=_SECONDS)
        return {"version": f"Milvus {version.removeprefix('v')}", "collection": self._name, "index": "hnsw"}

    def drop(self) -> None:
        with self._client() as client:
            client.drop_collection(self._name, timeout=_SECONDS)

    def _query(self, client: Any, which: str, field: str) -> Any:
        """A field of some rows, with all that was written before."""
        return client.query(
            self._name, filter=which, output_fields=[field], consistency_level="Strong", timeout=_SECONDS
        )

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        """A client, and what it says of errors as one line and as what can be done about it."""
        try:
            with self._lock:
                if self._connected is None:
                    self._connected = self._pymilvus.MilvusClient(uri=self._uri, token=self._token, timeout=_SECONDS)
            yield self._connected
        except self._pymilvus.MilvusException as error:
            said = " ".join(str(error.message).split())
            raise (Refused if error.code == _INVALID else Lost)(said) from error
