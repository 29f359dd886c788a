from __future__ import annotations

import pytest
from PIL import Image

from nearkin.data.benchmarks import benchmarks, read_benchmark
from nearkin.errors import DataError

OMNIGLOT = benchmarks()["omniglot"]
CHARACTERS = {
    "images_background/Greek/character01": 2,
    "images_background/Greek/character02": 1,
    "images_background/Korean/character01": 1,
    "images_evaluation/Angelic/character01": 2,
}


def build(root):
    for folder, images in CHARACTERS.items():
        (root / folder).mkdir(parents=True)
        for n in range(images):
            Image.new("1", (105, 105), 1).save(root / folder / f"0001_{n + 1:02d}.png")
    return root


@pytest.mark.parametrize("folder", ["omniglot", "omniglot/python", "Omniglot-Py"])
def test_alphabets_characters_and_splits(tmp_path, folder):
    build(tmp_path / folder)
    table = read_benchmark("omniglot", tmp_path, check_counts=False)
    assert table.class_names == ("Greek/character01", "Greek/character02", "Korean/character01", "Angelic/character01")
    assert table.labels.tolist() == [0, 0, 1, 2, 3, 3]
    assert table.splits.tolist() == ["train"] * 4 + ["test"] * 2
    assert table.columns["alphabet"].tolist() == ["Greek"] * 3 + ["Korean"] + ["Angelic"] * 2
    assert table.ids[0] == "images_background/Greek/character01/0001_01.png"
    assert all(Image.open(path).size == (105, 105) for path in table.images)


def test_counts(tmp_path):
    with pytest.raises(DataError, match="train has 4 images of 3 classes, published are 19,280 of 964"):
        OMNIGLOT.read(build(tmp_path))


def test_a_missing_half_is_named(tmp_path):
    (tmp_path / "images_background").mkdir()
    with pytest.raises(DataError, match=r"there is no images_evaluation\nExpected layout[\s\S]*brendenlake"):
        OMNIGLOT.read(tmp_path)


def test_an_empty_half(tmp_path):
    (build(tmp_path) / "images_evaluation" / "Angelic").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"images_evaluation' holds no images"):
        OMNIGLOT.read(tmp_path)


def test_images_at_the_wrong_depth(tmp_path):
    (build(tmp_path) / "images_background" / "Greek" / "stray.png").touch()
    with pytest.raises(DataError, match=r"'images_background/Greek/stray.png' should lie in images_background/"):
        OMNIGLOT.read(tmp_path)
