"""The files of a run in types: scores.json, mlrc.json, environment.json and study.json."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from nearkin.errors import DataError, MissingExtraError, TrainingError
from nearkin.evaluation.statistics import Statistic
from nearkin.recipe import EncoderSection, Recipe
from nearkin.runs.folder import OUTCOME_FILE, Environment, Outcome, RunFolder, weights_hash
from nearkin.runs.scores import ENSEMBLE_FILE, Conditions, Cost, EnsembleScores, EvaluationResult, FinalOf, Scores

ASSETS = Path(__file__).parents[1] / "assets" / "records"
SCORES = json.loads((ASSETS / "scores.json").read_text())
"""Of a final model, with the scores of its run."""
ENVIRONMENT = json.loads((ASSETS / "environment.json").read_text())


@pytest.mark.parametrize(
    ("cls", "record"),
    [
        (Scores, SCORES),
        (Scores, SCORES["final_of"]["scores"]),
        (Environment, ENVIRONMENT),
        (EnsembleScores, json.loads((ASSETS / ENSEMBLE_FILE).read_text())),
    ],
    ids=["final model", "run", "environment", "ensemble"],
)
def test_a_file_is_written_as_it_was_read(cls, record):
    typed = cls.from_record(record)
    assert json.loads(json.dumps(dict(typed))) == record
    assert cls.from_record(typed.as_record()) == typed
    with pytest.raises(dataclasses.FrozenInstanceError):
        typed.anything = 3


def test_a_run_writes_the_same_keys(trained):
    scores, environment = (json.loads((trained / name).read_text()) for name in ("scores.json", "environment.json"))
    assert list(scores) == list(SCORES["final_of"]["scores"])
    assert list(scores["cost"]) == list(SCORES["cost"])
    assert list(environment) == list(ENVIRONMENT)
    assert list(environment["data"]) == list(ENVIRONMENT["data"])
    assert (environment["data"]["images"], environment["data"]["training_classes"]) == (48, 4)
    assert RunFolder(trained).scores() == scores


def test_parts_of_scores_have_types():
    scores = Scores.from_record(SCORES)
    assert scores.conditions.protocol == "everything"
    assert scores.cost == Cost(step_ms=5.665, images_per_second=1412.1, peak_mib=368.8)
    assert (scores.final_of.run, scores.final_of.scores.conditions.seed) == ("runs/photos", 0)
    lost = Scores(Conditions(data="photos"), lost_images={"train": 2})
    assert (lost["lost_images"], "final_of" in lost) == ({"train": 2}, False)
    final = Scores(Conditions(data="photos"), final_of=FinalOf("runs/a", "a note", lost))
    assert Scores.from_record(json.loads(json.dumps(final.as_record()))) == final


@pytest.mark.parametrize(
    ("protocol", "selection", "chosen_on_test"),
    [
        ("conventional", "best R@1 on the test classes", True),
        ("conventional", "last epoch; test crops of 288 pixels", False),
        ("validation", "best MAP@R on the validation classes", False),
    ],
)
def test_whether_the_epoch_was_chosen_on_the_test_classes(protocol, selection, chosen_on_test):
    assert Scores(Conditions(protocol=protocol, selection=selection)).chosen_on_test is chosen_on_test


def test_an_evaluation_is_of_a_run_or_of_a_backbone():
    shared = {"data": "photos", "images": 8, "classes": 2, "hardware": "CPU", "scores": {"R@1": 0.5}}
    of_run = {"run": "runs/a", "checkpoint": "best", "trained_on": None, "note": None}
    assert dict(EvaluationResult(**shared, run="runs/a", checkpoint="best")) == of_run | shared
    of_backbone = {"backbone": "small", "weights": "its own"}
    assert dict(EvaluationResult(**shared, **of_backbone)) == of_backbone | shared


def test_ensemble_scores(tmp_path):
    result = EnsembleScores.read(ASSETS)
    assert (result.conditions.objective, result.folds, result.combinations.scored) == ("proxy_anchor", 2, 4)
    assert [(model.repeat, model.fold) for model in result.models] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    one_repeat = dataclasses.replace(result, separate={"R@1": Statistic(0.5, None, (0.5,))})
    assert one_repeat["separate"]["R@1"] == {"mean": 0.5, "spread": None, "values": [0.5], "interval": None}
    assert EnsembleScores.read(tmp_path) is None
    for text in ("{", "[]", "{}"):
        (tmp_path / ENSEMBLE_FILE).write_text(text)
        with pytest.raises(DataError, match=r"mlrc\.json"):
            EnsembleScores.read(tmp_path)


def test_weights_are_known_by_their_content(tmp_path):
    for name, content in (("a", b"weights"), ("moved", b"weights"), ("other", b"others")):
        (tmp_path / name).write_bytes(content)
    a, moved, other = (weights_hash(EncoderSection(weights=str(tmp_path / name))) for name in ("a", "moved", "other"))
    assert a == moved != other
    assert weights_hash(EncoderSection(weights="imagenet")) is None


@pytest.mark.parametrize(
    ("code", "status", "exit_code"),
    [
        (DataError.exit_code, "skipped", 3),
        (MissingExtraError.exit_code, "skipped", 4),
        (TrainingError.exit_code, "failed", 5),
        (-9, "failed", 1),
    ],
)
def test_an_outcome_is_read_as_it_was_written(tmp_path, code, status, exit_code):
    folder = RunFolder(tmp_path)
    outcome = Outcome.after("a", 7, folder, "for some reason", code, parallel_runs=3)
    assert outcome == Outcome("a", 7, status, "for some reason", exit_code, 3)
    outcome.write(folder)
    assert Outcome.read("a", 7, folder) == outcome
    assert Outcome.read("renamed", 7, folder) == dataclasses.replace(outcome, row="renamed")


def test_the_folder_counts_for_more_than_the_outcome(tmp_path):
    folder = RunFolder(tmp_path / "run")
    assert Outcome.read("a", 0, folder) == Outcome("a", 0, "unfinished", "not run yet")
    folder.begin(Recipe())
    begun = Outcome("a", 0, "unfinished", "begun, not finished")
    for text in ("", "{", "[]", "null", json.dumps(dataclasses.asdict(Outcome("a", 0, "finished")))):
        (folder.path / OUTCOME_FILE).write_text(text)
        assert Outcome.read("a", 0, folder) == begun, "damaged, or its scores are gone"
    folder.write_scores({})
    assert Outcome.after("a", 0, folder, "killed", -9, parallel_runs=2) == Outcome("a", 0, "finished", parallel_runs=2)
    Outcome("a", 0, "failed", "out of memory", 1, 4).write(folder)
    assert Outcome.read("a", 0, folder) == Outcome("a", 0, "finished", parallel_runs=4)
