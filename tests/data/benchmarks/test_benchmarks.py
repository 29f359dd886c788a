from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import nearkin.data.benchmarks as package
from nearkin.data.benchmarks import benchmarks, read_benchmark
from nearkin.errors import DataError, RecipeError

# Images per split and classes per split, as the papers that introduced the protocols print them.
PUBLISHED = {
    "cub": {"train": (5864, 100), "test": (5924, 100)},
    "cars": {"train": (8054, 98), "test": (8131, 98)},
    "sop": {"train": (59551, 11318), "test": (60502, 11316)},
    "inshop": {"train": (25882, 3997), "query": (14218, 3985), "gallery": (12612, 3985)},
    "mnist": {"train": (60000, 10), "test": (10000, 10)},
    "fashion_mnist": {"train": (60000, 10), "test": (10000, 10)},
    "omniglot": {"train": (19280, 964), "test": (13180, 659)},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name):
    assert dict(benchmarks()[name].counts) == PUBLISHED[name]


def test_the_catalogue_holds_what_the_files_hold():
    declared = []
    for file in Path(package.__file__).parent.glob("[a-z]*.py"):
        if re.search(r"^BENCHMARKS\b", file.read_text(encoding="utf-8"), flags=re.MULTILINE):
            declared += importlib.import_module(f"{package.__name__}.{file.stem}").BENCHMARKS
    assert len(declared) >= len(PUBLISHED)
    assert sorted(benchmark.name for benchmark in declared) == sorted(benchmarks())


@pytest.mark.parametrize("name", sorted(benchmarks()))
def test_every_benchmark_says_what_it_is_and_where_it_comes_from(name):
    benchmark = benchmarks()[name]
    assert benchmark.name == name
    assert benchmark.title
    assert benchmark.embedded or (benchmark.home.startswith("http") and benchmark.layout.strip())


def test_no_folder_name_belongs_to_two_benchmarks():
    names = [folder for b in benchmarks().values() for folder in {folder.casefold() for folder in b.folders}]
    assert len(names) == len(set(names))


def test_unknown_names_get_a_suggestion(tmp_path):
    with pytest.raises(RecipeError, match="unknown benchmark 'omniglott'; did you mean 'omniglot'"):
        read_benchmark("omniglott", tmp_path)


def test_a_data_root_is_needed_for_files():
    with pytest.raises(DataError, match=r"--data-root or NEARKIN_DATA\nExpected layout"):
        read_benchmark("cub", None)


def test_a_data_root_that_is_no_folder(tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        read_benchmark("cub", tmp_path / "none")


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_benchmark_that_is_not_there_says_what_to_get(tmp_path, name):
    with pytest.raises(DataError) as caught:
        read_benchmark(name, tmp_path)
    benchmark, message = benchmarks()[name], str(caught.value)
    assert f"{benchmark.title} was not found below" in message
    assert benchmark.folders[0] in message
    assert benchmark.home in message


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_empty_folder_of_the_right_name_says_which_files_are_missing(tmp_path, name):
    benchmark = benchmarks()[name]
    (tmp_path / benchmark.folders[0]).mkdir()
    with pytest.raises(DataError, match="there is no ") as caught:
        read_benchmark(name, tmp_path)
    assert "Expected layout:" in str(caught.value)
    assert benchmark.home in str(caught.value)


def test_complete_incomplete_and_absent_are_told_apart(tmp_path):
    (tmp_path / "omniglot" / "images_background").mkdir(parents=True)
    (tmp_path / "sop" / "bicycle_final").mkdir(parents=True)
    for file in ("Ebay_train.txt", "Ebay_test.txt"):
        (tmp_path / "sop" / file).touch()
    found = {name: folder for name, each in benchmarks().items() if (folder := each.find(tmp_path))}
    assert found == {"sop": tmp_path / "sop", "omniglot": tmp_path / "omniglot"}
    assert benchmarks()["sop"].problem(found["sop"]) is None
    assert benchmarks()["omniglot"].problem(found["omniglot"]) == "there is no images_evaluation"


def test_nothing_is_found_where_nothing_is():
    assert not any(benchmark.find("no/such/folder") for benchmark in benchmarks().values())
