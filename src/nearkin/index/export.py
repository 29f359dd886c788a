"""An index as one file for other programs: .npz for NumPy, .parquet for data frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.disk import replacing, writing
from nearkin.errors import RecipeError, require
from nearkin.index.filters import Where
from nearkin.index.index import Index


def export(index: Index, file: str | Path, *, where: Where | None = None) -> int:
    """Write the items of an index that meet ``where``, with their columns and vectors; returns their number.

    An .npz holds ``ids``, ``paths``, ``labels``, ``vectors [N, dim]`` (float32), ``columns.NAME`` for each further
    column, ``encoder`` and ``distance``. A .parquet file (extra ``parquet``) has a row for each item: ``id``, ``path``,
    ``label``, the further columns and ``vector``, a list of fixed size. The vectors must fit into memory.
    """
    target = Path(file).expanduser()
    if target.suffix not in (".npz", ".parquet"):
        raise RecipeError(f"the file must end in .npz or .parquet, got {str(target)!r}")
    status, ids = index.status(), index.ids(where)
    items, vectors = index.items(ids), index.vectors(ids)
    paths, labels = [item.path for item in items], [item.label for item in items]
    columns = {name: [item.columns[name] for item in items] for name in status.columns}
    about = {"encoder": status.encoder, "distance": status.distance}
    if target.suffix == ".npz":
        arrays: dict[str, Any] = {"ids": ids, "paths": _array(paths), "labels": _array(labels), "vectors": vectors}
        arrays |= {f"columns.{name}": _array(values) for name, values in columns.items()}
        arrays |= {name: np.array(value) for name, value in about.items()}
        with writing(target), replacing(target) as opened:
            np.savez(opened, **arrays)
        return len(ids)
    arrow, parquet = require("pyarrow", "parquet"), require("pyarrow.parquet", "parquet")
    if "vector" in columns:
        raise RecipeError(f"{index.path} has a column 'vector', the name of the vectors' column: export to .npz")
    listed = arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.reshape(-1)), index.dim)
    table = arrow.table({"id": ids, "path": paths, "label": labels, **columns, "vector": listed})
    with writing(target), replacing(target) as opened:
        metadata = {f"nearkin.{name}": value for name, value in about.items()}
        parquet.write_table(table.replace_schema_metadata(metadata), opened)
    return len(ids)


def _array(values: list[Any]) -> NDArray[Any]:
    """A column for NumPy: missing numbers are NaN, missing texts are empty."""
    if not any(isinstance(value, (int, float)) for value in values):
        return np.array([value or "" for value in values], dtype=np.str_)
    return np.array([np.nan if value is None else value for value in values])
