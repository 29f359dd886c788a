"""Checkpoints: what they bring back, and that they run no code."""

from __future__ import annotations

import os
import pickle

import pytest
import torch

from nearkin.errors import DataError
from nearkin.runs.data import open_data
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training import checkpoint
from nearkin.training.build import build_state
from nearkin.training.health import HealthCheck
from nearkin.training.state import NullObserver
from nearkin.training.step import train_step


def test_a_checkpoint_never_runs_code(recipe_for, tmp_path):
    folder = RunFolder(tmp_path / "run")
    run(recipe_for("training.max_steps=1"), folder, NullObserver())

    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    folder.last_checkpoint.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(DataError, match="cannot be read as a checkpoint"):
        checkpoint.encoder_weights(folder, "last")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content, said",
    [
        ([1, 2], "is no checkpoint of nearkin; begin anew with --overwrite"),
        ({"weights": {}}, "is no checkpoint of nearkin; begin anew with --overwrite"),
        ({"encoder": {}, "format": -1}, r"was written by another version of nearkin \(format -1\)"),
    ],
)
def test_a_file_of_something_else_is_named(tmp_path, content, said):
    folder = RunFolder(tmp_path / "run")
    folder.last_checkpoint.parent.mkdir(parents=True)
    torch.save(content, folder.last_checkpoint)
    with pytest.raises(DataError, match=rf"last\.pt {said}"):
        checkpoint.encoder_weights(folder, "last")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("optimiser", ["adamw", "adam", "sgd"])
def test_a_resumed_optimiser_takes_the_step_that_it_would_have_taken(
    recipe_for, next_batch, tmp_path, optimiser, device
):
    recipe = recipe_for(f"training.device={device}", f"training.optimiser={optimiser}")
    folder = RunFolder(tmp_path / "run").begin(recipe)
    state = build_state(recipe, open_data(recipe.data))
    for _ in range(3):
        train_step(state, next_batch(state), HealthCheck(state))
    checkpoint.save_last(state, folder)
    resumed = build_state(recipe, open_data(recipe.data))
    checkpoint.load_last(resumed, folder)
    batch = next_batch(state)
    for each in (state, resumed):
        assert bool(each.optimiser.param_groups[0]["fused"]) == (device == "cuda")
        train_step(each, batch, HealthCheck(each))
    for one, other in zip(state.weights, resumed.weights, strict=True):
        torch.testing.assert_close(one, other)
