"""PROFS: its losses against loops over pairs, its trace against a plain script, and that nothing is lost on a stop."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from nearkin import losses
from nearkin.data.cache import open_images
from nearkin.data.loader import TrainingLoader
from nearkin.data.table import ImageTable
from nearkin.errors import RecipeError
from nearkin.losses import Angular, Contrastive, LiftedStructure, Margin, NPair, Triplet
from nearkin.runs.folder import RunFolder
from nearkin.training import checkpoint
from nearkin.training.build import build_state
from nearkin.training.loop import HealthCheck, fit, train_step
from nearkin.training.methods.profs import Profs, representative_loss
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer, TrainingState

SIZES = [4, 1, 6, 2, 5, 3]
TOY = {
    "data": {"transform": "mild", "image_size": 16, "workers": 1},
    "encoder": {"backbone": "small", "dim": 4},
    "objective": {"name": "contrastive", "pos_margin": 0.0, "neg_margin": 1.4, "reduction": "pairs"},
    "method": {"name": "profs"},
    "training": {
        "batch_size": 9,
        "images_per_class": 3,
        "epochs": 50,
        "optimiser": "sgd",
        "momentum": 0.0,
        "weight_decay": 0.0,
        "learning_rate": 0.05,
        "schedule": "constant",
        "device": "cpu",
        "precision": "float32",
    },
}


def toy_state(*overrides) -> TrainingState:
    """Six training classes of one to six images, two test classes; a class is a colour, an image adds noise."""
    sizes = [*SIZES, 3, 3]
    labels = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(0)
    colours = rng.integers(40, 216, (len(sizes), 1, 1, 3))
    pixels = (colours[labels] + rng.normal(0, 20, (len(labels), 16, 16, 3))).clip(0, 255).astype(np.uint8)
    splits = np.where(labels < len(SIZES), "train", "test").tolist()
    table = ImageTable.build("toy", pixels, [f"class {label}" for label in labels], splits=splits)
    return build_state(load_recipe(TOY, overrides), open_images(table, cache_dir=None))


def train(state: TrainingState, steps: int):
    """So many steps as the loop does them; returns the batches."""
    if state.step == 0:
        state.method.start(state)
    health, seen = HealthCheck(state), []
    with TrainingLoader(
        state.train_set, state.labels, state.transform, state.sampler, seed=0, first_batch=state.step, workers=1
    ) as loader:
        state.loader = loader
        for _, batch in zip(range(steps), loader, strict=False):
            train_step(state, batch, health)
            seen.append(batch)
    return seen


def weights(state):
    return torch.cat([p.detach().flatten() for p in state.encoder.parameters()])


def slow_pairs(x, y, count, *, hard):
    """Every representative with its positives and negatives, by loops; distances are torch scalars."""
    unit = torch.nn.functional.normalize(x, dim=1)

    def distance(i, j):
        return (unit[i] - unit[j]).norm()

    for i in range(count):
        positives = [distance(i, j) for j in range(len(y)) if j != i and y[j] == y[i]]
        negatives = sorted(distance(i, j) for j in range(len(y)) if y[j] != y[i])
        yield positives, negatives[: len(positives)] if hard else negatives


def mean(terms):
    return sum(terms) / len(terms) if terms else 0.0


def slow_contrastive(x, y, count, hard):
    pull, push = [], []
    for positives, negatives in slow_pairs(x, y, count, hard=hard):
        pull += [d - 0.2 for d in positives if d > 0.2]
        push += [1.3 - d for d in negatives if d < 1.3]
    return mean(pull) + mean(push)


def slow_triplet(x, y, count, hard):
    terms = []
    for positives, negatives in slow_pairs(x, y, count, hard=hard):
        terms += [p - n + 0.4 for p in positives for n in negatives if p - n + 0.4 > 0]
    return mean(terms)


def slow_margin(x, y, count, hard):
    terms = []
    for positives, negatives in slow_pairs(x, y, count, hard=hard):
        terms += [d - 1.125 + 0.2 for d in positives for _ in negatives if d - 1.125 + 0.2 > 0]
        terms += [1.125 + 0.2 - d for d in negatives for _ in positives if 1.125 + 0.2 - d > 0]
    return mean(terms)


def slow_lifted(x, y, count, hard):
    """The loss of the whole batch with every pair of two examples struck out."""
    unit = torch.nn.functional.normalize(x, dim=1)
    terms = []
    for i in range(count):
        for j in range(count, len(y)):
            if y[i] == y[j]:
                from_i = [(1.0 - (unit[i] - unit[k]).norm()).exp() for k in range(len(y)) if y[k] != y[i]]
                from_j = [(1.0 - (unit[j] - unit[k]).norm()).exp() for k in range(count) if y[k] != y[j]]
                violation = sum(from_i + from_j).log() + (unit[i] - unit[j]).norm()
                terms.append(violation.clamp_min(0.0) ** 2 / 2)
    return mean(terms)


def slow_n_pair(x, y, count, hard):
    unit = torch.nn.functional.normalize(x, dim=1)
    terms = []
    for a in range(count, len(y)):
        p = y[:count].tolist().index(y[a])
        others = [n for n in range(count) if n != p]
        terms.append((1 + sum((unit[a] @ (unit[n] - unit[p])).exp() for n in others)).log())
    return mean(terms)


def slow_n_pair_of_sohn(x, y, count, hard):
    terms = []
    for a in range(count, len(y)):
        p = y[:count].tolist().index(y[a])
        others = [n for n in range(count) if n != p]
        terms.append((1 + sum((x[a] @ (x[n] - x[p])).exp() for n in others)).log())
    lengths = [sum(number**2 for number in row) for row in x]
    return mean(terms) + 0.5 * (mean(lengths[:count]) + mean(lengths[count:])) / 2


def slow_angular(x, y, count, hard):
    unit = torch.nn.functional.normalize(x, dim=1)
    tan2 = math.tan(math.radians(36)) ** 2
    terms = []
    for a in range(count, len(y)):
        p = y[:count].tolist().index(y[a])
        others = [n for n in range(count) if n != p]
        pull = 2 * (1 + tan2) * (unit[a] @ unit[p])
        terms.append((1 + sum((4 * tan2 * ((unit[a] + unit[p]) @ unit[n]) - pull).exp() for n in others)).log())
    return mean(terms)


@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize(
    ("loss", "slow"),
    [
        (Contrastive(pos_margin=0.2, neg_margin=1.3), slow_contrastive),
        (Triplet(margin=0.4), slow_triplet),
        (Margin(beta=1.125, margin=0.2), slow_margin),
        (LiftedStructure(), slow_lifted),
        (NPair(), slow_n_pair),
        (NPair(length_penalty=1.0), slow_n_pair_of_sohn),
        (Angular(alpha=36), slow_angular),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else "",
)
def test_losses_equal_loops_over_pairs_with_a_representative(loss, slow, hard):
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    y = torch.tensor([7, 2, 5, 0, 3] + [c for c in (7, 2, 5, 0, 3) for _ in range(3)])
    value = representative_loss(loss.double(), x, y, 5, hard_pairs=hard)
    expected = slow(x, y, 5, hard)
    assert expected > 0.01
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    gradients = [torch.autograd.grad(each, x)[0] for each in (value, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)
    assert (gradients[0][:5].abs().sum(dim=1) > 0).all(), "representatives are moved too"
    assert (gradients[0][5:].abs().sum(dim=1) > 0).any(), "and so are examples"


def test_balanced_pairs_differ_from_all_and_leave_log_sum_losses_alone():
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    y = torch.arange(20).repeat(3)
    for name, loss in losses.catalogue().items():
        if losses.kind(loss) == "pair":
            values = [representative_loss(loss(), x, y, 20, hard_pairs=hard).item() for hard in (True, False)]
            balanced = name in ("contrastive", "cosine_contrastive", "triplet", "margin")
            assert (values[0] != values[1]) == balanced, name


def test_a_single_class_has_no_negatives_and_costs_only_its_spread():
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    value = representative_loss(Contrastive(), x, torch.zeros(3, dtype=torch.int64), 1)
    assert value.item() == pytest.approx((2**0.5 + 2) / 2, abs=1e-6)


def test_half_precision_is_lifted_even_under_autocast():
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    y = torch.arange(3).repeat(2)
    plain = representative_loss(LiftedStructure(), x, y, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(representative_loss(LiftedStructure(), x, y, 3), plain)


def test_trace_equals_a_plain_script():
    """Draws of representatives, batches, θ* and every step of the weights over two and a half projections of four."""
    rate, pull, held = 0.05, 0.5, 4
    state = toy_state(
        "method.steps_per_projection=4", f"method.proximal_weight={pull}", "encoder.freeze_batch_norm=true"
    )
    network = copy.deepcopy(state.encoder)
    trail, centres = [], []
    genuine = state.method.adjust_gradients

    def spy(state):
        trail.append([p.detach().clone() for p in state.encoder.parameters()])
        centres.append([c.clone() for c in state.method._reference.centre])
        genuine(state)

    state.method.adjust_gradients = spy
    batches = train(state, 10)
    trail.append([p.detach().clone() for p in state.encoder.parameters()])

    script = []
    for step, batch in enumerate(batches):
        rows, labels = batch.rows.tolist(), batch.labels.tolist()
        if step % held == 0:
            drawn = state.sampler.representatives(step // held).tolist()
            script.append({"step": step, "kind": "representatives", "count": len(SIZES)})
            centre = trail[step]
        assert rows[:3] == [drawn[c] for c in labels[:3]]
        assert labels[3:] == [c for c in labels[:3] for _ in range(2)]
        assert all(torch.equal(a, b) for a, b in zip(centres[step], centre, strict=True))
        with torch.no_grad():
            for parameter, value in zip(network.parameters(), trail[step], strict=True):
                parameter.copy_(value)
        total, pairs = 0.0, 0
        for positives, negatives in slow_pairs(network(batch.images), batch.labels, 3, hard=True):
            total = total + sum(positives) + sum((1.4 - d).clamp_min(0.0) for d in negatives)
            pairs += len(positives) + len(negatives)
        away = sum((p - c).square().sum() for p, c in zip(network.parameters(), centre, strict=True))
        gradients = torch.autograd.grad(total / pairs + pull / 2 * away, list(network.parameters()))
        for after, before, gradient in zip(trail[step + 1], trail[step], gradients, strict=True):
            step_taken = -rate * gradient
            assert (after - before - step_taken).norm() <= 0.01 * step_taken.norm()
    assert state.method.events == script
    assert [event["step"] for event in script] == [0, 4, 8]
    moved = max((a - b).abs().max().item() for a, b in zip(trail[4], trail[0], strict=True))
    assert moved > 1e-3, "enough for the pull to be seen"


def test_the_pull_is_lambda_times_the_way_from_the_last_draw():
    states = [toy_state("method.steps_per_projection=3", f"method.proximal_weight={pull}") for pull in (0.0, 0.25)]
    start = weights(states[0])
    for state in states:
        state.method.start(state)
        with torch.no_grad():
            for parameter in state.encoder.parameters():
                parameter.add_(0.125 * torch.sign(parameter))
                parameter.grad = torch.zeros_like(parameter)
        state.method.adjust_gradients(state)
    gradients = [torch.cat([p.grad.flatten() for p in state.encoder.parameters()]) for state in states]
    assert not gradients[0].any()
    assert torch.equal(gradients[1], 0.25 * (weights(states[1]) - start))


def test_the_two_extremes():
    every, never = toy_state("method.steps_per_projection=1"), toy_state("method.steps_per_projection=0")
    for state in (every, never):
        train(state, 5)
    assert [event["step"] for event in every.method.events] == [0, 1, 2, 3, 4, 5]
    drawn = np.array([every.sampler.representatives(number) for number in range(6)])
    assert ((drawn[1:] != drawn[:-1]) | (np.array(SIZES) == 1)).all()
    assert [event["step"] for event in never.method.events] == [0]
    assert toy_state().sampler.steps_per_projection == 12  # ceil(6·3·6/9)


def test_mined_batches_equal_a_plain_script():
    """The nearest classes by what was last seen of each representative, over three draws of representatives."""
    state = toy_state("method.hard_negative_classes=true", "method.steps_per_projection=3")
    known = state.train_set.embed(state.sampler.representatives(0))
    seen = []
    genuine = state.method.loss

    def spy(state, embeddings, labels, batch):
        seen.append(embeddings.detach().clone())
        return genuine(state, embeddings, labels, batch)

    state.method.loss = spy
    for embeddings, batch in zip(seen, train(state, 8), strict=True):
        classes = batch.labels[:3].tolist()
        distance = [(known[classes[0]] - known[c]).norm().item() for c in range(len(SIZES))]
        assert sorted(classes) == sorted(np.argsort(distance)[:3].tolist())
        known[classes] = embeddings[:3]
    torch.testing.assert_close(state.sampler.embeddings, known)


def test_classes_are_mined_by_normalised_embeddings_whatever_the_loss_takes():
    state = toy_state("objective.name=n_pair", "objective.length_penalty=0.1", "method.hard_negative_classes=true")
    with torch.no_grad():
        state.encoder.head.bias.normal_(std=10)
    seen = []
    genuine = state.method.loss
    state.method.loss = lambda state, x, *others: seen.append(x.detach()) or genuine(state, x, *others)
    train(state, 3)
    assert torch.cat(seen).norm(dim=1).min() > 1.5
    assert state.sampler.embeddings.norm(dim=1).max() < 1 + 1e-5


@pytest.mark.parametrize("mined", [False, True])
def test_saved_in_the_middle_of_a_projection_it_continues_bit_for_bit(mined, tmp_path):
    overrides = [
        f"method.hard_negative_classes={mined}",
        "method.steps_per_projection=4",
        "method.proximal_weight=0.1",
        "training.optimiser=adamw",
        "objective.name=cross_batch_memory",
        "objective.size=20",
        "objective.warmup_steps=2",
        "objective.pair_loss.name=margin",
    ]
    whole, broken, resumed = (toy_state(*overrides) for _ in range(3))
    expected = train(whole, 13)
    folder = RunFolder(tmp_path / "run").begin(broken.recipe)
    train(broken, 6)
    with checkpoint.BackgroundWriter() as writer:
        checkpoint.save_last(broken, folder, writer)
    checkpoint.load_last(resumed, folder)
    after = train(resumed, 7)
    assert [b.rows.tolist() for b in after] == [b.rows.tolist() for b in expected[6:]]
    assert torch.equal(weights(resumed), weights(whole))
    for name, value in whole.objective.state_dict().items():
        assert torch.equal(resumed.objective.state_dict()[name], value), name
    assert resumed.method.events == whole.method.events
    assert [event["step"] for event in whole.method.events] == [0, 4, 8, 12]
    if mined:
        assert torch.equal(resumed.sampler.embeddings, whole.sampler.embeddings)


PAIR_LOSSES = [name for name, loss in losses.catalogue().items() if losses.kind(loss) == "pair"]


@pytest.mark.parametrize(
    "objective",
    [[f"objective.name={name}"] for name in PAIR_LOSSES]
    + [
        ["objective.name=proxy_anchor"],
        ["objective.name=cross_batch_memory", "objective.size=30", "objective.warmup_steps=1"],
    ],
    ids=lambda objective: objective[0].removeprefix("objective.name="),
)
def test_every_kind_of_loss_runs_through_the_loop(objective, tmp_path):
    state = toy_state(*objective, "method.hard_negative_classes=true", "training.max_steps=4", "training.epochs=2")
    Profs.check(state.recipe)
    before = weights(state)
    fit(state, RunFolder(tmp_path / "run").begin(state.recipe), Observer())
    assert state.step == 4
    assert not torch.equal(weights(state), before)
    assert all(math.isfinite(row["loss"]) for row in state.history if "loss" in row)


def test_with_a_memory_the_loss_is_representative_pairs_and_the_memory_term():
    state = toy_state("objective.name=cross_batch_memory", "objective.size=9", "objective.warmup_steps=0")
    first, second = train(state, 2)
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    memory, memory_labels = state.objective.memory.embeddings.clone(), state.objective.memory.labels.clone()
    assert memory_labels.tolist() == second.labels.tolist() != first.labels.tolist()
    pair_loss = state.objective.pair_loss
    expected = representative_loss(pair_loss, x, first.labels, 3) + pair_loss(x, first.labels, memory, memory_labels)
    assert torch.equal(state.method.loss(state, x, first.labels, first), expected)


def test_fewer_classes_than_a_batch_asks_for():
    state = toy_state("training.batch_size=60")
    assert state.sampler.num_representatives == len(SIZES)
    (batch,) = train(state, 1)
    assert sorted(batch.labels.tolist()) == sorted(list(range(len(SIZES))) * 3)


def test_events_stay_few_and_small(monkeypatch):
    import nearkin.training.methods.profs as module

    monkeypatch.setattr(module, "_EVENTS_KEPT", 3)
    state = toy_state("method.steps_per_projection=1")
    train(state, 5)
    assert state.method.events == [{"step": s, "kind": "representatives", "count": len(SIZES)} for s in (3, 4, 5)]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.images_per_class=1"], r"images_per_class \(1\) must be at least 2"),
        (["training.batch_size=10"], r"images_per_class \(3\) .*batch_size \(10\) a multiple of it"),
        (["training.batch_size=3"], r"batch_size \(3\) .*at least twice as large"),
        (["method.steps_per_projection=-1"], "steps_per_projection must be at least 0"),
        (["method.occurrences=0"], "occurrences must be at least 1"),
        (["method.proximal_weight=-0.1"], "proximal_weight must be at least 0"),
        (["objective.name=margin", "objective.negatives=distance_weighted"], "set method.hard_pairs=false"),
        (
            [
                *("objective.name=cross_batch_memory", "objective.size=9"),
                *("objective.pair_loss.name=margin", "objective.pair_loss.negatives=distance_weighted"),
            ],
            "set method.hard_pairs=false",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_before_training(overrides, message):
    recipe = load_recipe(TOY, overrides)
    with pytest.raises(RecipeError, match=message):
        Profs.check(recipe)


def test_with_all_pairs_of_a_representative_margin_draws_its_negatives():
    options = ("objective.name=margin", "objective.negatives=distance_weighted", "method.hard_pairs=false")
    state = toy_state(*options, "encoder.normalisation=l2")
    Profs.check(state.recipe)
    before = weights(state)
    train(state, 2)
    assert state.objective.steps == 2
    assert not torch.equal(weights(state), before)
