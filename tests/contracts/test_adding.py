"""Adding a part is adding a file: the examples of docs/add_*.md, each put into its package, found and used."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("add_*.md"))


def example(name):
    """The one block of the pages that defines ``name``."""
    (code,) = (code for page in PAGES for code in blocks(page) if name in code)
    return code


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.S | re.M)


def run_the_tests_of(page):
    """The tests that a page shows for its example, which stands in the package now."""
    (code,) = (code for code in blocks(page) if "def test_" in code)
    names: dict[str, object] = {}
    exec(compile(code, page, "exec"), names)
    tests = [function for name, function in names.items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()


@pytest.fixture
def add(tmp_path, monkeypatch):
    """Put an example into a package as a file of its own; afterwards the package is as it was."""
    added = []

    def put(package, file, name, *caches):
        folder = tmp_path / package.replace(".", "-")
        folder.mkdir()
        (folder / f"{file}.py").write_text(example(name))
        module = importlib.import_module(package)
        monkeypatch.setattr(module, "__path__", [*module.__path__, str(folder)])
        added.append((f"{package}.{file}", caches))
        for cache in caches:
            cache.cache_clear()

    yield put
    monkeypatch.undo()
    for module, caches in added:
        sys.modules.pop(module, None)
        for cache in caches:
            cache.cache_clear()


@pytest.fixture
def train(nearkin, photos, tmp_path):
    """Three steps of training, as the command line does it."""

    def run(*changes, data=photos):
        tiny = [f"data.source={json.dumps(str(data))}", "training.max_steps=3", "training.device=cpu", *changes]
        code, out, err = nearkin("train", "own_photos/small", *tiny, "--no-figure", "-o", tmp_path / "run")
        assert code == 0, err
        assert "R@1" in out
        return json.loads((tmp_path / "run" / "scores.json").read_text())

    return run


def test_a_loss(add, nearkin, train):
    from nearkin import losses

    add("nearkin.losses", "hinge", "class Hinge", losses.catalogue)
    assert losses.Hinge is losses.catalogue()["hinge"]
    run_the_tests_of("add_loss.md")
    assert "hinge" in nearkin("list", "losses")[1]
    assert "| `hinge` | `Hinge` | proxy |" in nearkin("list", "losses", "--markdown")[1]
    assert train("objective.name=hinge", "objective.margin=0.1")["objective"] == "hinge"
    rows = json.loads(nearkin("compare", "--data", "glyphs", "--rows", "proxy_anchor,hinge", "--list", "--json")[1])
    assert [row["recipe"]["objective"]["name"] for row in rows] == ["proxy_anchor", "hinge"]


def test_a_method(add, nearkin, train):
    from nearkin.training import methods

    add("nearkin.training.methods", "damped", "class Damped", methods.catalogue)
    assert methods.catalogue()["damped"].__name__ == "Damped"
    run_the_tests_of("add_method.md")
    assert "damped" in nearkin("list", "methods")[1]
    assert "| `damped` | `Damped` | The network learns more slowly" in nearkin("list", "methods", "--markdown")[1]
    assert train("method.name=damped", "method.factor=0.0")["method"] == "damped"
    rows = json.loads(nearkin("compare", "--data", "glyphs", "--rows", "proxy_anchor,damped", "--list", "--json")[1])
    assert [(row["recipe"]["method"]["name"], row["base"]) for row in rows] == [
        ("plain", None),
        ("damped", "proxy_anchor"),
    ]


def test_a_backbone(add, nearkin, train):
    from nearkin.encoders import architectures

    add("nearkin.encoders.architectures", "tiny", "class Tiny", architectures._catalogue)
    assert "tiny" in architectures.backbones()
    assert "tiny" in nearkin("list", "backbones")[1]
    page = nearkin("list", "backbones", "--markdown")[1]
    assert re.search(r"\| `tiny` \| One convolution, for images of any size\. \|.* not measured \| `width=8` \|", page)
    train("encoder.backbone=tiny", "encoder.options={width: 4}")


def test_a_data_set(add, nearkin, train, photos, tmp_path):
    from nearkin.data import benchmarks

    (tmp_path / "root" / "shells").mkdir(parents=True)
    (tmp_path / "root" / "shells" / "photos").symlink_to(photos)
    add("nearkin.data.benchmarks", "shells", 'name="shells"', benchmarks.benchmarks)
    assert benchmarks.benchmarks()["shells"].title == "Shells of the seven seas"
    run_the_tests_of("add_data_set.md")
    listed = json.loads(nearkin("datasets", "--json", "--data-root", tmp_path / "root")[1])
    assert next(each["found"] for each in listed if each["name"] == "shells") == str(tmp_path / "root" / "shells")
    assert "shells" in nearkin("datasets")[1]
    scores = train(f"data.root={json.dumps(str(tmp_path / 'root'))}", data="shells")
    assert scores["data"] == "shells"


def test_a_score(add):
    """What it is to a whole run: ``tests/evaluation/scores/test_catalogue.py``."""
    from nearkin.evaluation import scores

    add("nearkin.evaluation.scores", "all_right", "class AllRight", scores.catalogue)
    run_the_tests_of("add_score.md")


def test_an_engine(add, monkeypatch):
    from nearkin.index import engine

    page = (ROOT / "docs" / "add_engine.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^EngineEntry\(.*\),$", page, flags=re.M)
    kind = eval(line.rstrip(","), vars(engine))
    monkeypatch.setitem(engine.ENGINES, kind.name, kind)
    add("nearkin.index", "plain_engine", "class PlainEngine")
    run_the_tests_of("add_engine.md")
