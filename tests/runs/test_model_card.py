from __future__ import annotations

import dataclasses

import pytest

from nearkin.encoders.architectures import default_weights
from nearkin.runs.folder import DataRecord, Environment, RunFolder
from nearkin.runs.model_card import model_card
from nearkin.runs.scores import Conditions, FinalOf, Scores
from nearkin.training.recipe_check import load_recipe

HELD = Conditions(
    data="birds", objective="vcpa", protocol="validation", selection="best MAP@R", seed=3, hardware="abacus"
)
BEHIND = Scores(HELD, untrained={"R@1": 0.25}, test={"R@1": 0.5, "MAP@R": 0.125, "seconds": 9.0})
SCORES = Scores(HELD, epochs=2.5, final_of=FinalOf("runs/birds", "These scores are of runs/birds.", BEHIND))
DATA = DataRecord(training_images=1200, training_classes=30)
ENVIRONMENT = Environment(started="2026-01-02T03:04:05", packages={"nearkin": "0.9"}, data=DATA)


@pytest.fixture
def card(tmp_path):
    def write(scores=SCORES, environment=ENVIRONMENT, **encoder):
        recipe = load_recipe({"objective": {"name": "vcpa"}, "encoder": encoder})
        return model_card(RunFolder(tmp_path / "final"), recipe, scores, environment)

    return write


def test_it_says_what_it_was_trained_on_with_what_and_how_to_use_it(card, tmp_path):
    text = card(dim=64)
    assert text.startswith("# birds: vcpa, trained on every class\n")
    assert "64 numbers per image, to be compared by cosine similarity. Written by nearkin 0.9 on 2026-01-02." in text
    assert "`birds`: 1,200 images of 30 classes trained, every class.\n" in text
    assert "2.5 epochs of a schedule of 20, seed 3, abacus" in text
    assert ", 1 epoch of a schedule of 20" in card(dataclasses.replace(SCORES, epochs=1.0))
    assert f"nearkin embed {tmp_path / 'final'} FOLDER" in text
    parts = [line for line in text.splitlines() if line.startswith("## ")]
    assert parts == ["## Data", "## Score", "## Recipe", "## Use", "## Licence"]


def test_the_score_is_that_of_the_run_behind_it_beside_the_untrained_one(card):
    text = card()
    assert "These scores are of runs/birds." in text
    assert "| score (%) | untrained backbone | `runs/birds` |" in text
    assert "| R@1 | 25.0 | 50.0 |\n| MAP@R | – | 12.5 |\n" in text
    assert "seconds" not in text
    assert "Validation protocol, best MAP@R, seed 3." in text
    without = FinalOf("runs/birds", "Nothing is known of it.", Scores(HELD))
    text = card(dataclasses.replace(SCORES, final_of=without))
    assert "Nothing is known of it." in text
    assert "| score" not in text


def test_distance_and_unreadable_images_are_named(card):
    data = dataclasses.replace(DATA, unreadable=["a.jpg: empty file"])
    text = card(environment=dataclasses.replace(ENVIRONMENT, data=data), normalisation="ball", dim=None)
    assert "all the backbone's numbers per image, to be compared by Euclidean distance" in text
    assert "trained, every class. 1 image could not be read." in text


@pytest.mark.parametrize("name", ["efficientnet_lite0", "vit_tiny"])
def test_the_licence_of_the_weights_at_the_start_is_named_where_it_is_known(card, name):
    known = card(backbone=name, weights=default_weights(name)).splitlines()[-1]
    assert "nearkin's own licence (Apache-2.0) covers the code alone. Those of " in known
    assert known.endswith(f"{name} ({default_weights(name)}) are under Apache-2.0.")
    for other in ({"backbone": name, "weights": "a.pth"}, {"backbone": "small", "weights": "none"}):
        assert card(**other).splitlines()[-1].endswith("covers the code alone.")
