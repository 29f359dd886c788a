from __future__ import annotations

import numpy as np
import pytest
import scipy.io

from nearkin.data.benchmarks import benchmarks, read_benchmark
from nearkin.errors import DataError, Notice

CARS = benchmarks()["cars"]
LABELS = (1, 98, 99, 196, 1)


def write_mat(path, labels=LABELS, classes=196, **fields):
    columns = ("relative_im_path", "bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "test")
    annotations = np.empty((1, len(labels)), dtype=[(column, object) for column in columns])
    for row, label in enumerate(labels):
        annotations[0, row] = (f"car_ims/{row + 1:06d}.jpg", 1, 2, 30, 40, label, 0)
    class_names = np.empty((1, classes), dtype=object)
    class_names[0] = [f"Make Model {number} 2012" for number in range(1, classes + 1)]
    scipy.io.savemat(path, {"annotations": annotations, "class_names": class_names} | fields)


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "cars196"
    (root / "car_ims").mkdir(parents=True)
    for row in range(len(LABELS)):
        (root / "car_ims" / f"{row + 1:06d}.jpg").touch()
    write_mat(root / "cars_annos.mat")
    return root


def test_annotations(root):
    table = read_benchmark("cars", root.parent, check_counts=False)
    assert len(table.class_names) == 196
    assert table.labels.tolist() == [0, 97, 98, 195, 0]
    assert table.class_names[97] == "Make Model 98 2012"
    assert table.splits.tolist() == ["train", "train", "test", "test", "train"]
    assert table.ids[0] == "car_ims/000001.jpg"
    assert all(path.is_file() for path in table.images)


def test_one_annotation_alone(root):
    write_mat(root / "cars_annos.mat", labels=(99,))
    table = CARS.read(root, check_counts=False)
    assert (table.labels.tolist(), table.splits.tolist()) == ([98], ["test"])


def test_images_that_were_not_unpacked(root):
    (root / "car_ims").rename(root / "elsewhere")
    with pytest.raises(DataError, match="there is no car_ims\nExpected layout"):
        CARS.read(root)


def test_missing_images(root):
    (root / "car_ims" / "000002.jpg").unlink()
    with pytest.raises(DataError, match=r"1 of the 5 images listed in cars_annos.mat .*:\n  car_ims/000002.jpg"):
        CARS.read(root)


def test_labels_outside_the_classes(root):
    write_mat(root / "cars_annos.mat", labels=(1, 197))
    with pytest.raises(DataError, match=r"cannot read cars_annos.mat as [\s\S]*index out of range"):
        CARS.read(root)


@pytest.mark.parametrize("fields", [{"annotations": np.arange(3)}, {"annotations": "text"}])
def test_a_mat_file_of_something_else(root, fields):
    write_mat(root / "cars_annos.mat", **fields)
    with pytest.raises(DataError, match=r"cannot read cars_annos.mat"):
        CARS.read(root)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.99])
def test_a_truncated_mat_file(root, share):
    content = (root / "cars_annos.mat").read_bytes()
    (root / "cars_annos.mat").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(DataError, match=r"cannot read cars_annos.mat as a MATLAB file[\s\S]*Published at"):
        CARS.read(root)


def test_text_in_place_of_a_mat_file(root):
    (root / "cars_annos.mat").write_text("<html>404 not found</html>" * 20)
    with pytest.raises(DataError, match=r"cannot read cars_annos.mat as a MATLAB file"):
        CARS.read(root)


def class_folders(root, names, *, halves=("",)):
    for half in halves:
        for name in names:
            (root / half / name).mkdir(parents=True)
            (root / half / name / f"{half}0.jpg").touch()


@pytest.mark.parametrize("halves", [("",), ("train", "test")])
def test_class_folders(tmp_path, halves):
    class_folders(tmp_path / "car_data" / "car_data", [f"Make {number}" for number in range(1, 197)], halves=halves)
    table = read_benchmark("cars", tmp_path, check_counts=False)
    assert table.class_names == tuple(f"Make {number}" for number in range(1, 197))
    assert len(table) == 196 * len(halves)
    assert {table.class_names[label] for label in table.split("train").labels} == {f"Make {n}" for n in range(1, 99)}
    assert {table.class_names[label] for label in table.split("test").labels} == {f"Make {n}" for n in range(99, 197)}


def test_neither_annotations_nor_class_folders(tmp_path):
    (tmp_path / "cars" / "car_ims").mkdir(parents=True)
    with pytest.raises(DataError, match=r"there is no cars_annos.mat \(or class folders\)\nExpected layout"):
        read_benchmark("cars", tmp_path)


def test_a_copy_that_lacks_a_few_images_is_read_and_they_are_counted(tmp_path):
    sizes = {"train": 8048, "test": 8122}  # as of a common mirror: 6 and 9 fewer than published
    root = tmp_path / "cars196"
    for split, numbers in (("train", range(98)), ("test", range(98, 196))):
        for number in numbers:
            folder = root / split / f"Model {number:03d}"
            folder.mkdir(parents=True)
            more = sizes[split] - 98 * (sizes[split] // 98)
            for image in range(sizes[split] // 98 + (number % 98 < more)):
                (folder / f"{image}.jpg").touch()
    with pytest.warns(Notice) as said:
        table = CARS.read(root)
    assert len(table) == 16_170
    assert {
        word for warning in said for word in ("6 of the 8,054", "9 of the 8,131") if word in str(warning.message)
    } == {
        "6 of the 8,054",
        "9 of the 8,131",
    }
    for file in list((root / "test" / "Model 100").iterdir())[:40]:
        file.unlink()
    with pytest.raises(DataError, match="8,082"):
        CARS.read(root)
