"""``scores.json`` in types: files of other versions are read, and what is written has the keys it always had."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.runs.scores import Conditions, Cost, Evaluated, FinalOf, Scores
from nearkin.training.recipes import load_recipe
from nearkin.training.state import NullObserver

BEFORE = json.loads((Path(__file__).parents[1] / "assets" / "records" / "scores.json").read_text())
"""Of a final model, with the scores of its run; written before scores had types."""


@pytest.mark.parametrize("record", [BEFORE, BEFORE["final_of"]["scores"]], ids=["final model", "run"])
def test_a_file_is_written_as_it_was_read(record):
    scores = Scores.from_record(record)
    assert scores.as_record() == dict(scores) == record
    assert list(scores) == list(record), "in its order"
    assert json.loads(json.dumps(dict(scores))) == record
    assert Scores.from_record(scores) == scores


def test_parts_have_types():
    scores = Scores.from_record(BEFORE)
    assert scores.conditions.protocol == "everything"
    assert scores.cost == Cost(step_ms=5.665, images_per_second=1412.1, peak_mib=368.8)
    assert scores.test is None
    final_of = scores.final_of
    assert (final_of.run, final_of.scores.conditions.seed) == ("runs/photos", 0)
    assert final_of.scores.test["R@1"] == BEFORE["final_of"]["scores"]["test"]["R@1"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        scores.steps = 3


def test_a_run_writes_the_keys_of_before(photos, tmp_path):
    changes = ["encoder.backbone=small", "training.max_steps=1", "training.device=cpu", "data.image_size=8"]
    recipe = load_recipe({}, [*changes, f"data.source={json.dumps(str(photos))}"])
    scores = run(recipe, RunFolder(tmp_path), NullObserver())
    written = json.loads((tmp_path / "scores.json").read_text())
    assert list(written) == list(BEFORE["final_of"]["scores"])
    assert list(written["cost"]) == list(BEFORE["cost"])
    assert RunFolder(tmp_path).scores() == scores


def test_what_came_rarely_is_only_there_when_it_is():
    scores = Scores(Conditions(data="photos"), lost_images={"train": 2})
    assert scores["lost_images"] == {"train": 2}
    assert "final_of" not in scores
    whole = dataclasses.replace(scores, lost_images={}, final_of=FinalOf("runs/a", "a note", scores))
    assert "lost_images" not in whole
    assert Scores.from_record(json.loads(json.dumps(whole.as_record()))) == whole


def test_files_of_other_versions_are_read():
    early = Scores.from_record({"data": "photos", "seed": 3, "test": {"R@1": 0.5}, "best": None, "cost": None})
    assert (early.conditions.data, early.conditions.seed, early.conditions.method) == ("photos", 3, "plain")
    assert (early.cost, early.chosen, early.last) == (Cost(), {}, {})
    later = json.loads(json.dumps(BEFORE)) | {"carbon": {"grams": 3}}
    later["cost"] |= {"watts": 300}
    later["final_of"] |= {"since": "tomorrow"}
    assert Scores.from_record(later) == Scores.from_record(BEFORE)


@pytest.mark.parametrize(
    ("protocol", "selection", "chosen_on_test"),
    [
        ("conventional", "best R@1 on the test classes", True),
        ("conventional", "last epoch", False),
        ("validation", "best MAP@R on the validation classes", False),
    ],
)
def test_whether_the_epoch_was_chosen_on_the_test_classes(protocol, selection, chosen_on_test):
    assert Scores(Conditions(protocol=protocol, selection=selection)).chosen_on_test is chosen_on_test


def test_an_evaluation_is_of_a_run_or_of_a_backbone():
    shared = {"data": "photos", "images": 8, "classes": 2, "hardware": "CPU", "scores": {"R@1": 0.5}}
    of_run = {"run": "runs/a", "checkpoint": "best", "trained_on": None, "note": None}
    assert dict(Evaluated(**shared, run="runs/a", checkpoint="best")) == of_run | shared
    of_backbone = {"backbone": "small", "weights": "its own"}
    assert dict(Evaluated(**shared, **of_backbone)) == of_backbone | shared


def test_the_last_epoch_stays_the_last_epoch_with_mirror_images():
    for selection, chosen in (("last epoch; test crops of 288 pixels", False), ("best R@1 on the test classes", True)):
        record = {"protocol": "conventional", "selection": selection}
        assert Scores.from_record(record).chosen_on_test == chosen
