from __future__ import annotations

import pytest

from nearkin.data.benchmarks import benchmarks, read_benchmark
from nearkin.errors import DataError

SOP = benchmarks()["sop"]
HEADER = "image_id class_id super_class_id path\n"
TRAIN = ["1 1 1 bicycle_final/111_0.JPG", "2 1 1 bicycle_final/111_1.JPG", "3 2 4 coffee_maker_final/222_0.JPG"]
TEST = ["59552 11319 1 bicycle_final/333_0.JPG", "59553 11319 1 bicycle_final/333_1.JPG"]


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "Stanford_Online_Products"
    for row in TRAIN + TEST:
        file = root / row.split()[3]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (root / "Ebay_train.txt").write_text(HEADER + "\n".join(TRAIN) + "\n")
    (root / "Ebay_test.txt").write_text(HEADER + "\n".join(TEST) + "\n")
    return root


def test_lists_are_the_splits_and_products_the_classes(root):
    table = read_benchmark("sop", root.parent, check_counts=False)
    assert table.class_names == ("1", "2", "11319")
    assert table.labels.tolist() == [0, 0, 1, 2, 2]
    assert table.splits.tolist() == ["train"] * 3 + ["test"] * 2
    assert table.columns["category"].tolist() == ["bicycle", "bicycle", "coffee_maker", "bicycle", "bicycle"]
    assert table.ids[2] == "coffee_maker_final/222_0.JPG"
    assert all(path.is_file() for path in table.images)


def test_counts(root):
    with pytest.raises(DataError, match="train has 3 images of 2 classes, published are 59,551 of 11,318"):
        SOP.read(root)


def test_missing_images_are_counted_and_the_first_ten_listed(root):
    rows = [f"{n} 3 1 fan_final/{n}.JPG" for n in range(4, 16)]
    (root / "Ebay_train.txt").write_text(HEADER + "\n".join(TRAIN + rows) + "\n")
    with pytest.raises(DataError, match=r"12 of the 17 images listed in Ebay_train.txt and Ebay_test.txt ") as caught:
        SOP.read(root, check_counts=False)
    assert str(caught.value).count("fan_final/") == 10
    assert "… and 2 more" in str(caught.value)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "Ebay_train.txt line 1: the header 'image_id class_id super_class_id path' is missing"),
        ("1 1 1 bicycle_final/111_0.JPG\n", "Ebay_train.txt line 1: the header .* is missing"),
        (HEADER + "1 1 bicycle_final/111_0.JPG\n", "Ebay_train.txt line 2: expected 'image_id class_id super"),
    ],
)
def test_malformed_lists(root, text, message):
    (root / "Ebay_train.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        SOP.read(root, check_counts=False)


def test_a_missing_list_is_named(root):
    (root / "Ebay_test.txt").unlink()
    with pytest.raises(DataError, match=r"there is no Ebay_test.txt\nExpected layout[\s\S]*stanford.edu"):
        SOP.read(root)
