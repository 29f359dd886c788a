"""One step: what it embeds, keeps and changes, whole and in pieces."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from nearkin.errors import RecipeError, TrainingError
from nearkin.training import memory, step
from nearkin.training.device import float32_products
from nearkin.training.health import HealthCheck
from nearkin.training.step import train_step

FROZEN = "encoder.freeze_batch_norm=true"


@pytest.fixture
def stepped(state_for, next_batch):
    """``stepped(*overrides)``: a state after two steps, and what the backbone was called with: (images, gradient)."""

    def run(*overrides, change=lambda state: None, steps=2):
        state = state_for(*overrides)
        change(state)
        calls = []
        state.encoder.backbone.register_forward_hook(
            lambda module, inputs, output: calls.append((len(inputs[0]), output.requires_grad))
        )
        batch, health = next_batch(state), HealthCheck(state)
        for _ in range(steps):
            train_step(state, batch, health)
        return state, calls

    return run


def with_dropout(state):
    state.encoder.pooling = nn.Sequential(state.encoder.pooling, nn.Dropout(0.5))


def assert_same(one, other, **tolerance):
    for part in ("encoder", "objective"):
        for a, b in zip(getattr(one, part).parameters(), getattr(other, part).parameters(), strict=True):
            torch.testing.assert_close(a, b, **tolerance)
            torch.testing.assert_close(a.grad, b.grad, **tolerance)
    assert one.recent_losses == pytest.approx(other.recent_losses, rel=tolerance["rtol"])


def assert_near(one, other, part=0.02):
    """For passes that differ in their last bits: an activation beside zero may change its sign, and its gradient."""
    for a, b in zip(one.weights, other.weights, strict=True):
        assert (a.grad - b.grad).norm() <= part * b.grad.norm()
    assert one.recent_losses == pytest.approx(other.recent_losses, rel=part)


def test_every_piece_but_the_last_is_embedded_twice_first_without_gradient(stepped):
    _, calls = stepped(FROZEN, "training.micro_batch=3", steps=1)
    assert calls == [(3, False), (3, False), (2, True), (3, True), (3, True)]


def test_pieces_are_chosen_where_the_recipe_does_not_say(stepped, monkeypatch):
    plain, _ = stepped(FROZEN, "training.optimiser=sgd")
    size = plain.transform.size
    kept = memory.measure(plain.encoder, size, plain.device, None).kept * size**2
    monkeypatch.setattr(memory, "PIECE_ON_CPU", 3.5 * kept)
    ours, calls = stepped(FROZEN, "training.optimiser=sgd")
    assert calls == 2 * [(3, False), (3, False), (2, True), (3, True), (3, True)]
    assert_near(ours, plain)
    assert stepped(FROZEN, "training.micro_batch=5", steps=1)[1] == [(5, False), (3, True), (5, True)]
    assert stepped(FROZEN, "training.micro_batch=8", steps=1)[1] == [(8, True)]
    assert stepped(steps=1)[1] == [(8, True)], "batch-norm looks at the whole batch"


def test_during_warm_up_once_without_gradient(stepped):
    state, calls = stepped(FROZEN, "training.micro_batch=3", "training.warmup_epochs=1")
    assert calls == 2 * [(3, False), (3, False), (2, False)]
    plain, _ = stepped(FROZEN, "training.warmup_epochs=1")
    for a, b in zip(state.encoder.head_parameters(), plain.encoder.head_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)


def test_a_momentum_network_sees_pieces_too(stepped):
    def watch(state):
        state.method.start(state)
        state.method._following(state).register_forward_hook(lambda module, inputs, _: seen.append(len(inputs[0])))

    seen = []
    momentum = ("method.name=momentum", "objective.name=momentum_proxy_anchor", "objective.queue_size=20")
    stepped(FROZEN, "training.micro_batch=3", *momentum, change=watch, steps=1)
    assert seen == [3, 3, 2]


@pytest.mark.parametrize("size", [8, 9, 1000])
def test_a_piece_that_holds_the_whole_batch_is_the_plain_step_to_the_bit(stepped, size):
    (ours, calls), (plain, _) = stepped(f"training.micro_batch={size}"), stepped()
    assert calls == [(8, True), (8, True)]
    assert_same(ours, plain, rtol=0, atol=0)


REFERENCE = [
    [],
    ["training.max_grad_norm=0.1"],
    ["training.max_grad_value=0.01"],
    ["training.precision=bf16"],
    ["encoder.channels_last=true"],
    ["encoder.normalisation=ball", "objective.name=contrastive"],
    ["encoder.pooling=gem"],
]


@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
@pytest.mark.parametrize("dropout", [False, True], ids=["", "dropout"])
@pytest.mark.parametrize("overrides", REFERENCE, ids=lambda value: "-".join(value))
def test_a_step_in_pieces_is_that_of_all_pieces_in_one_graph(stepped, monkeypatch, overrides, dropout, scaled):
    """Bit for bit but for the order in which gradients are added up, random layers and half precision included.

    One step: in a second one, weights that differ in their last bits may turn an activation beside zero.
    """

    def change(state):
        if dropout:
            with_dropout(state)
        if scaled:
            state.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    options = (FROZEN, "training.micro_batch=3", "training.optimiser=sgd", *overrides)
    ours, _ = stepped(*options, change=change, steps=1)
    drawn = torch.rand(())
    monkeypatch.setattr(
        step, "embed_in_pieces", lambda encode, pieces, _: torch.cat([encode(piece) for piece in pieces])
    )
    plain, _ = stepped(*options, change=change, steps=1)
    assert torch.equal(drawn, torch.rand(())), "as many random numbers were drawn"
    assert_same(ours, plain, rtol=1e-3, atol=1e-5)


def test_a_step_in_pieces_keeps_nothing_of_the_step_before(stepped):
    """At a rate that moves no weight every step has the same gradients."""
    options = (FROZEN, "training.micro_batch=3", "training.optimiser=sgd", "training.learning_rate=1e-20")
    once, thrice = (stepped(*options, steps=steps)[0] for steps in (1, 3))
    for a, b in zip(once.weights, thrice.weights, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-15)
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5)


def test_images_that_a_method_embeds_itself_get_their_gradient_too(stepped):
    """CCP with samples as anchors embeds them within its loss."""
    overrides = [
        *(FROZEN, "training.optimiser=sgd", "objective.name=contrastive", "method.name=ccp"),
        *("method.anchors=samples", "method.steps_per_problem=1", "method.proxies_per_class=2", "method.pool_size=2"),
    ]
    ours, _ = stepped(*overrides, "training.micro_batch=3", change=lambda state: state.method.start(state))
    plain, _ = stepped(*overrides, change=lambda state: state.method.start(state))
    assert ours.method.problem > 1
    assert_near(ours, plain)


def test_embeddings_that_are_not_finite_are_found_in_pieces_too(stepped):
    def poison(state):
        with torch.no_grad():
            state.encoder.head.weight.fill_(float("nan"))

    with pytest.raises(TrainingError, match="embeddings are not finite at step 0"):
        stepped(FROZEN, "training.micro_batch=3", change=poison)


def test_pieces_need_batch_norm_that_stands_still(state_for):
    with pytest.raises(RecipeError, match=r"encoder\.freeze_batch_norm=true"):
        state_for("training.micro_batch=3")
    with pytest.raises(RecipeError, match=r"training\.micro_batch must be at least 1, got 0"):
        state_for("training.micro_batch=0")


@pytest.mark.parametrize("frozen", ["true", "false"])
def test_a_backbone_that_rests_keeps_nothing_for_the_backward_pass(state_for, next_batch, frozen):
    """Whatever its batch-norm does: what is kept is the head's, a few vectors for each image."""
    state = state_for("training.warmup_epochs=1", f"encoder.freeze_batch_norm={frozen}")
    batch, health, kept = next_batch(state), HealthCheck(state), []
    before = copy.deepcopy(state.encoder.backbone.state_dict())

    def keep(tensor):
        kept.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        train_step(state, batch, health)
    assert kept
    assert all(len(shape) <= 2 or shape == state.objective.bank.vectors.shape for shape in kept), kept
    after = state.encoder.backbone.state_dict()
    moved = {name.rpartition(".")[2] for name in after if not torch.equal(before[name], after[name])}
    live = set() if frozen == "true" else {"running_mean", "running_var", "num_batches_tracked"}
    assert moved == live, "live batch-norm goes on looking at the batches"


def unscaled(state):
    """A loss that is scaled up may overflow in its first steps, whole or in pieces."""
    state.scaler = torch.amp.GradScaler(enabled=False)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_a_step_in_pieces_on_a_gpu(stepped, precision):
    options = (FROZEN, "training.device=cuda", f"training.precision={precision}", "training.cuda_graphs=never")
    with float32_products(precision):
        ours, calls = stepped(*options, "training.micro_batch=3", change=unscaled, steps=1)
        plain, _ = stepped(*options, change=unscaled, steps=1)
    assert len(calls) == 5  # the last piece is kept
    # In half precision a piece may round otherwise than the whole, and the loss magnifies that.
    tolerance = {"float32": 1e-3}.get(precision, 0.2)
    for a, b in zip(ours.weights, plain.weights, strict=True):
        assert (a.grad - b.grad).norm() <= tolerance * b.grad.norm() + 1e-6


def test_the_pull_to_the_start_is_the_gradient_of_the_squared_distance(state_for, next_batch):
    """Of the backbone alone, by autograd in a step of plain gradient descent; and none while it rests."""
    learning = ("training.optimiser=sgd", "training.momentum=0", "training.weight_decay=0", "training.warmup_epochs=1")
    states = {weight: state_for(*learning, f"training.l2_sp={weight}") for weight in (0, 3)}
    start = [p.detach().clone() for p in states[0].encoder.backbone.parameters()]
    batch = next_batch(states[0])
    for weight, state in states.items():
        health = HealthCheck(state)
        for _ in range(state.warmup_steps):
            train_step(state, batch, health)
        assert all(map(torch.equal, state.encoder.backbone.parameters(), start))
        with torch.no_grad():
            for parameter in state.weights:
                parameter += 0.01 * torch.sin(torch.arange(parameter.numel())).view_as(parameter)
        away = [p.detach().clone().requires_grad_() for p in state.encoder.backbone.parameters()]
        train_step(state, batch, health)
        assert (state.add_l2_sp is None) == (weight == 0)
    penalty = 3 / 2 * sum((a - b).square().sum() for a, b in zip(away, start, strict=True))
    expected = torch.autograd.grad(penalty, away)
    plain, pulled = (list(state.encoder.backbone.parameters()) for state in states.values())
    for one, other, pull in zip(plain, pulled, expected, strict=True):
        torch.testing.assert_close(other.grad - one.grad, pull, rtol=1e-3, atol=1e-4)
    for one, other in zip(*(state.encoder.head_parameters() for state in states.values()), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_a_negative_pull_is_refused(state_for):
    with pytest.raises(RecipeError, match=r"training\.l2_sp must be at least 0, got -1"):
        state_for("training.l2_sp=-1")
