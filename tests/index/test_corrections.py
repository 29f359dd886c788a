"""What people say of labels: kept beside them, also in indexes that are older than corrections."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.data.manifest import read_manifest
from nearkin.errors import DataError
from nearkin.index import Index
from nearkin.index.corrections import correct, corrections, manifest


@pytest.fixture
def index(images, model, tmp_path):
    made = Index.create(tmp_path / "birds.index", model)
    made.add(images)
    return made


def test_the_last_word_counts_and_labels_stay(index, model):
    correct(index, [0, 1, 1], "robin")
    assert correct(index, [1], None) == 2
    again = Index.open(index.path, model)  # they are on the disk
    assert [(each.id, each.was, each.label) for each in corrections(again)] == [
        (0, "kind 0", "robin"),
        (1, "kind 0", None),
    ]
    assert corrections(again)[0].time.endswith("+00:00")
    assert again.get(0).label == "kind 0"
    again.remove([0])
    assert [each.id for each in corrections(index)] == [1]
    with pytest.raises(DataError, match="no item 0"):
        correct(index, [1, 0], "wren")
    assert corrections(index)[0].label is None


def test_the_manifest_is_one_that_training_reads(index, images, model, tmp_path):
    index.add(np.zeros((4, 4, 3), np.uint8), labels=["an upload, which has no file"])
    odd = 'a "quoted", odd; name\tof Käse'
    correct(index, [0], odd)
    correct(index, [5], None)
    (tmp_path / "list.csv").write_text(manifest(index), encoding="utf-8")
    table = read_manifest(tmp_path / "list.csv")
    labels = {str(path): table.class_names[label] for path, label in zip(table.images, table.labels, strict=True)}
    expected = {item.path: item.label for item in index.items(range(20))}
    expected[index.get(0).path] = odd
    del expected[index.get(5).path]
    assert labels == expected


def test_columns_that_would_mean_something_else_are_left_out(index, tmp_path):
    columns = {"Label": "x", "split": "never", "year": "1", " Year": "2", "ID": "3", "note": "a\nb"}
    index.add_pixels(np.zeros((4, 4, 3), np.uint8), "robin", columns)
    text = manifest(index)
    assert text.splitlines()[0] == "path,label,year,note"
    (tmp_path / "list.csv").write_text(text)
    assert len(read_manifest(tmp_path / "list.csv")) == 20


def test_further_columns_go_along(model, images, tmp_path):
    lines = [f"{path},{path.parent.name},{n}" for n, path in enumerate(sorted(images.rglob("*.png")))]
    (tmp_path / "in.csv").write_text("path,label,year\n" + "\n".join(lines))
    index = Index.create(tmp_path / "years.index", model)
    index.add(tmp_path / "in.csv")
    correct(index, [2], "robin")
    (tmp_path / "out.csv").write_text(manifest(index))
    table = read_manifest(tmp_path / "out.csv")
    assert table.columns["year"].tolist() == [str(n) for n in range(20)]
    assert table.class_names[table.labels[2]] == "robin"
