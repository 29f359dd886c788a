from __future__ import annotations

from pathlib import Path

import pytest

from nearkin.data.benchmarks.benchmark import Benchmark, needs
from nearkin.data.table import ImageTable
from nearkin.errors import DataError


def read_toy(root):
    names = (root / "list.txt").read_text().split()
    return ImageTable.build(
        "toy",
        [root / n for n in names],
        [n[0] for n in names],
        splits=["train" if n[0] < "c" else "test" for n in names],
        ids=names,
    )


TOY = Benchmark(
    name="toy",
    title="Toy Set",
    home="https://example.org/toy",
    layout="\nToySet/\n  list.txt\n",
    counts={"train": (3, 2), "test": (2, 1)},
    reader=read_toy,
    folders=("ToySet", "toy"),
    inner_folders=("raw",),
    missing=needs("list.txt"),
)


def put(folder, text="a1 a2 b1 c1 c2"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "list.txt").write_text(text)
    return folder


def test_the_published_counts_pass(tmp_path):
    assert len(TOY.read(put(tmp_path))) == 5


@pytest.mark.parametrize(
    "text, message",
    [
        ("a1 b1 c1 c2", "train has 2 images of 2 classes, published are 3 of 2"),
        ("a1 a2 a3 c1 c2", "train has 3 images of 1 classes, published are 3 of 2"),
        ("a1 a2 b1", "test has 0 images of 0 classes, published are 2 of 1"),
    ],
)
def test_other_counts_are_an_error_unless_told_otherwise(tmp_path, text, message):
    put(tmp_path, text)
    with pytest.raises(DataError, match=message) as caught:
        TOY.read(tmp_path)
    assert "Toy Set in" in str(caught.value)
    assert "Expected layout:\n  ToySet/\n    list.txt" in str(caught.value)
    assert "Published at https://example.org/toy" in str(caught.value)
    assert len(TOY.read(tmp_path, check_counts=False)) == len(text.split())


def test_missing_key_files_are_named_with_layout_and_home(tmp_path):
    with pytest.raises(DataError, match=r"there is no list.txt\nExpected layout:\n  ToySet/[\s\S]*example.org/toy"):
        TOY.read(tmp_path)


@pytest.mark.parametrize("place", ["ToySet", "toyset", "TOY", "toy/ToySet", "toy/raw", "ToySet/toy"])
def test_found_under_its_names_in_any_case_and_nested(tmp_path, place):
    put(tmp_path / place)
    found = TOY.find(tmp_path)
    assert found is not None
    assert (found / "list.txt").is_file()


def test_found_when_the_data_root_is_the_benchmark(tmp_path):
    assert TOY.find(put(tmp_path / "ToySet")) == tmp_path / "ToySet"


def test_a_complete_folder_is_preferred_to_an_incomplete_one(tmp_path):
    (tmp_path / "ToySet").mkdir()
    assert TOY.find(tmp_path) == tmp_path / "ToySet"
    put(tmp_path / "toy")
    assert TOY.find(tmp_path) == tmp_path / "toy"


@pytest.mark.parametrize("data_root", ["", "other", "toy"])
def test_not_found(tmp_path, data_root):
    put(tmp_path / "ToySet2")
    assert TOY.find(tmp_path / data_root) is None


def test_needs_accepts_alternatives(tmp_path):
    (tmp_path / "b").touch()
    assert needs("x", ("a", "b"), ("c", "d", "e"))(tmp_path) == ["x", "c (or d, e)"]


def test_an_embedded_benchmark_has_no_folders_and_needs_nothing():
    table = ImageTable.build("made", [Path("a")], ["a"], splits=["train"])
    made = Benchmark(name="made", title="Made", home="", layout="", counts={"train": (1, 1)}, reader=lambda root: table)
    assert made.embedded
    assert made.find(Path(".")) is None
    assert made.read(Path()) is table
