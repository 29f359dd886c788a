"""Runs that tests of tables and of the report share: trained for a few steps on small coloured squares."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from PIL import Image

from nearkin.recipe import Recipe
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.state import Silent

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
            recipe = Recipe.from_mapping(mapping, [f"data.source={json.dumps(str(manifest))}", *overrides])
            run(recipe, folder, Silent())
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
        recipe = Recipe.from_mapping({"objective": {"name": "proxy_anchor"}}, [f"training.seed={seed}", *overrides])
        folder = RunFolder(tmp_path / name).begin(recipe)
        said = {
            "data": recipe.data.source,
            "protocol": recipe.protocol.name,
            "selection": "best R@1 on the test classes",
            "test_classes": "classes never seen in training",
            "seed": seed,
            "hardware": "one abacus",
            "recipe": recipe.fingerprint(),
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
