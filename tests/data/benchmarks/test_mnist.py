from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

from nearkin.data.benchmarks import benchmarks, read_benchmark
from nearkin.data.benchmarks.mnist import read_idx
from nearkin.errors import DataError

MNIST, FASHION = benchmarks()["mnist"], benchmarks()["fashion_mnist"]
RNG = np.random.default_rng(0)
TRAIN, TEST = (RNG.integers(0, 256, (rows, 28, 28), dtype=np.uint8) for rows in (12, 5))
TRAIN_LABELS, TEST_LABELS = np.arange(12, dtype=np.uint8) % 10, np.array([9, 0, 3, 3, 1], dtype=np.uint8)


def idx(array):
    magic = {3: 2051, 1: 2049}[array.ndim]
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()


def build(root, *, mark="-", compress=False, ending=None):
    root.mkdir(parents=True, exist_ok=True)
    for name, array in {
        f"train-images{mark}idx3-ubyte": TRAIN,
        f"train-labels{mark}idx1-ubyte": TRAIN_LABELS,
        f"t10k-images{mark}idx3-ubyte": TEST,
        f"t10k-labels{mark}idx1-ubyte": TEST_LABELS,
    }.items():
        ending = (".gz" if compress else "") if ending is None else ending
        (root / (name + ending)).write_bytes(gzip.compress(idx(array), mtime=0) if compress else idx(array))
    return root


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"compress": True},
        {"mark": "."},
        {"mark": ".", "compress": True},
        {"ending": ".gz"},
        {"compress": True, "ending": ""},
    ],
)
@pytest.mark.parametrize("folder", ["MNIST", "mnist", "MNIST/raw"])
def test_every_spelling_of_the_files(tmp_path, layout, folder):
    build(tmp_path / folder, **layout)
    table = read_benchmark("mnist", tmp_path, check_counts=False)
    assert table.images.dtype == np.uint8
    assert np.array_equal(table.split("train").images, TRAIN)
    assert np.array_equal(table.split("test").images, TEST)
    assert np.array_equal(table.split("train").labels, TRAIN_LABELS)
    assert np.array_equal(table.split("test").labels, TEST_LABELS)
    assert table.class_names == tuple("0123456789")
    assert (table.ids[0], table.ids[12], len(set(table.ids))) == ("train/00000", "test/00000", 17)


def test_images_can_be_changed_without_touching_the_file(tmp_path):
    assert MNIST.read(build(tmp_path), check_counts=False).images.flags.writeable


def test_fashion_has_names_and_is_not_taken_for_digits(tmp_path):
    build(tmp_path / "fashion-mnist", compress=True)
    table = read_benchmark("fashion_mnist", tmp_path, check_counts=False)
    assert (table.class_names[0], table.class_names[9]) == ("T-shirt/top", "Ankle boot")
    assert MNIST.find(tmp_path) is None


def test_counts(tmp_path):
    with pytest.raises(DataError, match="train has 12 images of 10 classes, published are 60,000 of 10"):
        FASHION.read(build(tmp_path))


def test_missing_files_are_named(tmp_path):
    (build(tmp_path) / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"there is no t10k-labels-idx1-ubyte \(or [^\n]*\nExpected layout"):
        MNIST.read(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        idx(TRAIN_LABELS),
        b"\x89PNG\r\n",
        idx(TRAIN)[:10],
        idx(TRAIN)[:-1],
        idx(TRAIN) + b"x",
        gzip.compress(idx(TRAIN), mtime=0)[:-20],
        gzip.compress(idx(TRAIN), mtime=0)[:30] + b"\0" * 50,
        struct.pack(">4I", 2051, 2**32 - 1, 2**32 - 1, 2**32 - 1),
    ],
)
def test_damaged_images(tmp_path, content):
    (build(tmp_path) / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(DataError, match="cannot read train-images-idx3-ubyte"):
        MNIST.read(tmp_path, check_counts=False)


def test_images_and_labels_that_do_not_match(tmp_path):
    (build(tmp_path) / "train-labels-idx1-ubyte").write_bytes(idx(TEST_LABELS))
    with pytest.raises(DataError, match="images-idx3-ubyte has 12 images, but train-labels-idx1-ubyte has 5 labels"):
        MNIST.read(tmp_path)


def test_labels_above_nine(tmp_path):
    (build(tmp_path) / "t10k-labels-idx1-ubyte").write_bytes(idx(np.full(5, 10, dtype=np.uint8)))
    with pytest.raises(DataError, match="labels outside its 10 classes"):
        MNIST.read(tmp_path)


def test_read_idx_of_three_dimensions(tmp_path):
    (tmp_path / "file").write_bytes(idx(TRAIN))
    assert np.array_equal(read_idx(tmp_path / "file", dimensions=3), TRAIN)
