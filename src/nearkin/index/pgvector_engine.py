"""An engine on PostgreSQL with the extension pgvector: each index has a table with an HNSW index.

What the address ``postgresql://user@host:5432/database`` leaves out, such as the password, is read from the usual
places: ``PGPASSWORD``, ``~/.pgpass``, a service file.
"""

from __future__ import annotations

import contextlib
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from nearkin.errors import require
from nearkin.evaluation.neighbours import Distance, Ints, Singles
from nearkin.index.engine import without_password
from nearkin.index.remote import Answer, Refused, Unreachable

MOST_INDEXED = 2_000
"""The most dimensions of an HNSW index; with more, all rows are compared."""
_LINKS, _CONSTRUCTION, _EFFORT, _MOST_EFFORT = 16, 100, 200, 1000
_CONNECT_SECONDS = 5
_EXTENSION = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"


class PostgresTable:
    """A table ``(id bigint primary key, vector vector(dim))``. Every method is one transaction.

    Threads take turns with one connection.
    """

    most = 4096
    exact_below = 10_000

    def __init__(self, address: str, name: str, dim: int, distance: Distance) -> None:
        self._psycopg = require("psycopg", "pgvector")
        self._pgvector = require("pgvector.psycopg", "pgvector")
        self.server = f"PostgreSQL at {without_password(address)}"
        self._address, self._dim, self._is_cosine = address, dim, distance == "cosine"
        self._connection: Any = None
        self._lock = threading.Lock()
        sql = self._psycopg.sql
        self._names = {
            "table": sql.Identifier(name),
            "index": sql.Identifier(f"{name}_hnsw"),
            "incoming": sql.Identifier(f"{name}_incoming"),
            "type": sql.SQL(f"vector({dim})"),
            "by": sql.SQL("<#>" if self._is_cosine else "<->"),
            "operators": sql.SQL("vector_ip_ops" if self._is_cosine else "vector_l2_ops"),
        }
        self._name = name

    def create(self) -> None:
        with self._transaction() as execute:
            # Without this lock, one of two servers that create the table at the same time would fail.
            execute("SELECT pg_advisory_xact_lock(hashtext('nearkin'))")
            execute("CREATE TABLE IF NOT EXISTS {table} (id bigint PRIMARY KEY, vector {type} NOT NULL)")

    def count(self, first: int = 0) -> int:
        with self._transaction() as execute:
            if execute("SELECT to_regclass(%s)", self._name).fetchone()[0] is None:
                return 0
            return int(execute("SELECT count(*) FROM {table} WHERE id >= %s", first).fetchone()[0])

    def rows(self, first: int, last: int) -> Ints:
        with self._transaction() as execute:
            rows = execute("SELECT id FROM {table} WHERE id >= %s AND id < %s ORDER BY id", first, last).fetchall()
        return np.array([row[0] for row in rows], dtype=np.int64)

    def put(self, rows: Ints, vectors: Singles) -> None:
        with self._transaction() as execute:
            # COPY cannot replace rows, so they are copied to a temporary table first.
            execute("CREATE TEMPORARY TABLE IF NOT EXISTS {incoming} (id bigint, vector {type}) ON COMMIT DELETE ROWS")
            cursor = self._connection.cursor()
            with cursor.copy(self._statement("COPY {incoming} FROM STDIN (FORMAT BINARY)")) as copy:
                copy.set_types(["int8", "vector"])
                for row, vector in zip(rows.tolist(), vectors, strict=True):
                    copy.write_row((row, vector))
            execute(
                "INSERT INTO {table} SELECT id, vector FROM {incoming} "
                "ON CONFLICT (id) DO UPDATE SET vector = EXCLUDED.vector"
            )

    def delete(self, rows: Ints) -> None:
        with self._transaction() as execute:
            execute("DELETE FROM {table} WHERE id = ANY(%s)", rows.tolist())

    def delete_from(self, first: int) -> None:
        with self._transaction() as execute:
            execute("DELETE FROM {table} WHERE id >= %s", first)

    def nearest(self, queries: Singles, limit: int, age: float) -> list[Answer]:
        answers = []
        with self._transaction() as execute:
            # Scan until the limit is reached; the order does not matter, as all rows are scored again.
            execute("SET LOCAL hnsw.iterative_scan = relaxed_order")
            execute(f"SET LOCAL hnsw.ef_search = {min(_MOST_EFFORT, max(_EFFORT, 2 * limit))}")
            execute(f"SET LOCAL hnsw.max_scan_tuples = {max(20_000, 4 * limit)}")
            for query in queries:
                rows = execute("SELECT id, vector {by} %s FROM {table} ORDER BY 2 LIMIT %s", query, limit).fetchall()
                numbers = np.array([row[0] for row in rows], dtype=np.int64)
                distances = np.array([row[1] for row in rows], dtype=np.float64)
                answers.append((numbers, distances if self._is_cosine else distances**2))
        return answers

    def build(self) -> None:
        with self._transaction() as execute:
            if self._dim <= MOST_INDEXED:
                execute(
                    "CREATE INDEX IF NOT EXISTS {index} ON {table} USING hnsw (vector {operators}) "
                    f"WITH (m = {_LINKS}, ef_construction = {_CONSTRUCTION})"
                )
            execute("ANALYZE {table}")

    def about(self) -> Mapping[str, Any]:
        with self._transaction() as execute:
            version = execute("SHOW server_version").fetchone()[0].split()[0]
            extension = execute(_EXTENSION).fetchone()[0]
            built = execute("SELECT to_regclass(%s)", f"{self._name}_hnsw").fetchone()[0] is not None
        index = "hnsw" if built else "none, all rows are compared"
        return {"version": f"PostgreSQL {version}, pgvector {extension}", "table": self._name, "index": index}

    def drop(self) -> None:
        with self._transaction() as execute:
            execute("DROP TABLE IF EXISTS {table}")

    def _statement(self, text: str) -> Any:
        """SQL with the names and types of this table."""
        return self._psycopg.sql.SQL(text).format(**self._names)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Callable[..., Any]]:
        """A function that executes a statement with parameters; all statements of a transaction count, or none.

        Errors of PostgreSQL and its client become one line, with a remedy if there is one.
        """
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._connected()
                with self._connection.transaction():
                    yield lambda text, *parameters: self._connection.execute(self._statement(text), parameters)
            except self._psycopg.errors.UndefinedFile as error:
                reason = _first_line(error)
                raise Refused(f"it has no pgvector: install the extension on the server ({reason})") from error
            except self._psycopg.Error as error:
                if self._connection is not None:  # it may be broken
                    self._connection.close()
                    self._connection = None
                # Errors without a code are the client's: the server is down. 57P: it is shutting down or starting.
                is_lost = isinstance(error, (self._psycopg.OperationalError, self._psycopg.InterfaceError)) and (
                    error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))
                )
                raise (Unreachable if is_lost else Refused)(_first_line(error)) from error

    def _connected(self) -> Any:
        # No prepared statements, as a connection pooler may lose them.
        options = {"autocommit": True, "prepare_threshold": None, "connect_timeout": _CONNECT_SECONDS}
        db = self._psycopg.connect(self._address, application_name="nearkin", **options)
        weakref.finalize(self, db.close)
        version = db.execute(_EXTENSION).fetchone()
        if version is None:
            with db.transaction():
                db.execute("SELECT pg_advisory_xact_lock(hashtext('nearkin'))")
                db.execute("CREATE EXTENSION IF NOT EXISTS vector")
            version = db.execute(_EXTENSION).fetchone()
        if tuple(map(int, re.findall(r"\d+", version[0])[:2])) < (0, 8):
            raise Refused(f"its pgvector is {version[0]}, and 0.8 or newer is needed: ALTER EXTENSION vector UPDATE")
        self._pgvector.register_vector(db)
        return db


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split("\n")[0].split())
