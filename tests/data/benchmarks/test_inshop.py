from __future__ import annotations

import pytest

from nearkin.data.benchmarks import benchmarks, read_benchmark
from nearkin.errors import DataError

INSHOP = benchmarks()["inshop"]
ROWS = [
    ("img/WOMEN/Dresses/id_00000002/02_1_front.jpg", "id_00000002", "train"),
    ("img/WOMEN/Dresses/id_00000002/02_2_side.jpg", "id_00000002", "train"),
    ("img/MEN/Denim/id_00000080/01_1_front.jpg", "id_00000080", "query"),
    ("img/MEN/Denim/id_00000080/01_2_side.jpg", "id_00000080", "gallery"),
]


def partition(rows):
    lines = [str(len(rows)), "image_name item_id evaluation_status"]
    return "\n".join(lines + ["   ".join(row) for row in rows]) + "\n"


def build(root, images="img", eval_folder="Eval"):
    for name, _, _ in ROWS:
        file = root / images / name.removeprefix("img/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (root / eval_folder).mkdir(exist_ok=True)
    (root / eval_folder / "list_eval_partition.txt").write_text(partition(ROWS))
    return root


@pytest.mark.parametrize("images", ["img", "Img/img", "img_highres", "Img/img_highres", "Img"])
@pytest.mark.parametrize("eval_folder", ["Eval", "."])
def test_splits_items_and_categories(tmp_path, images, eval_folder):
    build(tmp_path / "inshop", images, eval_folder)
    table = read_benchmark("inshop", tmp_path, check_counts=False)
    assert table.class_names == ("id_00000002", "id_00000080")
    assert table.labels.tolist() == [0, 0, 1, 1]
    assert table.splits.tolist() == ["train", "train", "query", "gallery"]
    assert table.columns["category"].tolist() == ["WOMEN/Dresses"] * 2 + ["MEN/Denim"] * 2
    assert table.ids[0] == "WOMEN/Dresses/id_00000002/02_1_front.jpg"
    assert all(path.is_file() for path in table.images)


def test_counts(tmp_path):
    with pytest.raises(DataError, match="train has 2 images of 1 classes, published are 25,882 of 3,997"):
        INSHOP.read(build(tmp_path))


@pytest.mark.parametrize(
    "text, message",
    [
        ("", r"line 2: the header 'image_name item_id evaluation_status' is missing"),
        ("4\n" + "   ".join(ROWS[0]), r"line 2: the header"),
        (partition([*ROWS, ("img/a.jpg", "id_1")]), r"line 7: expected 'image_name item_id .*', got 'img/a.jpg"),
        (partition([*ROWS, (ROWS[0][0], "id_1", "val")]), r"'inshop' has unknown splits \['val'\]"),
        (partition([*ROWS, ("img/MEN/a.jpg", "id_1", "train")]), r"1 of the 5 images .*\n  MEN/a.jpg"),
    ],
)
def test_malformed_lists(tmp_path, text, message):
    build(tmp_path)
    (tmp_path / "Eval" / "list_eval_partition.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        INSHOP.read(tmp_path, check_counts=False)


def test_images_that_were_not_unpacked(tmp_path):
    build(tmp_path)
    (tmp_path / "img" / "WOMEN").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"there is no folder img/WOMEN \(nor Img/img/WOMEN"):
        INSHOP.read(tmp_path)


def test_a_missing_list_is_named(tmp_path):
    (tmp_path / "img").mkdir()
    with pytest.raises(DataError, match=r"there is no Eval/list_eval_partition.txt \(or [\s\S]*mmlab"):
        INSHOP.read(tmp_path)
