"""What decides a run is one notion: for its hash, for its folder and for whether it may go on."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest
from tests.rows import Rows

from nearkin.disk import sole_writer_of
from nearkin.errors import BusyError, RecipeError
from nearkin.recipe import INDIFFERENT, Recipe, fingerprint
from nearkin.runs.folder import default_folder
from nearkin.studies.compare import compare
from nearkin.studies.study import Row
from nearkin.training.recipe_check import load_recipe

OTHERWISE = {
    "training.device": "cpu",
    "training.checkpoint_minutes": 1.0,
    "training.track": ["mlflow"],
    "training.micro_batch": 200,
    "training.cuda_graphs": "never",
    "data.root": "/elsewhere",
    "data.workers": 3,
    "data.cache": "memory",
}

QUICK = [
    "encoder.backbone=small",
    "encoder.weights=null",
    "encoder.dim=4",
    "data.image_size=16",
    "training.max_steps=2",
]


def changed(**options):
    return load_recipe({}, [f"{key}={json.dumps(value)}" for key, value in options.items()])


@pytest.mark.parametrize("key", INDIFFERENT)
def test_what_decides_nothing_changes_neither_hash_nor_folder(key):
    other = changed(**{key: OTHERWISE[key]})
    assert other != Recipe()
    assert fingerprint(other) == fingerprint(Recipe())
    assert default_folder(other) == default_folder(Recipe())
    again = compare(changes=[f"{key}={json.dumps(OTHERWISE[key])}"], train=False)
    assert again.folder == compare(train=False).folder


@pytest.mark.parametrize(("key", "value"), [("training.seed", 1), ("data.source", "cub"), ("encoder.dim", 7)])
def test_what_decides_a_run_changes_both(key, value):
    assert fingerprint(changed(**{key: value})) != fingerprint(Recipe())
    assert default_folder(changed(**{key: value})) != default_folder(Recipe())


def test_a_path_is_the_same_however_it_is_written(photos, monkeypatch):
    monkeypatch.chdir(photos.parent)
    ways = ["own photos", "./own photos/", str(photos), "../" + photos.parent.name + "/own photos"]
    recipes = [changed(**{"data.source": way}) for way in ways]
    assert len({fingerprint(recipe) for recipe in recipes}) == 1
    assert {recipe.data.source for recipe in recipes} == {str(photos)}
    assert changed(**{"data.source": "nowhere"}).data.source == "nowhere", "the error names what was written"


def test_resume_finds_the_run_of_another_device_and_says_when_there_is_none(nearkin, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["train", "--data", "own photos", *QUICK, "--no-figure"]
    code, _, err = nearkin(*command, "--resume")
    assert code == 2
    assert "there is no run in runs/own photos-proxy_anchor-" in err
    assert "begin it without --resume" in err
    assert not (tmp_path / "runs").exists()
    assert nearkin(*command, "--device", "cpu")[0] == 0
    before = (next((tmp_path / "runs").iterdir()) / "scores.json").stat().st_mtime_ns
    code, _, err = nearkin(*command, "--resume", "data.workers=1")
    assert code == 0, err
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "scores.json").stat().st_mtime_ns == before


def test_a_study_leaves_a_run_to_the_process_that_is_at_it(photos, tmp_path):
    overrides = [*QUICK, f"data.source={json.dumps(str(photos))}", "training.device=cpu"]
    rows = [Row(name, name.upper(), load_recipe({}, overrides)) for name in "ab"]
    with sole_writer_of(tmp_path / "study" / "a" / "seed-0"):
        busy, done = Rows(rows, tmp_path / "study").run()
    assert (done.status, busy.status, busy.exit_code) == ("finished", "unfinished", BusyError.exit_code)
    assert f"written by process {os.getpid()} since" in busy.reason
    assert [outcome.status for outcome in Rows(rows, tmp_path / "study").run()] == ["finished"] * 2


def test_a_file_is_no_folder_for_a_run(nearkin, photos, tmp_path):
    (tmp_path / "file").touch()
    code, _, err = nearkin("train", "--data", photos, "-o", tmp_path / "file", *QUICK)
    assert code == 2
    assert "is a file: give a folder" in err


def test_equal_recipes_are_equal_and_frozen():
    recipe = Recipe()
    assert recipe == Recipe()
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.data = None
    with pytest.raises(RecipeError):
        load_recipe({}, ["training.sed=1"])
