from __future__ import annotations

import signal

import pytest
import torch

from nearkin.errors import InterruptedRunError, RecipeError
from nearkin.runs.folder import RunFolder
from nearkin.training import checkpoint
from nearkin.training.loop import fit
from nearkin.training.state import Observer

MOCO = (
    "method.name=momentum",
    "objective.name=momentum_proxy_anchor",
    "objective.queue_size=20",
    "objective.momentum=0.9",
)


def test_the_follower_is_a_moving_average_and_fills_the_queue(tiny, tmp_path):
    state = tiny(*MOCO, "training.max_steps=4")
    average = [p.detach().clone() for p in state.encoder.parameters()]
    queued = []

    class Watch(Observer):
        def on_step(self, state, loss, images):
            for mean, parameter in zip(average, state.encoder.parameters(), strict=True):
                mean.mul_(0.9).add_(parameter.detach(), alpha=0.1)
            for mean, weight in zip(average, state.method._follower.parameters(), strict=True):
                torch.testing.assert_close(mean, weight)
            queued.append(state.objective.queue.fill)

    fit(state, RunFolder(tmp_path / "run").begin(state.recipe), Watch())
    assert queued == [8, 16, 20, 20]
    assert not any(p.requires_grad for p in state.method._follower.parameters())


def test_the_queue_holds_what_the_follower_saw(tiny):
    from nearkin.data.loader import TrainingLoader
    from nearkin.training.loop import HealthCheck, train_step

    state = tiny(*MOCO)
    with TrainingLoader(state.train_set, state.labels, state.transform, state.sampler, seed=0, workers=1) as loader:
        batch = next(iter(loader))
    with torch.no_grad():
        before = state.encoder.eval()(batch.images)
    state.method.start(state)
    train_step(state, batch, HealthCheck(state))
    queue = state.objective.queue.embeddings[:8]
    torch.testing.assert_close(queue, torch.nn.functional.normalize(before))
    assert state.objective.queue.labels[:8].tolist() == batch.labels.tolist()


def test_interrupted_with_a_half_filled_queue_it_goes_on_bit_for_bit(tiny, tmp_path):
    whole = tiny(*MOCO, "training.max_steps=6")
    fit(whole, RunFolder(tmp_path / "whole").begin(whole.recipe), Observer())

    class StopAt(Observer):
        def on_step(self, state, loss, images):
            if state.step == 2:
                signal.raise_signal(signal.SIGTERM)

    folder = RunFolder(tmp_path / "broken").begin(whole.recipe)
    with pytest.raises(InterruptedRunError):
        fit(tiny(*MOCO, "training.max_steps=6"), folder, StopAt())
    resumed = tiny(*MOCO, "training.max_steps=6")
    checkpoint.load_last(resumed, folder)
    fit(resumed, folder, Observer())
    for module in ("encoder", "objective"):
        a, b = getattr(whole, module).state_dict(), getattr(resumed, module).state_dict()
        assert all(torch.equal(a[key], b[key]) for key in a), module
    a, b = whole.method.state_dict()["follower"], resumed.method.state_dict()["follower"]
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_a_loss_without_a_queue_is_refused(tiny):
    with pytest.raises(RecipeError, match="proxy_anchor has no queue"):
        tiny("method.name=momentum", "objective.name=proxy_anchor")
