"""What is not finite stops a run, and loses nothing."""

from __future__ import annotations

import time

import pytest
import torch

from nearkin.errors import TrainingError
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.health import HealthCheck
from nearkin.training.state import NullObserver
from nearkin.training.step import train_step


def test_a_loss_that_is_not_finite_stops_the_run_and_loses_nothing(recipe_for, tmp_path):
    folder = RunFolder(tmp_path / "run")

    class Poison(NullObserver):
        def on_step(self, state, loss, images):
            if state.step == 6:
                with torch.no_grad():
                    state.encoder.head.weight.fill_(float("nan"))
                state.objective._checked = lambda embeddings, labels: labels

    with pytest.raises(TrainingError, match=r"loss became nan at step 6.*Gradient norms: backbone nan.*Bild \d ä\.png"):
        run(recipe_for(), folder, Poison())
    saved = torch.load(folder.last_checkpoint, weights_only=True)
    assert saved["step"] == 4
    assert all(torch.isfinite(value).all() for value in saved["encoder"].values())


def test_embeddings_that_are_not_finite_stop_the_run_as_a_divergence(recipe_for, tmp_path):
    class Poison(NullObserver):
        def on_step(self, state, loss, images):
            if state.step == 6:
                with torch.no_grad():
                    state.encoder.head.weight.fill_(float("nan"))

    with pytest.raises(TrainingError, match=r"embeddings are not finite at step 6.*Bild \d ä\.png.*learning_rate"):
        run(recipe_for(), RunFolder(tmp_path / "run"), Poison())


@pytest.mark.gpu
def test_on_a_gpu_the_check_of_a_step_does_not_wait_for_the_next_one(state_for, next_batch):
    state = state_for("training.device=cuda")
    health = HealthCheck(state)
    for _ in range(3):
        train_step(state, next_batch(state), health)
    torch.cuda.synchronize()
    train_step(state, next_batch(state), health)
    torch.cuda._sleep(4_000_000_000)  # cycles: two seconds of work that the host has queued in the meantime
    began = time.monotonic()
    health.settle()
    assert time.monotonic() - began < 1
    assert len(state.recent_losses) == 4
    torch.cuda.synchronize()
    assert time.monotonic() - began > 1, "the work was still to be done"
