from __future__ import annotations

import copy

import pytest
import safetensors.torch
import torch

from nearkin.encoders import build_encoder
from nearkin.report.score_tables import run_table
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.runs.trained_run import load_run
from nearkin.training import checkpoint
from nearkin.training.health import HealthCheck
from nearkin.training.loop import fit
from nearkin.training.optimisation import WeightEma
from nearkin.training.recipes import load_recipe
from nearkin.training.state import NullObserver
from nearkin.training.step import train_step

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def by_hand(states, decay):
    """In float64, one number at a time: weights after every step averaged with the ramp, buffers as they are last."""
    average = {name: value.double() for name, value in states[0].items()}
    for t, state in enumerate(states[1:], start=1):
        d = min(decay, (1 + t) / (10 + t))
        for name, value in state.items():
            is_buffer = "running" in name or "num_batches" in name
            average[name] = value.double() if is_buffer else d * average[name] + (1 - d) * value.double()
    return average


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("decay", [0.0, 0.5, 0.995])
def test_the_average_is_that_of_the_formula(device, decay):
    torch.manual_seed(0)
    trained = build_encoder("small", dim=3, channels_last=True).to(device)
    average, states = WeightEma(trained, decay), [copy.deepcopy(trained.state_dict())]
    for step in range(30):
        with torch.no_grad():
            for parameter in trained.parameters():
                parameter += torch.randn_like(parameter)
            for buffer in trained.buffers():
                buffer.copy_(torch.full_like(buffer, step))
        average.update()
        states.append(copy.deepcopy(trained.state_dict()))
    expected = by_hand(states, decay)
    for name, value in average.encoder.state_dict().items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-4, atol=1e-4)
    assert not any(p.requires_grad for p in average.encoder.parameters())
    assert not average.encoder.training
    assert same(trained, states[-1]), "the weights that train are left alone"


def same(encoder, state):
    return all(torch.equal(value, state[name]) for name, value in encoder.state_dict().items())


def test_training_goes_on_with_the_weights_themselves(state_for, next_batch):
    weights = []
    for overrides in ((), ("training.ema_decay=0.9",)):
        state = state_for("training.warmup_epochs=1", *overrides)
        batch, health = next_batch(state), HealthCheck(state)
        for _ in range(state.warmup_steps + 2):
            train_step(state, batch, health)
        weights.append([p.detach().clone() for p in state.weights])
    assert all(map(torch.equal, *weights))
    assert state.ema.updates == state.warmup_steps + 2
    assert not all(map(torch.equal, weights[1], state.ema.encoder.parameters()))


def test_the_average_is_what_is_scored_and_saved(recipe_for, tmp_path):
    recipe = recipe_for("training.ema_decay=0.8", "training.epochs=2", "protocol.test_share=0.6")
    seen = {}

    class Look(NullObserver):
        def on_evaluation(self, state, row):
            seen[row["step"]] = copy.deepcopy(state.ema.encoder.state_dict())
            assert state.score(state.protocol.test, baseline=not row["step"])["MAP@R"] == row["MAP@R"]

    folder = RunFolder(tmp_path / "run")
    scores = run(recipe, folder, Look())
    best = seen[scores.best["step"]]
    exported = safetensors.torch.load_file(folder.encoder_file)
    assert all(torch.equal(exported[name], value) for name, value in best.items())
    assert same(load_run(folder.path).encoder, best)
    assert same(load_run(folder.path, which="last").encoder, seen[scores.steps])
    plain = checkpoint._read(folder.last_checkpoint)["encoder"]
    assert not all(torch.equal(plain[name], value) for name, value in seen[scores.steps].items())
    assert "weights averaged over the steps (0.8)" in " ".join(run_table(scores).conditions)
    plain = run(recipe_for("training.epochs=1"), tmp_path / "plain")
    assert "averaged" not in " ".join(run_table(plain).conditions)


def test_the_last_epoch_is_reported_with_the_average_too(recipe_for, tmp_path):
    recipe = recipe_for("training.ema_decay=0.8", "training.epochs=1", "protocol.name=in-distribution")
    folder = RunFolder(tmp_path / "run")
    scores = run(recipe, folder)
    average = checkpoint._read(folder.last_checkpoint)["ema"]
    assert scores.conditions.selection == "last epoch"
    assert same(load_run(folder.path).encoder, average["encoder"])
    assert average["updates"] == scores.steps


def test_an_average_that_forgets_all_is_the_plain_run(recipe_for, tmp_path):
    plain, forgetting = (
        run(recipe_for("training.epochs=2", *more), tmp_path / name)
        for name, more in (("plain", ()), ("forgetting", ("training.ema_decay=0",)))
    )
    assert plain.test == forgetting.test
    assert plain.conditions.recipe != forgetting.conditions.recipe


def test_ccp_pulls_to_the_weights_that_train(state_for, tmp_path):
    state = state_for(
        *("method.name=ccp", "objective.name=contrastive", "method.pool_size=2", "method.proxies_per_class=1"),
        *("method.steps_per_problem=2", "training.max_steps=2", "training.ema_decay=0.9"),
    )
    fit(state, RunFolder(tmp_path).begin(state.recipe), NullObserver())
    centre = state.method._reference.centre
    assert all(map(torch.equal, centre, state.weights))


@pytest.mark.parametrize("value", [1.0, -0.1, 2])
def test_a_share_out_of_range_is_refused(value):
    with pytest.raises(ValueError, match=r"training.ema_decay must be at least 0 and below 1"):
        load_recipe({"training": {"ema_decay": value}})


@pytest.mark.gpu
@pytest.mark.parametrize("compile", ["none", "graphs"])
def test_with_cuda_graphs_the_average_is_that_of_the_formula(state_for, next_batch, compile):
    state = state_for("training.device=cuda", f"training.cuda_graphs={compile}", "training.ema_decay=0.7")
    batch, health = next_batch(state), HealthCheck(state)
    states = [copy.deepcopy(state.encoder.state_dict())]
    for step in range(8):
        train_step(state, batch, health)
        health.settle()
        states.append(copy.deepcopy(state.encoder.state_dict()))
        if step == 3:  # an evaluation in between leaves graphs and averages as they are
            state.score(state.protocol.test)
    expected = by_hand(states, 0.7)
    for name, value in state.ema.encoder.state_dict().items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-4, atol=1e-5)
    assert (compile == "graphs") == (getattr(state.encode, "_graphed", None) is not None)
