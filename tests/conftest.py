"""Fixtures that several parts of the suite share."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image
from tests.servers import milvus, postgres

from nearkin import cli
from nearkin.recipe import fingerprint
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer

# Some virtual machines announce AMX and then do not let programs use it: torch's half-precision matrix products die
# there with an illegal instruction. oneDNN reads this when it first runs, which is after collection.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# No test asks a hub for weights, or finds those of the person who runs it.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = str(Path(tempfile.gettempdir()) / "nearkin-tests-without-weights")

# How long an example takes says something of the machine, not of the code.
settings.register_profile("nearkin", deadline=None)
settings.load_profile("nearkin")

KINDS = ("blaue Möwe", "Grüner Specht", "rote Ente", "weiße Taube", "çà et là", "kiwi")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or fills the cache of the person who runs it; tests share one so that Glyphs is drawn once."""
    monkeypatch.setenv("NEARKIN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def nearkin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run the command; returns (exit code, standard output, standard error)."""

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["nearkin", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def write_photos(root: Path, *, kinds: tuple[str, ...] = KINDS, per_kind: int = 8, size: int = 40) -> Path:
    """A folder per kind; a kind is a colour and a stripe direction, an image has noise and a shifted stripe."""
    rng = np.random.default_rng(0)
    for number, kind in enumerate(kinds):
        (root / kind).mkdir(parents=True)
        for index in range(per_kind):
            y, x = np.mgrid[0:size, 0:size]
            phase = (x * np.cos(number) + y * np.sin(number)) / 4 + rng.uniform(0, 6)
            colour = np.array([80 + 25 * number, 200 - 25 * number, 60 + 30 * (number % 3)])
            pixels = colour * (0.6 + 0.4 * np.sin(phase))[..., None] + rng.normal(0, 15, (size, size, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / kind / f"Bild {index} ä.png")
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "own photos")


TINY = {
    "data": {"transform": "mild", "image_size": 32, "workers": 1, "shorter_side": 48},
    "encoder": {"backbone": "small", "dim": 8},
    "training": {"epochs": 1, "max_steps": 1, "batch_size": 8, "device": "cpu"},
    "protocol": {"name": "conventional", "test_share": 0.35},
}


@pytest.fixture(scope="session")
def _trained_once(tmp_path_factory):
    root = tmp_path_factory.mktemp("trained")
    recipe = load_recipe(TINY, [f"data.source={json.dumps(str(write_photos(root / 'own photos')))}"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEARKIN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        run(recipe, RunFolder(root / "run"))
    return root / "run"


@pytest.fixture
def trained(photos, tmp_path, _trained_once):
    """The folder of a run on ``photos``: a copy of one that is trained once, with its own path to the images."""
    folder = RunFolder(shutil.copytree(_trained_once, tmp_path / "run"))
    folder.write_recipe(folder.recipe().with_changes({"data.source": str(photos)}))
    environment = folder.environment()
    data = dataclasses.replace(environment.data, source=str(photos))
    folder.write_environment(dataclasses.replace(environment, data=data))
    return folder.path


HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>document.documentElement.dataset.broken=1</script>",
    "a \"quoted\" & 'other' \\ $name",
)
"""Names of test classes that would do harm where they were not escaped."""


def squares_manifest(root):
    """Eleven classes of five images, the last four for testing, three of those with hostile names."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(11):
        centre = rng.uniform(0, 255, (8, 8, 3))
        name = f"kind {number}" if number < 8 else HOSTILE[number - 8]
        for index in range(5):
            pixels = (centre + rng.normal(0, 40, centre.shape)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / f"{number}-{index}.png")
            split = "train" if number < 7 else "test"
            rows.append({"path": f"{number}-{index}.png", "label": name, "split": split})
    with open(root / "squares.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return root / "squares.csv"


@pytest.fixture(scope="session")
def squares(tmp_path_factory):
    """``folder, train(name, *overrides)``: a folder of runs, and how to add one; a run that is there is kept."""
    root = tmp_path_factory.mktemp("report runs")
    manifest = squares_manifest(root)

    def train(name, *overrides):
        mapping = {
            "data": {"transform": "digits", "image_size": 8, "workers": 1, "cache": "memory"},
            "encoder": {"backbone": "small", "dim": 5},
            "training": {"epochs": 9, "max_steps": 4, "batch_size": 12, "device": "cpu", "evaluate_every_steps": 1},
        }
        folder = RunFolder(root / name)
        if not folder.is_finished:
            recipe = load_recipe(mapping, [f"data.source={json.dumps(str(manifest))}", *overrides])
            run(recipe, folder, Observer())
        return root / name

    return root, train


@pytest.fixture(scope="session")
def four_runs(squares):
    """Two seeds of Proxy-Anchor, VCPA, and the contrastive loss with CCP, all under the conventional protocol."""
    _, train = squares
    ccp = ("objective.name=contrastive", "method.name=ccp", "method.steps_per_problem=2", "protocol.covering=true")
    small = ("method.proxies_per_class=2", "method.pool_size=3", "training.sampler=balanced")
    return [
        train("anchor-0"),
        train("anchor-1", "training.seed=1"),
        train("vcpa", "objective.name=vcpa", "objective.tau=1.0"),
        train("ccp", *ccp, *small),
    ]


@pytest.fixture
def write_run(tmp_path):
    """A finished run below the test's folder that was not trained but written down."""

    def write(name, test, *, seed=0, overrides=(), **scores):
        recipe = load_recipe({"objective": {"name": "proxy_anchor"}}, [f"training.seed={seed}", *overrides])
        folder = RunFolder(tmp_path / name).begin(recipe)
        said = {
            "data": recipe.data.source,
            "protocol": recipe.protocol.name,
            "selection": "best R@1 on the test classes",
            "test_classes": "classes never seen in training",
            "seed": seed,
            "hardware": "one abacus",
            "recipe": fingerprint(recipe),
            "epochs": 2.0,
            "steps": 10,
            "seconds": 4.0,
            "cost": {"step_ms": 100.0, "images_per_second": 50.0, "peak_mib": 12.0},
            "untrained": None,
            "test": test,
            "best": test,
            "last": {name: value - 0.1 for name, value in test.items()},
        }
        folder.write_scores(said | scores)
        return folder.path

    return write


@pytest.fixture(scope="session")
def hostile_names():
    return HOSTILE


@pytest.fixture(scope="session")
def postgres_server():
    with postgres() as server:
        yield server


@pytest.fixture
def pgvector_address(postgres_server):
    return postgres_server.address


@pytest.fixture(scope="session")
def milvus_server():
    with milvus() as server:
        yield server


@pytest.fixture
def milvus_address(milvus_server):
    return milvus_server.address
