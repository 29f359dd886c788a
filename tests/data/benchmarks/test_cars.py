from __future__ import annotations

from dataclasses import replace

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
    with pytest.raises(DataError, match=r"cars_annos.mat has classes other than 1 to 196"):
        CARS.read(root)


@pytest.mark.parametrize("fields", [{"annotations": np.arange(3)}, {"annotations": "text"}])
def test_a_mat_file_of_something_else(root, fields):
    write_mat(root / "cars_annos.mat", **fields)
    with pytest.raises(DataError, match=r"cars_annos.mat has no annotations with relative_im_path and class"):
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


@pytest.mark.parametrize(
    ("folder", "lacking"),
    [
        ("", "there is no cars_train, no car_ims and no class folders"),
        ("devkit", "there is no cars_train, no car_ims and no class folders"),
        ("car_ims", "there is no cars_annos.mat"),
        (
            "cars_test",
            "there is no cars_train, no devkit/cars_meta.mat, no devkit/cars_train_annos.mat, no devkit",
        ),
    ],
)
def test_what_a_folder_lacks_goes_by_what_it_has(tmp_path, folder, lacking):
    (tmp_path / "cars" / folder).mkdir(parents=True)
    with pytest.raises(DataError, match=lacking):
        read_benchmark("cars", tmp_path)


HALVES = {"train": (98, 1, 196, 99), "test": (1, 99, 98)}
"""Classes of the annotations of both halves, in neither case in order."""


def write_devkit(folder, *, test_file="cars_test_annos_withlabels.mat", with_classes=True):
    folder.mkdir(parents=True, exist_ok=True)
    class_names = np.empty((1, 196), dtype=object)
    class_names[0] = [f"Make Model {number} 2012" for number in range(1, 197)]
    scipy.io.savemat(folder / "cars_meta.mat", {"class_names": class_names})
    for half, labels in HALVES.items():
        fields = ["bbox_x1", *(["class"] if half == "train" or with_classes else []), "fname"]
        annotations = np.empty((1, len(labels)), dtype=[(field, object) for field in fields])
        for row, label in enumerate(labels):
            values = {"bbox_x1": 1, "class": label, "fname": f"{row + 1:05d}.jpg"}
            annotations[0, row] = tuple(values[field] for field in fields)
        name = "cars_train_annos.mat" if half == "train" else test_file
        scipy.io.savemat(folder / name, {"annotations": annotations})


@pytest.fixture
def halves(tmp_path):
    """The layout in which Cars196 is passed on today."""
    root = tmp_path / "stanford_cars"
    for half, labels in HALVES.items():
        (root / f"cars_{half}").mkdir(parents=True)
        for row in range(len(labels)):
            (root / f"cars_{half}" / f"{row + 1:05d}.jpg").touch()
    write_devkit(root / "devkit")
    return root


IDS = [f"cars_{half}/{row + 1:05d}.jpg" for half, labels in HALVES.items() for row in range(len(labels))]


def test_halves_are_joined_and_divided_by_class_in_the_order_of_the_annotations(halves):
    table = read_benchmark("cars", halves.parent, check_counts=False)
    assert table.ids == tuple(IDS)
    assert table.labels.tolist() == [97, 0, 195, 98, 0, 98, 97]
    assert table.splits.tolist() == ["train", "train", "test", "test", "train", "test", "train"]
    assert [path.relative_to(halves).as_posix() for path in table.images] == IDS


def test_classes_have_the_same_number_and_name_in_both_layouts(halves, root):
    new, old = CARS.read(halves, check_counts=False), CARS.read(root, check_counts=False)
    assert new.class_names == old.class_names
    assert set(new.labels.tolist()) == {label - 1 for label in LABELS} == set(old.labels.tolist())


@pytest.mark.parametrize(
    "change", ["labels beside", "labels in the old file", "nested as on Kaggle", "old annotations"]
)
def test_halves_as_people_have_them(halves, change):
    devkit = halves / "devkit"
    if change == "labels beside":
        (devkit / "cars_test_annos_withlabels.mat").rename(halves / "cars_test_annos_withlabels.mat")
    elif change == "labels in the old file":
        (devkit / "cars_test_annos_withlabels.mat").rename(devkit / "cars_test_annos.mat")
    elif change == "nested":
        (halves / "car_devkit").mkdir()
        devkit.rename(halves / "car_devkit" / "devkit")
        for half in ("cars_train", "cars_test"):
            (halves / half).rename(halves / "inner")
            (halves / half).mkdir()
            (halves / "inner").rename(halves / half / half)
    else:
        write_mat(halves / "cars_annos.mat")  # which lists the files of car_ims/, by other names
    table = CARS.read(halves, check_counts=False)
    assert table.ids == tuple(IDS)
    assert all(path.is_file() for path in table.images)


def test_test_annotations_without_classes_say_which_file_to_bring(halves):
    (halves / "devkit" / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(DataError, match=r"there is no devkit/cars_test_annos_withlabels.mat\n"):
        CARS.read(halves)
    write_devkit(halves / "devkit", test_file="cars_test_annos.mat", with_classes=False)
    with pytest.raises(DataError, match=r"cars_test_annos_withlabels.mat \(nor cars_test_annos.mat, as .* and class"):
        CARS.read(halves)


@pytest.mark.parametrize("layout", ["halves", "car_ims"])
def test_a_few_missing_images_are_counted_said_and_done_without(tmp_path, monkeypatch, layout):
    labels = [1 + row % 196 for row in range(196 * 3)]
    if layout == "halves":
        monkeypatch.setitem(HALVES, "train", labels[:300])
        monkeypatch.setitem(HALVES, "test", labels[300:])
        write_devkit(tmp_path / "devkit")
        files = [f"cars_train/{row + 1:05d}.jpg" for row in range(300)]
        files += [f"cars_test/{row + 1:05d}.jpg" for row in range(288)]
    else:
        write_mat(tmp_path / "cars_annos.mat", labels=labels)
        files = [f"car_ims/{row + 1:06d}.jpg" for row in range(len(labels))]
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    cars = replace(CARS, counts={"train": (294, 98), "test": (294, 98)})
    assert cars.read(tmp_path).ids == tuple(files)
    (tmp_path / files[0]).unlink()
    with pytest.warns(Notice, match="1 of the 294 published train images are missing"):
        table = cars.read(tmp_path)
    assert table.ids == tuple(files[1:])
    assert table.labels.tolist() == [label - 1 for label in labels[1:]]
    for file in files[1:4]:
        (tmp_path / file).unlink()
    with pytest.raises(DataError, match=r"4 of the 588 images listed in .* are missing[\s\S]*00001.jpg"):
        cars.read(tmp_path)


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
