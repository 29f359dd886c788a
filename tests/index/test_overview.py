"""Counts of labels and ranges of columns, against counting by hand."""

from __future__ import annotations

from nearkin.index import Index
from nearkin.index.overview import ColumnRange, overview


def test_counts(model, images, tmp_path):
    paths = sorted(images.rglob("*.png"))
    labels = ["often"] * 8 + ["rare"] * 3 + ["also rare"] * 3 + [""] * 6
    lines = [
        f"{path},{label},{n - 5 if n else ''},x" for n, (path, label) in enumerate(zip(paths, labels, strict=True))
    ]
    (tmp_path / "list.csv").write_text("path,label,year,place\n" + "\n".join(lines))
    index = Index.create(tmp_path / "birds.index", model)
    empty = overview(index)
    assert (empty.items, empty.labelled, empty.labels, empty.columns) == (0, 0, (), ())
    index.add(tmp_path / "list.csv")
    found = overview(index)
    assert (found.items, found.labelled) == (20, 14)
    assert found.labels == (("often", 8), ("also rare", 3), ("rare", 3))
    assert found.columns == (ColumnRange("year", True, -4, 14), ColumnRange("place", False, None, None))
