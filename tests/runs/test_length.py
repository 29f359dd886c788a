"""A run is made longer, made shorter, or ended where it is."""

from __future__ import annotations

import json
import signal

import pytest
import torch

from nearkin.errors import InterruptedRunError, Notice, RecipeError
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.runs.trained_run import load_run
from nearkin.training import checkpoint
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer

QUICK = {
    "data": {"transform": "mild", "image_size": 16, "workers": 1},
    "encoder": {"backbone": "small", "dim": 4, "options": {"width": 4}},
    "training": {"epochs": 2, "batch_size": 8, "learning_rate": 1e-3, "device": "cpu", "lr_decay_every": 2},
    "protocol": {"name": "conventional", "test_share": 0.34},
}


class StopAfter(Observer):
    def __init__(self, step):
        self.step = step

    def on_step(self, state, loss, images):
        if state.step == self.step:
            signal.raise_signal(signal.SIGTERM)


class Killed(Observer):
    def on_step(self, state, loss, images):
        raise ZeroDivisionError


@pytest.fixture
def recipe_for(photos):
    return lambda *changes: load_recipe(QUICK, [f"data.source={json.dumps(str(photos))}", *changes])


@pytest.fixture
def interrupted(recipe_for, tmp_path):
    """A run of two epochs of four steps, stopped after the sixth step; evaluated after the fourth."""
    with pytest.raises(InterruptedRunError, match="--finish"):
        run(recipe_for(), tmp_path / "run", StopAfter(6))
    return RunFolder(tmp_path / "run")


def rows_of(folder):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in folder.evaluations()]


@pytest.mark.parametrize("schedule", ["step", "constant"])
def test_a_finished_run_made_longer_is_the_longer_run_bit_for_bit(recipe_for, tmp_path, schedule):
    changes = [f"training.schedule={schedule}"]
    whole, longer = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "longer")
    run(recipe_for(*changes, "training.epochs=4"), whole)
    assert run(recipe_for(*changes), longer).epochs == 2
    with pytest.warns(Notice, match=r"training\.epochs was 2, is 4; the learning rate follows the same schedule"):
        scores = run(recipe_for(*changes, "training.epochs=4"), longer, resume=True)
    assert (scores.epochs, longer.recipe().training.epochs) == (4, 4)
    assert longer.environment().recipe == scores.conditions.recipe
    assert rows_of(longer) == rows_of(whole)
    assert scores.test == whole.scores().test
    expected = checkpoint.encoder_weights(whole, "last")
    for name, weights in checkpoint.encoder_weights(longer, "last").items():
        assert torch.equal(weights, expected[name])


def test_a_longer_cosine_has_the_rates_of_the_longer_run(recipe_for, tmp_path):
    whole, longer = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "longer")
    run(recipe_for("training.schedule=cosine", "training.epochs=4"), whole)
    run(recipe_for("training.schedule=cosine"), longer)
    with pytest.warns(Notice, match=r"cosine schedule is now that of 4 epochs.* from 0 to 0\.0005"):
        run(recipe_for("training.schedule=cosine", "training.epochs=4"), longer, resume=True)
    rates, expected = ([row["lr"] for row in rows_of(folder)] for folder in (longer, whole))
    assert rates[-2:] == pytest.approx(expected[-2:])


@pytest.mark.filterwarnings("ignore::nearkin.errors.Notice")
def test_a_run_that_is_killed_right_after_it_was_made_longer_resumes_as_the_longer_run(recipe_for, tmp_path):
    recipe, folder = recipe_for("training.schedule=cosine", "training.epochs=3"), RunFolder(tmp_path / "run")
    with pytest.raises(InterruptedRunError):
        run(recipe_for("training.schedule=cosine"), folder, StopAfter(3))
    run(recipe_for("training.schedule=cosine"), folder, finish=True)
    with pytest.raises(ZeroDivisionError):
        run(recipe, folder, Killed(), resume=True)
    assert not folder.is_finished
    scores = run(recipe, folder, resume=True)
    assert scores.steps == 12
    assert [row["lr"] for row in folder.evaluations()][-2:] == pytest.approx([0.25e-3, 0])


def test_an_interrupted_run_made_shorter_ends_where_it_is(recipe_for, interrupted):
    with pytest.warns(Notice, match=r"training\.epochs was 2, is 1"):
        scores = run(recipe_for("training.epochs=1"), interrupted, resume=True)
    assert scores.steps == 6
    assert [row["step"] for row in interrupted.evaluations()] == [0, 4, 6]


def test_a_run_that_is_finished_early_reports_the_best_of_its_evaluations(recipe_for, interrupted):
    with pytest.warns(Notice, match=r"is not finished \(epoch 1 of 2\)"):
        load_run(interrupted.path, device="cpu")
    scores = run(recipe_for(), interrupted, finish=True)
    rows = interrupted.evaluations()
    assert [row["step"] for row in rows] == [0, 4, 6]
    assert scores.steps == 6
    assert scores.best["R@1"] == max(row["R@1"] for row in rows[1:])
    assert scores.test is not None
    assert run(recipe_for(), interrupted, resume=True) == scores
    with pytest.warns(Notice, match="was 2, is 3"):
        assert run(recipe_for("training.epochs=3"), interrupted, resume=True).steps == 12


def test_what_cannot_be_finished_or_changed(recipe_for, interrupted):
    with pytest.raises(RecipeError, match=r"training\.seed was 0, is 1"):
        run(recipe_for("training.seed=1", "training.epochs=3"), interrupted, resume=True)
    interrupted.last_checkpoint.unlink()
    with pytest.raises(RecipeError, match="no checkpoint yet"):
        run(recipe_for(), interrupted, finish=True)


def test_the_command_line_takes_the_folder_of_a_run(nearkin, interrupted):
    code, _, err = nearkin("evaluate", interrupted.path)
    assert code == 0, err
    assert err.count(f"nearkin train {interrupted.path} --finish") == 1
    code, out, err = nearkin("train", interrupted.path, "--finish", "--no-figure")
    assert code == 0, err
    assert "1.5 epochs" in " ".join(out.split())
    code, out, err = nearkin("train", interrupted.path, "--resume", "training.epochs=3", "--no-figure")
    assert code == 0, err
    assert interrupted.scores().epochs == 3
    assert nearkin("train", "glyphs/demo", "--finish")[0] == 2
