"""How long a study will take: from what its finished runs took, or from one that is timed.

Where steps are timed the clock is replaced, so that the sums can be checked.
"""

from __future__ import annotations

import pytest
import torch

from nearkin.errors import DataError
from nearkin.runs.data import open_data
from nearkin.runs.folder import RunFolder
from nearkin.runs.outcome import Outcome
from nearkin.studies import time_plan
from nearkin.studies.study import PlannedRun, Row
from nearkin.studies.time_plan import ASK_BEYOND, counted_up, plan_time, run_seconds
from nearkin.training.build import build_state
from nearkin.training.device import describe_hardware
from nearkin.training.recipes import load_recipe


@pytest.fixture
def planned(tmp_path):
    """A run of a study; with ``seconds`` it is finished."""

    def make(name, *overrides, seconds=None, side_by_side=1, hardware=None):
        recipe = load_recipe({"training": {"device": "cpu", "epochs": 4}}, overrides)
        folder = RunFolder(tmp_path / name)
        if seconds is not None:
            folder.begin(recipe)
            here = describe_hardware(torch.device("cpu"))
            folder.write_scores({"seconds": seconds, "hardware": hardware or here})
            Outcome(name, 0, "finished", side_by_side=side_by_side).write(folder)
        return PlannedRun(Row(name, name, recipe), 0, folder)

    return make


def never(recipe):
    raise AssertionError("nothing had to be timed")


def test_finished_runs_say_how_long_the_others_take_each_row_for_itself(planned):
    runs = [
        planned("anchor-0", seconds=100.0),
        planned("anchor-1"),
        planned("vcpa-0", "objective.name=vcpa", seconds=300.0),
        planned("vcpa-1", "objective.name=vcpa"),
        planned("mpa-0", "objective.name=mpa"),
    ]
    plan = plan_time(runs, measure=never)
    assert (plan.runs, plan.finished) == (5, 2)
    assert plan.seconds == pytest.approx(100 + 300 + 200), "a row without any takes as long as the mean"
    assert "a rough guess from 2 finished runs" in plan.text
    assert plan_time(runs, jobs=2, measure=never).seconds == pytest.approx(300)


def test_runs_that_shared_the_machine_took_longer_than_their_share(planned):
    runs = [planned("a", seconds=100.0, side_by_side=4), planned("b")]
    assert plan_time(runs, measure=never).seconds == pytest.approx(25)
    assert plan_time(runs, jobs=4, measure=never).seconds == pytest.approx(25)


def test_without_finished_runs_one_is_timed_for_all_of_its_budget(planned):
    timed = []

    def measure(recipe):
        timed.append(recipe.training.epochs)
        return 60.0

    ccp = planned("b", "objective.name=contrastive", "method.name=ccp", "training.sampler=balanced")
    runs = [ccp, planned("a"), planned("long", "training.epochs=40"), planned("other", hardware="GPU", seconds=1.0)]
    plan = plan_time(runs, measure=measure)
    assert timed == [4, 40], "other hardware says nothing"
    assert plan.seconds == pytest.approx(180)
    assert "a few timed steps" in plan.text


def test_what_is_begun_takes_what_is_left_and_what_is_begun_anew_all_of_it(planned):
    run = planned("a")
    run.folder.begin(run.recipe)
    run.folder.write_evaluations([{"epoch": 3.0, "step": 30.0}])
    assert plan_time([run], measure=lambda recipe: 100.0).seconds == pytest.approx(25)
    assert plan_time([run], anew=[run.folder.path], measure=lambda recipe: 100.0).seconds == pytest.approx(100)


def test_damaged_records_are_no_reason_to_stop(planned):
    runs = [planned("a", seconds=100.0), planned("b")]
    runs[0].folder.scores_file.write_text("{")
    assert plan_time(runs, measure=lambda recipe: 7.0).seconds == pytest.approx(7)


def test_an_unknown_time_says_why_and_is_not_long(planned):
    def missing(recipe):
        raise DataError("CUB is not here")

    plan = plan_time([planned("a")], measure=missing)
    assert (plan.seconds, plan.is_long) == (None, False)
    assert plan.text == "unknown: CUB is not here"


def test_nothing_left_is_no_time(planned):
    plan = plan_time([planned("a", seconds=5.0)], measure=never)
    assert plan.text == "nothing is left to run"
    assert not plan.is_long


def test_a_quarter_of_an_hour_is_long(planned):
    assert plan_time([planned("a")], measure=lambda recipe: ASK_BEYOND + 1.0).is_long
    assert not plan_time([planned("a")], measure=lambda recipe: ASK_BEYOND - 1.0).is_long


TINY = {
    "data": {"transform": "mild", "image_size": 8, "workers": 1, "shorter_side": 16},
    "encoder": {"backbone": "small", "dim": 4},
    "training": {"epochs": 5, "batch_size": 8, "device": "cpu"},
    "protocol": {"name": "validation", "test_share": 0.35},
}


def recipe(photos, *overrides):
    return load_recipe(TINY, [f"data.source={photos}", *overrides])


def test_steps_and_evaluations_are_counted_as_the_recipe_has_them(photos, monkeypatch):
    monkeypatch.setattr(time_plan, "_timed", lambda state, images, steps: images / 4)
    monkeypatch.setattr(time_plan, "_evaluation_seconds", lambda state, part: len(part.rows) if part else 0)
    # Six kinds of eight images: two are tested, four are too few to hold any out; four batches of eight an epoch.
    assert run_seconds(recipe(photos)) == 5 * 4 * 2.0 + 2 * 16
    conventional = recipe(photos, "protocol.name=conventional")
    assert run_seconds(conventional) == 5 * 4 * 2.0 + (1 + 5) * 16 + 16
    assert run_seconds(recipe(photos, "training.max_steps=3", "training.batch_size=16")) == 3 * 4.0 + 2 * 16


@pytest.mark.parametrize("micro_batch, pieces", [(None, 1), (8, 3), (4, 6)])
def test_fewer_images_are_timed_in_as_many_pieces_as_the_whole_batch(photos, monkeypatch, micro_batch, pieces):
    """Forward is one second an image and backward two, and all pieces but the last go forward twice."""
    asked = []

    def timed(state, images, steps):
        parts = state.pieces(torch.zeros(images))
        asked.append((images, steps))
        return 3.0 * images + sum(len(part) for part in parts[:-1])

    monkeypatch.setattr(time_plan, "_timed", timed)
    given = {"data": {"source": str(photos), "image_size": 32}, "encoder": {"backbone": "resnetv2_20", "dim": 8}}
    given |= {"training": {"device": "cpu", "batch_size": 24, "micro_batch": micro_batch}}
    recipe = load_recipe(given, ["encoder.freeze_batch_norm=true", "protocol.test_share=0.34"])
    state = build_state(recipe, open_data(recipe.data))
    found = time_plan._step_seconds(state)
    assert asked[-1][0] < 24, "the whole batch was not timed"
    assert found == pytest.approx(24 * (3 + (pieces - 1) / pieces), rel=0.05)


def test_a_long_step_is_counted_up_from_fewer_images():
    asked = []

    def seconds(images):
        asked.append(images)
        return 0.5 + images

    assert counted_up(seconds, 6) == 6.5
    assert asked == [2, 6], "short enough to be timed whole"
    asked.clear()
    assert counted_up(seconds, 1000) == pytest.approx(1000.5)
    assert asked == [2, 8]
    asked.clear()
    assert counted_up(lambda images: asked.append(images) or 3.0, 100) == 3.0
    assert asked == [2, 8, 32, 100], "as long as it takes no longer"


@pytest.mark.parametrize("sampler", ["random", "balanced"])
def test_real_steps_are_taken_and_nothing_is_decoded_or_written(photos, tmp_path, monkeypatch, sampler):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEARKIN_CACHE", str(tmp_path / "cache"))
    before = sorted(tmp_path.rglob("*"))
    for file in photos.rglob("*.png"):
        file.write_bytes(b"no image")
    overrides = ["training.sampler=" + sampler, "objective.name=contrastive", "method.name=ccp"]
    assert 0 < run_seconds(recipe(photos, *overrides)) < 60
    assert sorted(tmp_path.rglob("*")) == before


def test_missing_data_are_an_error(tmp_path):
    with pytest.raises(DataError):
        run_seconds(recipe(tmp_path / "nowhere"))
