"""An index as one file for other programs: .npz for NumPy, .parquet for data frames; vectors are copied in blocks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from nearkin.disk import replacing, writing
from nearkin.errors import RecipeError, require
from nearkin.index.index import Index
from nearkin.index.where import Where

_AT_ONCE = 8192


def export(index: Index, file: str | Path, *, where: Where | None = None) -> int:
    """Write the items of an index that meet ``where``, with their columns and vectors; returns how many.

    An .npz holds ``ids``, ``paths``, ``labels``, ``vectors [N, dim]`` (float32), ``columns.NAME`` for each further
    column, ``encoder`` and ``distance``; it is read without pickle. A .parquet file (extra ``parquet``) has a row for
    each item: ``id``, ``path``, ``label``, the further columns and ``vector``, a list of fixed size.
    """
    target = Path(file).expanduser()
    if target.suffix not in (".npz", ".parquet"):
        raise RecipeError(f"the file must end in .npz or .parquet, got {str(target)!r}")
    if target.is_dir() or not target.parent.is_dir():
        wrong = "it is a folder" if target.is_dir() else f"there is no folder {str(target.parent)!r}; make it first"
        raise RecipeError(f"cannot write {str(target)!r}: {wrong}")
    ids = index.ids(where)
    columns: dict[str, list[Any]] = {name: [] for name in ("path", "label", *index.status().columns)}
    for part in _blocks(ids):
        for item in index.items(part):
            for name, value in zip(columns, (item.path, item.label, *item.columns.values()), strict=True):
                columns[name].append(value)
    with writing(target), replacing(target) as opened:
        (_write_npz if target.suffix == ".npz" else _write_parquet)(opened, target.parent, index, ids, columns)
    return len(ids)


def _blocks(ids: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    return (ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE))


def _write_npz(
    file: IO[bytes], folder: Path, index: Index, ids: NDArray[np.int64], columns: dict[str, list[Any]]
) -> None:
    status = index.status()
    arrays: dict[str, Any] = {
        f"{name}s" if i < 2 else f"columns.{name}": _array(values) for i, (name, values) in enumerate(columns.items())
    }
    # Gathered in a temporary file, which NumPy maps and copies, as the vectors may not fit into memory.
    with tempfile.TemporaryFile(dir=folder) as gathered:
        for part in _blocks(ids):
            gathered.write(index.vectors(part).astype("<f4").tobytes())
        gathered.flush()
        shape = (len(ids), index.dim)
        vectors = np.memmap(gathered, "<f4", "r", shape=shape) if len(ids) else np.empty(shape, "<f4")
        arrays |= {"vectors": vectors, "encoder": np.array(status.encoder), "distance": np.array(status.distance)}
        np.savez(file, ids=ids.astype("<i8"), **arrays)


def _array(values: list[Any]) -> NDArray[Any]:
    """A column for NumPy, which has no gaps: they are NaN among numbers, and empty text."""
    if not any(isinstance(value, (int, float)) for value in values):
        return np.array([value or "" for value in values], dtype=np.str_)
    is_whole = all(isinstance(value, int) for value in values)
    return np.array([np.nan if value is None else value for value in values], dtype="<i8" if is_whole else "<f8")


def _write_parquet(
    file: IO[bytes], folder: Path, index: Index, ids: NDArray[np.int64], columns: dict[str, list[Any]]
) -> None:
    arrow, parquet = require("pyarrow", "parquet"), require("pyarrow.parquet", "parquet")
    if "vector" in columns:
        raise RecipeError(f"a column of {index.path} is called 'vector', as the vectors' own is to be: export to .npz")
    types = [
        arrow.float64()
        if any(isinstance(value, float) for value in values)
        else arrow.int64()
        if any(isinstance(value, int) for value in values)
        else arrow.string()
        for values in columns.values()
    ]
    status = index.status()
    vector = ("vector", arrow.list_(arrow.float32(), index.dim))
    schema = arrow.schema(
        [("id", arrow.int64()), *zip(columns, types, strict=True), vector],
        metadata={"nearkin.encoder": status.encoder, "nearkin.distance": status.distance},
    )
    with parquet.ParquetWriter(file, schema) as writer:
        for start in range(0, len(ids), _AT_ONCE):
            rows = slice(start, start + _AT_ONCE)
            arrays = [arrow.array(values[rows], type) for values, type in zip(columns.values(), types, strict=True)]
            vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(index.vectors(ids[rows]).reshape(-1)), index.dim)
            writer.write_batch(arrow.record_batch([arrow.array(ids[rows]), *arrays, vectors], schema=schema))
