"""``nearkin list``, ``nearkin datasets`` and ``nearkin cache``."""

from __future__ import annotations

import json
import zipfile

import pytest

from nearkin.data.cache import open_images
from nearkin.data.folder import read_folder


@pytest.mark.parametrize("name", ["losses", "methods", "backbones", "scores", "plots", "recipes", "keys"])
def test_every_list_is_a_table_json_and_a_page(nearkin, name):
    outputs = [nearkin("list", name, *option) for option in ((), ("--json",), ("--markdown",))]
    assert [code for code, _, _ in outputs] == [0, 0, 0]
    table, records, page = (out for _, out, _ in outputs)
    for record in json.loads(records):
        assert record["name"] in page
    assert page.startswith("# ")
    assert json.loads(records)[0]["name"] in table


@pytest.mark.parametrize("name", ["losses", "methods", "backbones", "scores", "plots", "recipes", "keys", "datasets"])
@pytest.mark.parametrize("columns", ["80", None])
def test_a_list_fits_80_columns_without_a_broken_name(nearkin, monkeypatch, name, columns):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    command = ["datasets"] if name == "datasets" else ["list", name]
    _, out, _ = nearkin(*command)
    assert max(map(len, out.splitlines())) <= 80
    listed = {line.split()[0] for line in out.splitlines() if line and not line.startswith(" ")}
    assert {record["name"] for record in json.loads(nearkin(*command, "--json")[1])} <= listed


def test_data_sets_are_looked_for_below_the_data_root(nearkin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEARKIN_DATA", raising=False)
    code, out, err = nearkin("datasets")
    assert (code, err) == (0, "")
    assert "NEARKIN_DATA" in out
    assert "nearkin datasets --download cub" in " ".join(out.split())
    (tmp_path / "CUB_200_2011").mkdir()
    found = [
        next(
            row["here"]
            for row in json.loads(nearkin("datasets", "--data-root", root, "--json")[1])
            if row["name"] == "cub"
        )
        for root in (tmp_path, tmp_path / "CUB_200_2011" / "nothing")
    ]
    assert found[0].startswith(f"{tmp_path / 'CUB_200_2011'}, but there is no classes.txt")
    assert found[1] is None


def test_an_archive_is_unpacked_into_the_folder_here(nearkin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEARKIN_DATA", raising=False)
    with zipfile.ZipFile("img.zip", "w") as packed:
        packed.writestr("img/WOMEN/Tees/id_1/1.jpg", b"")
    code, out, err = nearkin("datasets", "--unpack", "img.zip", "--json")
    assert (code, err) == (0, "")
    (line,) = json.loads(out)
    assert (
        "in data/In-shop Clothes Retrieval Benchmark: not whole yet: there is no Eval/list_eval_partition.txt" in line
    )
    (listed,) = [row for row in json.loads(nearkin("datasets", "--json")[1]) if row["name"] == "inshop"]
    assert (listed["found"], listed["problem"]) == (
        "data/In-shop Clothes Retrieval Benchmark",
        line.partition("yet: ")[2],
    )
    rows = "1\nimage_name item_id evaluation_status\nimg/WOMEN/Tees/id_1/1.jpg id_1 train\n"
    (tmp_path / "list_eval_partition.txt").write_text(rows)
    code, _, err = nearkin("datasets", "--unpack", "list_eval_partition.txt")
    assert code == 3
    assert "train has 1 images of 1 classes, published are 25,882 of 3,997" in err
    code, out, err = nearkin("datasets", "--download", "inshop")
    assert (code, out) == (2, "")
    assert "'inshop' cannot be downloaded: bring img.zip" in err


@pytest.mark.parametrize(
    "command",
    [
        ["train", "cub/proxy_anchor"],
        ["train", "own_photos/small", "data.source=cub"],
        ["compare", "--data", "cub"],
        ["evaluate", "run", "--data", "cub"],
    ],
)
def test_commands_that_lack_a_benchmark_name_the_one_that_brings_it(nearkin, trained, monkeypatch, command):
    monkeypatch.chdir(trained.parent)
    monkeypatch.setenv("NEARKIN_DATA", str(trained.parent))
    code, _, err = nearkin(*command)
    assert code == 3
    assert "nearkin datasets --download cub" in err


def test_a_list_that_there_is_not_is_named(nearkin):
    code, out, err = nearkin("list", "loses")
    assert (code, out) == (2, "")
    assert "loses" in err


@pytest.fixture
def cache(tmp_path, photos, monkeypatch):
    root = tmp_path / "cache"
    monkeypatch.setenv("NEARKIN_CACHE", str(root))
    open_images(read_folder(photos), cache_dir=root / "decoded", shorter_side=32)
    return root


def test_it_says_where_the_cache_is_and_what_it_holds(nearkin, cache):
    code, out, err = nearkin("cache")
    assert code == 0, err
    assert f"{cache}: 0.2 MB" in out.replace("\n", "")
    found = json.loads(nearkin("cache", "--json")[1])
    assert (found["folder"], found["cleared"]) == (str(cache), False)
    assert found["bytes"] >= 48 * 32 * 32 * 3


def test_clearing_asks_or_is_told_yes(nearkin, cache, monkeypatch):
    code, _, err = nearkin("cache", "--clear")
    assert code == 2, "nobody to ask"
    assert "--yes" in err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: (_ for _ in ()).throw(SystemExit(1)))
    assert nearkin("cache", "--clear")[0] == 1
    assert list(cache.rglob("*.safetensors")), "a no is a no"
    code, out, err = nearkin("cache", "--clear", "--yes")
    assert code == 0, err
    assert "Cleared: 0.2 MB" in out
    assert not list(cache.rglob("*.safetensors"))
    assert "is empty" in nearkin("cache")[1]
    assert "is empty" in nearkin("cache", "--clear")[1]
