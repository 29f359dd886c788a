from __future__ import annotations

import os

import pytest
from PIL import Image

from nearkin.data.benchmarks import benchmarks, read_benchmark
from nearkin.errors import DataError

CUB = benchmarks()["cub"]
CLASSES = {
    1: "001.Black_footed_Albatross",
    100: "100.Brown_Pelican",
    101: "101.White_Pelican",
    200: "200.Common_Yellowthroat",
}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Two images each of four classes, of which two train, in the published layout."""
    monkeypatch.setattr("nearkin.data.benchmarks.cub.TRAINING_CLASSES", 2)
    root = tmp_path / "CUB_200_2011"
    images, labels = [], []
    for number, name in CLASSES.items():
        (root / "images" / name).mkdir(parents=True)
        for n in range(2):
            file = f"{name}/{name[4:]}_{n}.{'jpg' if n else 'webp'}"
            Image.new("RGB", (8, 6)).save(root / "images" / file)
            images.append(f"{len(images) + 1} {file}")
            labels.append(f"{len(labels) + 1} {number}")
    (root / "images.txt").write_text("\n".join(images) + "\n")
    (root / "image_class_labels.txt").write_text("\n".join(labels) + "\n")
    (root / "classes.txt").write_text("".join(f"{number} {name}\n" for number, name in CLASSES.items()))
    (root / "train_test_split.txt").write_text("1 0\n")
    return root


def test_the_first_classes_train_and_the_rest_test(root):
    table = CUB.read(root, check_counts=False)
    assert table.class_names == tuple(CLASSES.values())
    assert table.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert table.splits.tolist() == ["train"] * 4 + ["test"] * 4
    assert table.ids[:2] == (
        "001.Black_footed_Albatross/Black_footed_Albatross_0.webp",
        "001.Black_footed_Albatross/Black_footed_Albatross_1.jpg",
    )
    assert all(Image.open(path).size == (8, 6) for path in table.images)


def test_labels_are_joined_by_number_not_by_line(root):
    lines = (root / "image_class_labels.txt").read_text().splitlines()
    (root / "image_class_labels.txt").write_text("\r\n".join(reversed(lines)) + "\r\n")
    assert CUB.read(root, check_counts=False).labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_found_below_the_data_root(root):
    assert len(read_benchmark("cub", root.parent, check_counts=False)) == 8


def test_a_part_of_the_data_set_fails_the_count(root):
    with pytest.raises(DataError, match="train has 4 images of 2 classes, published are 5,864 of 100"):
        CUB.read(root)


@pytest.mark.parametrize("file", ["images.txt", "classes.txt", "image_class_labels.txt"])
def test_a_missing_list_is_named(root, file):
    (root / file).unlink()
    with pytest.raises(DataError, match=rf"there is no {file}\nExpected layout:\n  CUB_200_2011/[\s\S]*caltech.edu"):
        CUB.read(root)


def test_missing_images_are_counted_and_listed(root):
    for n in range(2):
        (root / "images" / CLASSES[101] / f"White_Pelican_{n}.{'jpg' if n else 'webp'}").unlink()
    with pytest.raises(DataError, match=r"2 of the 8 images listed in images.txt .*:\n  101.*0.webp\n  101.*1.jpg\n"):
        CUB.read(root, check_counts=False)


@pytest.mark.parametrize(
    "file, line, message",
    [
        ("images.txt", "9", r"images.txt line 9: expected 'image_id image_name', got '9'"),
        ("images.txt", "9 a/b.jpg", r"1 images in images.txt have no class of classes.txt in .*:\n  9 a/b.jpg"),
        ("image_class_labels.txt", "8 300", r"1 images in images.txt have no class .*:\n  8 200"),
    ],
)
def test_malformed_lines_are_named(root, file, line, message):
    with open(root / file, "a") as lines:
        lines.write(line + "\n")
    with pytest.raises(DataError, match=message):
        CUB.read(root, check_counts=False)


def test_a_list_that_is_not_text(root):
    (root / "images.txt").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(DataError, match=r"cannot read images.txt"):
        CUB.read(root)


@pytest.mark.real_data
def test_the_real_data_set():
    table = read_benchmark("cub", os.environ["NEARKIN_DATA"])
    assert {split: len(table.split(split)) for split in ("train", "test")} == {"train": 5864, "test": 5924}
    assert table.class_names[0] == "001.Black_footed_Albatross"
    assert table.class_names[199] == "200.Common_Yellowthroat"
    # Every image lies in the folder that is named after its class.
    folders = [name.partition("/")[0] for name in table.ids]
    assert folders == [table.class_names[label] for label in table.labels]
    assert set(table.split("train").classes().tolist()) == set(range(100))
    with Image.open(table.images[0]) as image:
        assert min(image.size) > 100
