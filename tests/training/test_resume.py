"""Killed and resumed, every method goes on bit for bit; and what the loop does with data and scores that are poor."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from nearkin.data.cache import open_images
from nearkin.data.table import ImageTable
from nearkin.evaluation.protocol import Protocol
from nearkin.runs.folder import RunFolder
from nearkin.training import checkpoint, methods
from nearkin.training.build import build_state
from nearkin.training.loop import fit
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer

SIZES = (6, 1, 5, 2, 6, 4)  # 24 images: three batches to an epoch
TOY = {
    "data": {"transform": "mild", "image_size": 16, "workers": 1},
    "encoder": {"backbone": "small", "dim": 6, "options": {"width": 4}},
    "training": {
        "epochs": 50,
        "max_steps": 13,
        "batch_size": 8,
        "sampler": "balanced",
        "images_per_class": 2,
        "learning_rate": 1e-3,
        "schedule": "cosine",
        "device": "cpu",
        "precision": "float32",
        "evaluate_every_steps": 4,
        "checkpoint_minutes": 0,
    },
    "protocol": {"name": "conventional"},
}


class Killed(Exception):
    pass


class KillAfter(Observer):
    """Ends the run after a step, before anything of that step has been written."""

    def __init__(self, step):
        self.step = step

    def on_step(self, state, loss, images):
        if state.step == self.step:
            raise Killed


def toy_state(*overrides, sizes=SIZES):
    """Training classes of the given sizes, two test classes of three images; a class is a colour, images add noise."""
    count = [*sizes, 3, 3]
    labels = np.repeat(np.arange(len(count)), count)
    rng = np.random.default_rng(0)
    colours = rng.integers(40, 216, (len(count), 1, 1, 3))
    pixels = (colours[labels] + rng.normal(0, 20, (len(labels), 16, 16, 3))).clip(0, 255).astype(np.uint8)
    splits = np.where(labels < len(sizes), "train", "test").tolist()
    table = ImageTable.build("toy", pixels, [f"class {label}" for label in labels], splits=splits)
    recipe = load_recipe(TOY, overrides)
    methods.catalogue()[recipe.method.name].check(recipe)
    return build_state(recipe, open_images(table, cache_dir=None))


def same_bits(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_bits(a[key], b[key]) for key in a if key != "seconds")
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same_bits(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return a == b


ISA = ["objective.name=proxy_isa", "objective.memory_size=200"]
XBM = ["objective.name=cross_batch_memory", "objective.size=200", "objective.warmup_steps=2"]
PROFS = ["method.name=profs", "method.steps_per_projection=4", "method.proximal_weight=0.1"]
CCP = ["method.name=ccp", "method.steps_per_problem=5", "method.pool_size=3"]
MOCO = ["method.name=momentum", "objective.name=momentum_proxy_anchor", "objective.queue_size=200"]


@pytest.mark.parametrize(
    ("overrides", "kills"),
    [
        (ISA, (8, 11)),  # memory on since step 3, filter since step 6
        (XBM, (2, 6)),
        ([*PROFS, "objective.name=contrastive"], (3, 7)),
        ([*PROFS, "objective.name=margin"], (5, 9)),  # the steps right after a draw: saved at the draw itself
        ([*PROFS, "objective.name=triplet", "method.hard_negative_classes=true"], (6, 9)),
        ([*PROFS, *XBM], (6, 10)),
        ([*PROFS, *ISA], (8, 9)),
        (["objective.name=vcpa", "objective.tau=1"], (4, 9)),
        (["objective.name=vcpa", "objective.tau=1", "objective.proxies_per_class=3"], (7,)),
        (["objective.name=vcpa", "objective.newton_steps=0", "objective.proxies_per_class=3"], (7,)),
        ([*CCP, "objective.name=proxy_anchor", "objective.weighting=isa"], (8, 12)),
        (MOCO, (6,)),
        (["encoder.head_init=pca", "training.ema_decay=0.9"], (2, 8)),
        (["training.ema_decay=0.9", "training.l2_sp=1", "training.warmup_epochs=1"], (2, 8)),
        ([*CCP, "objective.name=mpa", "training.ema_decay=0.9"], (8,)),
        ([*ISA, "training.micro_batch=3", "encoder.freeze_batch_norm=true", "training.warmup_epochs=1"], (2, 8)),
    ],
    ids=lambda value: "-".join(str(part).split("=")[-1] for part in value),
)
def test_killed_and_resumed_is_bit_identical(overrides, kills, tmp_path):
    """From the checkpoint before the kill to the end: everything that the last checkpoint of a whole run holds."""
    whole = toy_state(*overrides)
    fit(whole, RunFolder(tmp_path / "whole").begin(whole.recipe), Observer())

    folder = RunFolder(tmp_path / "broken").begin(whole.recipe)
    for number, observer in enumerate([*map(KillAfter, kills), Observer()]):
        state = toy_state(*overrides)
        if number:
            torch.manual_seed(100 + number)  # a new process has random states of its own
            checkpoint.load_last(state, folder)
            assert state.step == kills[number - 1] - 1
        if isinstance(observer, KillAfter):
            with pytest.raises(Killed):
                fit(state, folder, observer)
        else:
            fit(state, folder, observer)

    a, b = (torch.load(tmp_path / run / "checkpoints" / "last.pt", weights_only=True) for run in ("whole", "broken"))
    assert a["step"] == 13
    for part in a.keys() - {"seconds", "step_seconds"}:
        assert same_bits(a[part], b[part]), part


def test_the_queues_above_are_half_filled_and_in_use(tmp_path):
    isa, xbm = toy_state(*ISA, "training.max_steps=7"), toy_state(*XBM, "training.max_steps=5")
    for name, state in (("isa", isa), ("xbm", xbm)):
        fit(state, RunFolder(tmp_path / name).begin(state.recipe), Observer())
    assert isa.objective.weighting.memory_on
    assert isa.objective.weighting.filter_on
    assert int(isa.objective.weighting.diagnostics()["in_memory"].sum()) == 4 * 8  # steps 3 to 6
    assert xbm.objective.memory.fill == 3 * 8


POOR = (9, 1, 2, 3, 1, 1, 5)  # 22 images of seven classes; a batch holds two classes, an epoch two batches


@pytest.mark.parametrize(
    "overrides",
    [
        [*CCP, "objective.name=contrastive", "method.proxies_per_class=4", "method.pool_size=6"],
        [*CCP, "objective.name=mpa_ap", "objective.proxies_per_class=4"],
        [*PROFS, "objective.name=contrastive"],
        [*PROFS, "objective.name=margin", "method.hard_negative_classes=true"],
        [*PROFS, "objective.name=proxy_anchor", "method.hard_negative_classes=true"],
        ISA,
        ["objective.name=proxy_isa", "objective.memory_size=5"],
        ["objective.name=vcpa", "objective.proxies_per_class=3"],
    ],
    ids=lambda value: "-".join(str(part).split("=")[-1] for part in value),
)
def test_classes_that_an_epoch_leaves_out_and_classes_of_one_image(overrides, tmp_path):
    state = toy_state(*overrides, "training.images_per_class=4", sizes=POOR)
    assert state.sampler.batches_per_epoch == 2
    losses, seen = [], []
    genuine = state.method.loss

    def spy(state, embeddings, labels, batch):
        seen.append(set(labels.tolist()))
        return genuine(state, embeddings, labels, batch)

    state.method.loss = spy

    class Watch(Observer):
        def on_step(self, state, loss, images):
            losses.append(loss)

    fit(state, RunFolder(tmp_path / "run").begin(state.recipe), Watch())
    assert len(losses) == 13
    assert all(map(math.isfinite, losses))
    epochs = [set.union(*seen[start : start + 2]) for start in range(0, 12, 2)]
    assert all(len(epoch) < len(POOR) for epoch in epochs), "every epoch leaves classes out"
    for module in (state.encoder, state.objective):
        assert all(torch.isfinite(value).all() for value in module.state_dict().values() if value.is_floating_point())


@pytest.fixture
def scripted(monkeypatch):
    """Scores that go as the test says, after one of the untrained network."""

    def set_scores(*values):
        rest = iter([0.0, *values])
        monkeypatch.setattr(Protocol, "score", lambda *_, **__: {"R@1": next(rest), "MAP@R": 0.5})

    return set_scores


@pytest.mark.parametrize(
    ("scores", "best_step"),
    [
        ((0.2, math.nan, 0.1, math.nan), 4),
        ((math.nan, 0.2, math.nan, 0.1), 8),
        ((math.nan, 0.0, math.nan, 0.3), 13),
    ],
)
def test_a_score_that_is_not_a_number_is_never_the_best_over_one_that_is(scores, best_step, scripted, tmp_path):
    scripted(*scores)
    state = toy_state("objective.name=proxy_anchor")
    folder = RunFolder(tmp_path / "run").begin(state.recipe)
    fit(state, folder, Observer())
    assert state.best["step"] == best_step
    assert [file.name for file in folder.checkpoints.glob("best-*.pt")] == [f"best-{best_step:08d}.pt"]


def test_a_run_that_its_method_ended_stays_ended(scripted, tmp_path):
    """Killed while its final scores are made, it takes no further step when it is resumed."""
    overrides = [*CCP, "objective.name=contrastive", "method.proxies_per_class=2", "method.early_stop_patience=1"]
    overrides += ["protocol.name=validation", "protocol.select_by=R@1"]
    untrained_on_test = 0.0
    scripted(untrained_on_test, 0.4, 0.3, 0.9, 0.9)
    whole = toy_state(*overrides)
    folder = RunFolder(tmp_path / "run").begin(whole.recipe)
    fit(whole, folder, Observer())
    assert whole.ended
    assert whole.step < whole.total_steps
    resumed = toy_state(*overrides)
    checkpoint.load_last(resumed, folder)
    fit(resumed, folder, Observer())
    assert resumed.step == 8
    assert resumed.best["R@1"] == 0.4


def test_a_pool_is_embedded_in_chunks_of_the_evaluation_batch():
    state = toy_state(
        *CCP,
        "objective.name=contrastive",
        "method.proxies_per_class=2",
        "training.evaluation_batch_size=4",
    )
    counts = []
    state.encoder.register_forward_pre_hook(lambda _, inputs: counts.append(len(inputs[0])))
    state.method.start(state)
    assert sum(counts) == len(SIZES) * (3 + 2)  # a pool of three of each class, and two to begin far from
    assert max(counts) == 4
