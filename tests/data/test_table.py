from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nearkin.data.table import ImageTable, LeftOut, split_class_name
from nearkin.errors import DataError

PIXELS = np.arange(5, dtype=np.uint8)[:, None, None] * np.ones((1, 4, 4), dtype=np.uint8)
SPLITS = ("train", "train", "query", "gallery", "train")


@pytest.fixture(params=["array", "paths"])
def table(request):
    images = PIXELS if request.param == "array" else [Path(f"{n}.jpg") for n in range(5)]
    columns = {"camera": ["a", "b", "c", "d", "e"]}
    return ImageTable.build("toy", images, ["owl", "tit", "emu", "owl", "emu"], splits=SPLITS, columns=columns)


def test_classes_are_numbered_as_they_appear_or_as_given(table):
    assert (table.class_names, table.labels.tolist()) == (("owl", "tit", "emu"), [0, 1, 2, 0, 2])
    given = ImageTable.build("toy", PIXELS[:2], ["tit", "owl"], splits=SPLITS[:2], class_names=["emu", "owl", "tit"])
    assert given.labels.tolist() == [2, 1]
    assert given.classes().tolist() == [1, 2]


def test_ids_are_paths_or_numbers_of_equal_length(table):
    assert table.ids == (
        tuple("01234") if isinstance(table.images, np.ndarray) else tuple(f"{n}.jpg" for n in range(5))
    )
    many = ImageTable.build("toy", np.zeros((11, 2, 2), np.uint8), ["a"] * 11, splits=["train"] * 11)
    assert many.ids[::10] == ("00", "10")


@pytest.mark.parametrize("rows", [[4, 0], np.array([4, 0]), np.array([True, False, False, False, True])], ids=str)
def test_rows_keep_what_belongs_to_them_and_the_meaning_of_labels(table, rows):
    taken = table.take(rows)
    order = [0, 4] if getattr(rows, "dtype", None) == np.bool_ else [4, 0]
    assert taken.ids == tuple(table.ids[row] for row in order)
    assert taken.labels.tolist() == [table.labels[row] for row in order]
    assert taken.columns["camera"].tolist() == ["abcde"[row] for row in order]
    assert [np.array_equal(taken.images[at], table.images[row]) for at, row in enumerate(order)] == [True, True]
    assert taken.class_names == table.class_names


def test_splits_are_taken_together(table):
    assert table.split("query", "gallery").labels.tolist() == [2, 0]


def test_only_training_labels_are_renumbered(table):
    without_tit = table.take([0, 2, 4])
    assert without_tit.labels.tolist() == [0, 2, 2]
    assert without_tit.training_labels().tolist() == [0, 1, 1]


def test_a_table_that_does_not_fit_together_is_refused():
    with pytest.raises(DataError, match="'toy' has 5 images but 4 splits"):
        ImageTable.build("toy", PIXELS, ["a"] * 5, splits=["train"] * 4)
    with pytest.raises(DataError, match="5 images but 1 column 'camera'"):
        ImageTable.build("toy", PIXELS, ["a"] * 5, splits=["train"] * 5, columns={"camera": ["x"]})
    with pytest.raises(DataError, match=r"unknown splits \['trian'\]; valid: train, "):
        ImageTable.build("toy", PIXELS, ["a"] * 5, splits=["trian"] * 5)
    ids, splits = ("a", "b"), np.array(["train"] * 2)
    with pytest.raises(DataError, match="labels outside its 1 classes"):
        ImageTable("toy", PIXELS[:2], np.array([0, 1]), ("owl",), ids, splits)


def test_what_was_left_out_is_said_in_the_right_number():
    assert str(LeftOut(1, "images", "in no class folder", "a.jpg")) == "1 image (in no class folder): 'a.jpg'"
    assert str(LeftOut(1200, ".mov", "videos", "b.mov")) == "1,200 .mov (videos), for instance 'b.mov'"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("Fruit/Citrus/Lemon", ("Lemon", "Fruit/Citrus")),
        ("Fruit/Lemon", ("Lemon", "Fruit")),
        ("Lemon", ("Lemon", "")),
        ("U+002F /", ("U+002F /", "")),
        ("/odd", ("/odd", "")),
        ("", ("", "")),
    ],
)
def test_a_nested_class_name_has_a_last_part_and_the_parts_above_it(name, parts):
    assert split_class_name(name) == parts
