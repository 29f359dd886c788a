"""Parameter groups, schedules and clipping, as a run has them."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest
import torch

from nearkin.errors import RecipeError
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.health import HealthCheck
from nearkin.training.state import Silent
from nearkin.training.step import train_step


def groups_of(state):
    return {group["name"]: group for group in state.optimiser.param_groups}


def test_every_trainable_parameter_is_in_the_optimiser_once(state_for):
    state = state_for("training.proxy_multiplier=100", "training.head_multiplier=10")
    groups = groups_of(state)
    assert groups["backbone"]["lr"] == pytest.approx(1e-3)
    assert groups["head"]["lr"] == pytest.approx(1e-2)
    assert groups["proxies"]["lr"] == pytest.approx(1e-1)
    held = [id(p) for group in groups.values() for p in group["params"]]
    wanted = [id(p) for module in (state.encoder, state.objective) for p in module.parameters()]
    assert sorted(held) == sorted(wanted)


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_how_long_adam_remembers_squares(state_for, next_batch, optimiser):
    state = state_for(f"training.optimiser={optimiser}", "training.beta2=0.75", "training.weight_decay=0")
    train_step(state, next_batch(state), HealthCheck(state))
    moments = state.optimiser.state[next(state.encoder.parameters())]
    # After one step the mean of gradients is 0.1 g and that of squares 0.25 g².
    torch.testing.assert_close(moments["exp_avg_sq"], 0.25 * (10 * moments["exp_avg"]).square())
    usual = state_for(f"training.optimiser={optimiser}").optimiser
    assert {group["betas"] for group in usual.param_groups} == {(0.9, 0.999)}


def test_a_trained_margin_does_not_take_the_proxies_rate(state_for):
    state = state_for("objective.name=margin")
    groups = groups_of(state)
    assert "proxies" not in groups
    assert groups["objective"]["lr"] == pytest.approx(1e-3)
    assert groups["objective"]["params"] == [state.objective.beta]


@pytest.mark.parametrize(
    ("options", "factors"),
    [
        (["training.schedule=constant"], [1, 1, 1, 1]),
        (["training.schedule=step", "training.schedule_every=2", "training.schedule_factor=0.5"], [1, 1, 0.5, 0.5]),
        (
            ["training.schedule=cosine", "training.epochs=4"],
            [1, 0.5 * (1 + math.cos(math.pi / 4)), 0.5, 0.5 * (1 + math.cos(3 * math.pi / 4))],
        ),
    ],
)
def test_schedules_scale_every_group_alike(recipe_for, tmp_path, options, factors):
    seen = []

    class Rates(Silent):
        def on_step(self, state, loss, images):
            if state.step % state.sampler.batches_per_epoch == 1:
                seen.append([group["lr"] / group["initial_lr"] for group in state.optimiser.param_groups])

    run(recipe_for("training.epochs=4", *options), RunFolder(tmp_path / "run"), Rates())
    assert np.allclose(seen, np.array(factors)[:, None])


def test_plateau_waits_for_evaluations_without_improvement(recipe_for, tmp_path):
    folder = RunFolder(tmp_path / "run")
    run(
        recipe_for(
            "training.schedule=plateau",
            "training.schedule_every=1",
            "training.learning_rate=1e-6",
            "training.epochs=5",
            "protocol.monitor_test=true",
        ),
        folder,
        Silent(),
    )
    assert folder.scores()["selection"] == "best R@1 on the test classes, which training also followed"
    rates = [float(row["lr"]) for row in csv.DictReader(folder.evaluations_file.open())]
    assert rates[1] == pytest.approx(1e-6)
    assert rates[-1] < rates[1], "with nothing learned the rate falls"


def test_a_plateau_of_the_test_classes_is_refused_unless_the_recipe_says_so(recipe_for, tmp_path):
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(RecipeError, match=r"rate by the scores of the test classes: .*protocol\.monitor_test=true"):
        run(recipe_for("training.schedule=plateau"), folder, Silent())
    assert not folder.is_begun
    validated = ["protocol.name=validation", "protocol.test_share=0.2", "training.max_steps=1"]
    run(recipe_for("training.schedule=plateau", *validated), folder, Silent())
    assert "followed" not in folder.scores()["selection"]


@pytest.mark.parametrize("clip", ["value", "norm"])
def test_clipping(state_for, next_batch, clip):
    state = state_for(f"training.clip={clip}", "training.clip_at=0.001", "training.optimiser=sgd")
    train_step(state, next_batch(state), HealthCheck(state))
    gradients = torch.cat([p.grad.flatten() for g in state.optimiser.param_groups for p in g["params"]])
    size = gradients.abs().max() if clip == "value" else gradients.norm()
    assert size <= 0.001 * (1 + 1e-4)
