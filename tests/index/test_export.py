"""An index written to one file, read back by NumPy and by Arrow."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from nearkin.errors import DataError, MissingExtraError, OutputError, RecipeError
from nearkin.index.export import export
from nearkin.index.index import Index


@pytest.fixture
def index(tmp_path, images, model):
    """Twenty images with whole numbers, fractions, gaps and text; two removed and one that came without a file."""
    with open(tmp_path / "images.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "year", "weight", "seen", "nothing"])
        for number, path in enumerate(sorted(images.rglob("*.png"))):
            row = [path, path.parent.name, 2000 + number, number / 4, "" if number % 3 else number, ""]
            writer.writerow(row)
    made = Index.create(tmp_path / "index", model)
    made.add(tmp_path / "images.csv")
    made.remove([4, 11])
    made.add(np.full((8, 8, 3), 90, dtype=np.uint8))
    return made


def test_npz(index, tmp_path):
    assert export(index, tmp_path / "index.npz") == 19
    with np.load(tmp_path / "index.npz", allow_pickle=False) as file:
        held = dict(file)
    items = index.items(index.ids())
    assert sorted(held) == [
        *("columns.nothing", "columns.seen", "columns.weight", "columns.year"),
        *("distance", "encoder", "ids", "labels", "paths", "vectors"),
    ]
    assert held["ids"].tolist() == [item.id for item in items]
    assert held["paths"].tolist() == [item.path or "" for item in items]
    assert held["labels"].tolist() == [item.label or "" for item in items]
    assert held["vectors"].dtype == np.float32
    np.testing.assert_array_equal(held["vectors"], index.vectors(index.ids()))
    years = [item.columns["year"] for item in items]
    assert years[-1] is None
    np.testing.assert_array_equal(held["columns.year"], [*years[:-1], np.nan])
    np.testing.assert_array_equal(held["columns.weight"][:-1], [item.columns["weight"] for item in items][:-1])
    seen = [np.nan if item.columns["seen"] is None else item.columns["seen"] for item in items]
    np.testing.assert_array_equal(held["columns.seen"], seen)
    assert set(held["columns.nothing"].tolist()) == {""}
    assert (str(held["encoder"]), str(held["distance"])) == ("stand-in", "cosine")
    some = {"label": "kind 1", "year": (2006, None)}
    assert export(index, tmp_path / "some.npz", where=some) == len(index.ids(some)) > 0
    with np.load(tmp_path / "some.npz") as file:
        assert file["columns.year"].dtype == np.int64, "whole numbers without gaps"
        assert set(file["labels"].tolist()) == {"kind 1"}


def test_parquet(index, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert export(index, tmp_path / "index.parquet") == 19
    table = parquet.read_table(tmp_path / "index.parquet")
    assert table.schema.names == ["id", "path", "label", "year", "weight", "seen", "nothing", "vector"]
    items = index.items(index.ids())
    rows = table.drop_columns(["vector"]).to_pylist()
    assert rows == [{"id": item.id, "path": item.path, "label": item.label, **item.columns} for item in items]
    assert str(table.schema.field("year").type) == "int64"
    assert table.schema.field("vector").type.list_size == 6
    vectors = np.stack(table["vector"].combine_chunks().to_numpy(zero_copy_only=False))
    np.testing.assert_array_equal(vectors, index.vectors(index.ids()))
    assert table.schema.metadata[b"nearkin.encoder"] == b"stand-in"


@pytest.mark.parametrize("ending", [".npz", ".parquet"])
def test_an_empty_index(tmp_path, model, ending):
    assert export(Index.create(tmp_path / "index", model), tmp_path / f"none{ending}") == 0
    if ending == ".npz":
        with np.load(tmp_path / "none.npz") as file:
            assert file["vectors"].shape == (0, 6)
            assert file["paths"].shape == (0,)
    else:
        assert pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "none.parquet").num_rows == 0


def test_mistakes(index, tmp_path, monkeypatch, model):
    with pytest.raises(RecipeError, match=r"must end in .npz or .parquet"):
        export(index, tmp_path / "index.csv")
    (tmp_path / "a.npz").mkdir()
    for file in ("a.npz", "none/index.npz"):
        with pytest.raises(OutputError, match=f"cannot write .*{file}"):
            export(index, tmp_path / file)
    (tmp_path / "vector.csv").write_text(f"path,vector\n{tmp_path / 'images' / 'kind 0' / '0.png'},1\n")
    other = Index.create(tmp_path / "other", model)
    other.add(tmp_path / "vector.csv")
    with pytest.raises(RecipeError, match=r"column 'vector'.*\.npz"):
        export(other, tmp_path / "b.parquet")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"nearkin\[parquet\]"):
        export(index, tmp_path / "b.parquet")
    assert not list(tmp_path.glob("*b.parquet*")), "nothing half written stays"
    with pytest.raises(DataError):
        index.get(4)
