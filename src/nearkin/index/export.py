"""An index as one file for other programs: .npz for NumPy, .parquet for data frames, written batch by batch."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from nearkin.disk import replacing, writing
from nearkin.errors import RecipeError, require
from nearkin.index.index import Index
from nearkin.index.items import Item
from nearkin.index.where import Where

SUFFIXES = (".npz", ".parquet")
_AT_ONCE = 8192


@dataclass
class _Column:
    """The type of a column: its longest text, and whether its numbers have fractions or gaps."""

    name: str
    longest: int = 0
    has_fractions: bool = False
    has_numbers: bool = False
    has_gaps: bool = False

    def update(self, value: Any) -> None:
        self.has_gaps |= value is None
        self.has_fractions |= isinstance(value, float)
        self.has_numbers |= isinstance(value, (int, float))
        self.longest = max(self.longest, len(value)) if isinstance(value, str) else self.longest

    def array(self, values: Sequence[Any]) -> NDArray[Any]:
        """Values for NumPy; a gap is NaN among numbers, and empty text."""
        if not self.has_numbers:
            return np.array([value or "" for value in values], dtype=f"<U{max(self.longest, 1)}")
        numbers = [np.nan if value is None else value for value in values]
        return np.array(numbers, dtype="<f8" if self.has_fractions or self.has_gaps else "<i8")


def export(index: Index, file: str | Path, *, where: Where | None = None) -> int:
    """Write the items of an index that meet ``where``, with their columns and vectors; returns how many.

    An .npz holds ``ids``, ``paths``, ``labels``, ``vectors [N, dim]`` (float32), ``columns.NAME`` for each further
    column, ``encoder`` and ``distance``; it is read without pickle. A .parquet file (extra ``parquet``) has a row for
    each item: ``id``, ``path``, ``label``, the further columns and ``vector``, a list of fixed size.
    """
    target = Path(file).expanduser()
    if target.suffix not in SUFFIXES:
        raise RecipeError(f"the file must end in .npz or .parquet, got {str(target)!r}")
    if target.is_dir() or not target.parent.is_dir():
        wrong = "it is a folder" if target.is_dir() else f"there is no folder {str(target.parent)!r}; make it first"
        raise RecipeError(f"cannot write {str(target)!r}: {wrong}")
    write = _write_npz if target.suffix == ".npz" else _write_parquet
    ids = index.ids(where)
    columns = [_Column(name) for name in ("path", "label", *index.status().columns)]
    for part in _parts(ids):
        for column, values in zip(columns, _by_column(index.items(part)), strict=True):
            for value in values:
                column.update(value)
    with writing(target), replacing(target) as opened:
        write(opened, index, ids, columns)
    return len(ids)


def _parts(ids: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    return (ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE))


def _by_column(items: Sequence[Item]) -> list[list[Any]]:
    """Paths, labels, and each further column of items."""
    rows = ((item.path, item.label, *item.columns.values()) for item in items)
    return [list(values) for values in zip(*rows, strict=True)]


def _write_npz(file: IO[bytes], index: Index, ids: NDArray[np.int64], columns: Sequence[_Column]) -> None:
    status = index.status()
    with zipfile.ZipFile(file, "w") as archive:

        def put(name: str, parts: Iterator[NDArray[Any]], empty: NDArray[Any]) -> None:
            # Text of a fixed width is mostly zeros; vectors would not become smaller.
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = zipfile.ZIP_DEFLATED if empty.dtype.kind == "U" else zipfile.ZIP_STORED
            shape = (len(ids), *empty.shape[1:])
            with archive.open(entry, "w", force_zip64=True) as opened:
                head = {"descr": np.lib.format.dtype_to_descr(empty.dtype), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_2_0(opened, head)
                for part in parts:
                    opened.write(np.ascontiguousarray(part).tobytes())

        put("ids", iter([ids.astype("<i8")]), np.empty(0, "<i8"))
        for i, column in enumerate(columns):
            name = f"{column.name}s" if i < 2 else f"columns.{column.name}"
            put(name, (column.array(_by_column(index.items(part))[i]) for part in _parts(ids)), column.array([]))
        vectors = (index.vectors(part).astype("<f4") for part in _parts(ids))
        put("vectors", vectors, np.empty((0, index.dim), "<f4"))
        for name, text in (("encoder", status.encoder), ("distance", status.distance)):
            with archive.open(f"{name}.npy", "w") as opened:
                np.lib.format.write_array(opened, np.array(text), allow_pickle=False)


def _write_parquet(file: IO[bytes], index: Index, ids: NDArray[np.int64], columns: Sequence[_Column]) -> None:
    arrow, parquet = require("pyarrow", "parquet"), require("pyarrow.parquet", "parquet")
    if "vector" in (column.name for column in columns):
        raise RecipeError(f"a column of {index.path} is called 'vector', as the vectors' own is to be: export to .npz")
    types = [
        arrow.string() if not column.has_numbers else arrow.float64() if column.has_fractions else arrow.int64()
        for column in columns
    ]
    status = index.status()
    schema = arrow.schema(
        [
            ("id", arrow.int64()),
            *zip((column.name for column in columns), types, strict=True),
            ("vector", arrow.list_(arrow.float32(), index.dim)),
        ],
        metadata={"nearkin.encoder": status.encoder, "nearkin.distance": status.distance},
    )
    with parquet.ParquetWriter(file, schema) as writer:
        for part in _parts(ids):
            values = _by_column(index.items(part))
            flat = arrow.array(index.vectors(part).reshape(-1))
            arrays = [arrow.array(column, type) for column, type in zip(values, types, strict=True)]
            vectors = arrow.FixedSizeListArray.from_arrays(flat, index.dim)
            writer.write_batch(arrow.record_batch([arrow.array(part), *arrays, vectors], schema=schema))
