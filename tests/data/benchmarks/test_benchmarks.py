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
}


def test_published_counts():
    assert {name: dict(benchmarks()[name].counts) for name in PUBLISHED} == PUBLISHED


def test_the_catalogue_holds_what_the_files_hold():
    declared = []
    for file in Path(package.__file__).parent.glob("[a-z]*.py"):
        if re.search(r"^BENCHMARKS\b", file.read_text(encoding="utf-8"), flags=re.MULTILINE):
            declared += importlib.import_module(f"{package.__name__}.{file.stem}").BENCHMARKS
    assert len(declared) >= len(PUBLISHED)
    assert sorted(benchmark.name for benchmark in declared) == sorted(benchmarks())


def test_benchmarks_say_where_they_come_from_and_share_no_folder_name():
    for name, benchmark in benchmarks().items():
        assert benchmark.name == name
        assert benchmark.embedded or (benchmark.home.startswith("http") and benchmark.layout.strip())
    names = [folder for b in benchmarks().values() for folder in {folder.casefold() for folder in b.folders}]
    assert len(names) == len(set(names))


def test_unknown_names_get_a_suggestion(tmp_path):
    with pytest.raises(RecipeError, match="unknown benchmark 'inshopp'; did you mean 'inshop'"):
        read_benchmark("inshopp", tmp_path)


def test_a_data_root_is_needed_for_files():
    with pytest.raises(DataError, match=r"--data-root or NEARKIN_DATA\nExpected layout"):
        read_benchmark("cub", None)


def test_a_data_root_that_is_no_folder(tmp_path):
    with pytest.raises(DataError, match="was not found below"):
        read_benchmark("cub", tmp_path / "none")


def test_nearly_the_right_folder_is_named(tmp_path):
    for folder in ("data sets/CUB_200_2001", "data sets/birds"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "data sets/CUB_200_2011.tgz").touch()
    with pytest.raises(DataError, match=r"; did you mean '.*/data sets'\?\n"):
        read_benchmark("cub", tmp_path / "data-sets")
    with pytest.raises(DataError, match=r"\); did you mean '[^']*/CUB_200_2001' or '[^']*/CUB_200_2011.tgz'\?\n"):
        read_benchmark("cub", tmp_path / "data sets")
    with pytest.raises(DataError, match=r"looked for [^;]*\)\n"):
        read_benchmark("sop", tmp_path / "data sets")


def test_messages_say_how_to_get_it(tmp_path):
    with pytest.raises(DataError, match="\nTo get it: nearkin datasets --download cub"):
        read_benchmark("cub", tmp_path)
    with pytest.raises(DataError, match=r"\nTo get it: bring .*cars_train.tgz.* and: nearkin datasets --unpack FILE"):
        read_benchmark("cars", tmp_path)


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
    (tmp_path / "inshop" / "img").mkdir(parents=True)
    (tmp_path / "sop" / "bicycle_final").mkdir(parents=True)
    for file in ("Ebay_train.txt", "Ebay_test.txt"):
        (tmp_path / "sop" / file).touch()
    folders = {name: folder for name, each in benchmarks().items() if (folder := each.find(tmp_path))}
    assert folders == {"sop": tmp_path / "sop", "inshop": tmp_path / "inshop"}
    assert benchmarks()["sop"].problem(folders["sop"]) is None
    assert "list_eval_partition.txt" in (benchmarks()["inshop"].problem(folders["inshop"]) or "")


def test_nothing_is_found_where_nothing_is():
    assert not any(benchmark.find("no/such/folder") for benchmark in benchmarks().values())
