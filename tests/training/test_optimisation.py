"""Parameter groups, schedules and clipping, as a run has them."""

from __future__ import annotations

import copy
import csv
import math
import signal

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from nearkin.encoders import build_encoder
from nearkin.errors import InterruptedRunError, RecipeError
from nearkin.evaluation.protocol import Protocol
from nearkin.report.score_tables import run_table
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.runs.trained_run import load_run
from nearkin.training import checkpoint
from nearkin.training.loop import HealthCheck, fit, train_step
from nearkin.training.optimisation import ProximalTerm, WeightEma, build_optimiser
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer


def groups_of(state):
    return {group["name"]: group for group in state.optimiser.param_groups}


def test_every_trainable_parameter_is_in_the_optimiser_once(state_for):
    state = state_for("training.proxy_lr_multiplier=100", "training.head_lr_multiplier=10")
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


def test_rmsprop_by_hand(recipe_for):
    """Squares with a memory of 0.99, decay in the gradient, momentum of the scaled gradients; both of one number."""
    section = recipe_for(
        "training.optimiser=rmsprop", "training.momentum=0.8", "training.epsilon=0.05", "training.weight_decay=0.3"
    ).training
    parameter = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    optimiser = build_optimiser([{"params": [parameter], "lr": 0.1}], section)
    weight, square, momentum = 2.0, 0.0, 0.0
    for slope in (1.0, -0.5, 0.25):
        gradient = slope + 0.3 * weight
        square = 0.99 * square + 0.01 * gradient**2
        momentum = 0.8 * momentum + gradient / (math.sqrt(square) + 0.05)
        weight -= 0.1 * momentum
        parameter.grad = torch.tensor([slope], dtype=torch.float64)
        optimiser.step()
        assert parameter.item() == pytest.approx(weight, rel=1e-12)


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_a_large_epsilon_makes_small_gradients_take_small_steps(recipe_for, optimiser):
    section = recipe_for(f"training.optimiser={optimiser}", "training.epsilon=0.01", "training.weight_decay=0").training
    parameter = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimiser = build_optimiser([{"params": [parameter], "lr": 0.1}], section)
    parameter.grad = torch.tensor([1.0, 1e-4], dtype=torch.float64)
    optimiser.step()
    expected = [-0.1 * g / (g + 0.01) for g in (1.0, 1e-4)]
    torch.testing.assert_close(parameter.detach(), torch.tensor(expected, dtype=torch.float64))


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
        (["training.schedule=step", "training.lr_decay_every=2", "training.lr_decay_factor=0.5"], [1, 1, 0.5, 0.5]),
        (
            ["training.schedule=cosine", "training.epochs=4"],
            [1, 0.5 * (1 + math.cos(math.pi / 4)), 0.5, 0.5 * (1 + math.cos(3 * math.pi / 4))],
        ),
    ],
)
def test_schedules_scale_every_group_alike(recipe_for, tmp_path, options, factors):
    seen = []

    class Rates(Observer):
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
            "training.lr_decay_every=1",
            "training.learning_rate=1e-6",
            "training.epochs=5",
            "protocol.monitor_test=true",
        ),
        folder,
        Observer(),
    )
    assert folder.scores()["selection"] == "best R@1 on the test classes, which training also followed"
    rates = [float(row["lr"]) for row in csv.DictReader(folder.evaluations_file.open())]
    assert rates[1] == pytest.approx(1e-6)
    assert rates[-1] < rates[1], "with nothing learned the rate falls"


def test_a_plateau_of_the_test_classes_is_refused_unless_the_recipe_says_so(recipe_for, tmp_path):
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(RecipeError, match=r"rate by the scores of the test classes: .*protocol\.monitor_test=true"):
        run(recipe_for("training.schedule=plateau"), folder, Observer())
    assert not folder.is_begun
    validated = ["protocol.name=validation", "protocol.test_share=0.2", "training.max_steps=1"]
    run(recipe_for("training.schedule=plateau", *validated), folder, Observer())
    assert "followed" not in folder.scores()["selection"]


@pytest.mark.parametrize("clip", ["max_grad_value", "max_grad_norm"])
def test_clipping(state_for, next_batch, clip):
    state = state_for(f"training.{clip}=0.001", "training.optimiser=sgd")
    train_step(state, next_batch(state), HealthCheck(state))
    gradients = torch.cat([p.grad.flatten() for g in state.optimiser.param_groups for p in g["params"]])
    size = gradients.abs().max() if clip == "max_grad_value" else gradients.norm()
    assert size <= 0.001 * (1 + 1e-4)


def test_frozen_scale_and_shift_are_in_no_group_and_do_not_decay(state_for, next_batch):
    state = state_for(
        "encoder.freeze_batch_norm=true", "encoder.freeze_batch_norm_affine=true", "training.weight_decay=0.5"
    )
    norms = [m for m in state.encoder.backbone.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    resting = {id(p) for norm in norms for p in (norm.weight, norm.bias)}
    held = {id(p) for group in state.optimiser.param_groups for p in group["params"]}
    assert not resting & held
    assert held | resting == {id(p) for module in (state.encoder, state.objective) for p in module.parameters()}
    before = [norm.weight.clone() for norm in norms]
    train_step(state, next_batch(state), HealthCheck(state))
    assert all(torch.equal(norm.weight, old) for norm, old in zip(norms, before, strict=True))


def test_a_warm_up_wakes_the_backbone_but_not_its_scale_and_shift(state_for, next_batch):
    state = state_for("encoder.freeze_batch_norm_affine=true", "training.warmup_epochs=1")
    learned = {name: p.requires_grad for name, p in state.encoder.named_parameters()}
    batch, health = next_batch(state), HealthCheck(state)
    train_step(state, batch, health)
    assert not any(p.requires_grad for p in state.encoder.backbone.parameters())
    state.step = state.warmup_steps
    train_step(state, batch, health)
    assert {name: p.requires_grad for name, p in state.encoder.named_parameters()} == learned


def test_adams_decay_is_in_the_gradient_and_adamws_is_not(state_for, next_batch):
    """The first step of Adam is the rate times the sign of gradient plus decay; of AdamW the sign of the gradient."""
    decay, rate = 3.0, 1e-3
    for optimiser in ("adam", "adamw"):
        state = state_for(
            f"training.optimiser={optimiser}", f"training.weight_decay={decay}", "training.max_grad_norm=null"
        )
        weight = state.encoder.head.weight
        before = weight.detach().clone().double()
        train_step(state, next_batch(state), HealthCheck(state))
        gradient = weight.grad.double()
        if optimiser == "adam":
            gradient = gradient + decay * before
            expected = before - rate * gradient / (gradient.abs() + 1e-8)
        else:
            expected = before * (1 - rate * decay) - rate * gradient / (gradient.abs() + 1e-8)
        torch.testing.assert_close(weight.detach().double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("schedule", ["plateau", "milestones"])
def test_a_floor_holds_for_every_group_in_proportion(state_for, schedule):
    state = state_for(
        f"training.schedule={schedule}",
        "training.lr_decay_every=1",
        "training.lr_decay_factor=0.5",
        "training.milestones=[2,4,6]",
        "training.min_learning_rate=3e-4",
        "training.head_lr_multiplier=10",
    )
    seen = []
    for _ in range(7):
        seen.append([group["lr"] for group in state.optimiser.param_groups])
        state.optimiser.step()
        state.scheduler.step(*([0.5] if schedule == "plateau" else []))
    # Halved by every second evaluation without improvement after the first, or by the epochs named.
    wanted = [1, 1, 1, 0.5, 0.5, 0.3, 0.3] if schedule == "plateau" else [1, 1, 0.5, 0.5, 0.3, 0.3, 0.3]
    first = np.array(seen[0])
    np.testing.assert_allclose(np.array(seen), np.outer(wanted, first))
    assert len(set(first.tolist())) > 1


@pytest.fixture
def scripted(monkeypatch):
    def set_scores(values):
        rest = iter(values)
        monkeypatch.setattr(Protocol, "score", lambda *_, **__: {"R@1": next(rest), "MAP@R": 0.5})

    return set_scores


EVERY_STEP = ("training.evaluate_every_steps=1", "training.early_stop_patience=2", "training.epochs=9")


def test_a_run_ends_after_evaluations_without_a_new_best(recipe_for, tmp_path, scripted):
    # Untrained; by step: best, equal, best, not a number, and worse, the second without a best; then the final score.
    scripted([0.9, 0.5, 0.5, 0.6, math.nan, 0.55, 0.6])
    folder = RunFolder(tmp_path / "run")
    run(recipe_for(*EVERY_STEP, "protocol.monitor_test=true"), folder, Observer())
    assert folder.scores()["steps"] == 5
    assert folder.scores().chosen["step"] == 3
    assert folder.scores()["selection"] == "best R@1 on the test classes, which training also followed"


def test_a_run_that_was_interrupted_still_knows_how_long_it_has_waited(recipe_for, tmp_path, scripted):
    class Interrupt(Observer):
        def on_step(self, state, loss, images):
            if state.step == 2:
                signal.raise_signal(signal.SIGINT)

    folder, recipe = RunFolder(tmp_path / "run"), recipe_for(*EVERY_STEP, "protocol.monitor_test=true")
    scripted([0.9, 0.5, 0.4])
    with pytest.raises(InterruptedRunError):
        run(recipe, folder, Interrupt())
    scripted([0.4, 0.5])
    run(recipe, folder, Observer(), resume=True)
    assert folder.scores()["steps"] == 3


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["training.early_stop_patience=3"],
            r"early_stop_patience would end the run by the scores of the test classes: leave it out",
        ),
        (["training.early_stop_patience=3", "protocol.name=everything"], "protocol everything has none"),
        (["training.early_stop_patience=3", "protocol.name=in-distribution"], "protocol in-distribution has none"),
        (
            ["training.early_stop_patience=3", "protocol.name=validation", "protocol.validation_share=0"],
            "leave no classes to hold out",
        ),
        (["training.early_stop_patience=0"], "training.early_stop_patience must be at least 1, got 0"),
        (["training.min_learning_rate=1e-6"], "for the schedules plateau and milestones, not for cosine"),
    ],
)
def test_ends_and_floors_that_make_no_sense_are_refused(recipe_for, tmp_path, overrides, said):
    with pytest.raises(RecipeError, match=said):
        run(recipe_for(*overrides), RunFolder(tmp_path / "run"), Observer())


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()


def move(parameters):
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(torch.randn_like(parameter))


def test_adds_the_gradient_of_the_squared_distance():
    parameters = list(network().parameters())
    pull = ProximalTerm()
    pull.remember(parameters)
    start = [p.detach().clone() for p in parameters]
    move(parameters)
    loss = sum(p.sin().sum() for p in parameters)
    norm = sum((p - s).square().sum() for p, s in zip(parameters, start, strict=True))
    wanted = torch.autograd.grad(loss + 0.3 / 2 * norm, parameters)
    sum(p.sin().sum() for p in parameters).backward()
    storage = [p.grad.data_ptr() for p in parameters]
    pull.add_to_gradients(parameters, 0.3)
    for parameter, gradient in zip(parameters, wanted, strict=True):
        assert torch.allclose(parameter.grad, gradient, rtol=0, atol=1e-14)
    assert [p.grad.data_ptr() for p in parameters] == storage, "the gradients are changed in place"


def test_alone_it_is_exactly_lambda_times_the_way_gone():
    parameters = list(network().float().parameters())
    pull = ProximalTerm()
    pull.remember(parameters)
    start = [p.detach().clone() for p in parameters]
    move(parameters)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    pull.add_to_gradients(parameters, 2e-4)
    for parameter, before in zip(parameters, start, strict=True):
        assert torch.equal(parameter.grad, 2e-4 * (parameter.detach() - before))


def test_the_centre_is_a_copy_and_moves_when_told():
    parameters = list(network().parameters())
    pull = ProximalTerm()
    pull.remember(parameters)
    move(parameters)
    pull.remember(parameters)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    pull.add_to_gradients(parameters, 1.0)
    assert all(not p.grad.any() for p in parameters)


def test_parameters_without_a_gradient_are_left_alone():
    resting, trained = (nn.Parameter(torch.ones(2)) for _ in range(2))
    pull = ProximalTerm()
    pull.remember([resting, trained])
    move([resting, trained])
    trained.grad = torch.zeros(2)
    pull.add_to_gradients([resting, trained], 1.0)
    assert resting.grad is None
    assert torch.equal(trained.grad, trained.detach() - 1)


def test_nothing_is_pulled_before_anything_is_remembered_or_with_no_weight():
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.full((2,), 3.0)
    pull = ProximalTerm()
    pull.add_to_gradients([parameter], 1.0)
    pull.remember([parameter])
    move([parameter])
    pull.add_to_gradients([parameter], 0.0)
    assert torch.equal(parameter.grad, torch.full((2,), 3.0))


def test_other_parameters_than_remembered_are_refused():
    parameters = list(network().parameters())
    pull = ProximalTerm()
    pull.remember(parameters)
    with pytest.raises(ValueError, match=r"zip\(\) argument"):
        pull.add_to_gradients(parameters[:-1], 1.0)


def test_state_goes_through_a_checkpoint(tmp_path):
    parameters = list(network().parameters())
    pull = ProximalTerm()
    pull.remember(parameters)
    torch.save(pull.centre, tmp_path / "pull.pt")
    move(parameters)
    again = ProximalTerm()
    again.centre = torch.load(tmp_path / "pull.pt", weights_only=True)
    gradients = []
    for each in (pull, again):
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        each.add_to_gradients(parameters, 0.1)
        gradients.append([p.grad for p in parameters])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert any(g.any() for g in gradients[0])


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

    class Look(Observer):
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
    plain = checkpoint.read_checkpoint(folder.last_checkpoint)["encoder"]
    assert not all(torch.equal(plain[name], value) for name, value in seen[scores.steps].items())
    assert "weights averaged over the steps (0.8)" in " ".join(run_table(scores).conditions)
    plain = run(recipe_for("training.epochs=1"), tmp_path / "plain")
    assert "averaged" not in " ".join(run_table(plain).conditions)


def test_the_last_epoch_is_reported_with_the_average_too(recipe_for, tmp_path):
    recipe = recipe_for("training.ema_decay=0.8", "training.epochs=1", "protocol.name=in-distribution")
    folder = RunFolder(tmp_path / "run")
    scores = run(recipe, folder)
    average = checkpoint.read_checkpoint(folder.last_checkpoint)["ema"]
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
    fit(state, RunFolder(tmp_path).begin(state.recipe), Observer())
    centre = state.method._reference.centre
    assert all(map(torch.equal, centre, state.weights))


@pytest.mark.parametrize("value", [1.0, -0.1, 2])
def test_a_share_out_of_range_is_refused(value):
    with pytest.raises(ValueError, match=r"training.ema_decay must be at least 0 and below 1"):
        load_recipe({"training": {"ema_decay": value}})


@pytest.mark.gpu
@pytest.mark.parametrize("choice", ["never", "always"])
def test_with_cuda_graphs_the_average_is_that_of_the_formula(state_for, next_batch, choice):
    state = state_for("training.device=cuda", f"training.cuda_graphs={choice}", "training.ema_decay=0.7")
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
    assert (choice == "always") == (getattr(state.encode, "_graphed", None) is not None)
