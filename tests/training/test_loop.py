"""The loop: what it trains, what it reports, and that nothing is lost when it is stopped."""

from __future__ import annotations

import copy
import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.killing import run_script
from torch import nn

from nearkin import ranks
from nearkin.errors import RecipeError, TrainingError
from nearkin.evaluation import retrieval_scores
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training import loop, memory
from nearkin.training.device import float32_products
from nearkin.training.loop import HealthCheck, StopRequest, fit, train_step
from nearkin.training.state import Observer


@pytest.mark.parametrize(("protocol", "times"), [("conventional", 1), ("validation", 2)])
def test_the_untrained_network_is_scored_once_for_each_part_it_is_scored_on(
    state_for, photos, tmp_path, protocol, times
):
    for kind in list(photos.iterdir()):
        shutil.copytree(kind, photos / f"more {kind.name}")
    state = state_for(f"protocol.name={protocol}", "protocol.test_share=0.2", "training.epochs=0")
    parts, score = [], state.score

    def counted(part, **options):
        parts.append(part)
        return score(part, **options)

    state.score = counted
    folder = RunFolder(tmp_path)
    folder.begin(state.recipe)
    fit(state, folder, Observer())
    assert len(parts) == times
    assert state.untrained == score(state.protocol.test, baseline=True)


def test_the_baseline_is_the_backbone_without_its_head(recipe_for, tmp_path):
    """Pooled features, normalised: by hand from the backbone that the run began with."""
    first = []

    class Look(Observer):
        def on_evaluation(self, state, row):
            if not row["step"]:
                encoder, test = state.encoder.eval(), state.protocol.test.query
                crops = np.stack([state.transform.evaluate(state.data.images[row]) for row in test])
                with torch.no_grad():
                    maps = encoder.backbone(encoder.preprocessing(torch.from_numpy(crops)))
                features = torch.nn.functional.normalize(maps.mean(dim=(2, 3)))
                first.append((row, retrieval_scores(features, state.table.labels[test])))
                encoder.train()

    recipe = recipe_for("training.epochs=1", "protocol.test_share=0.6", "encoder.dim=1")
    scores = run(recipe, RunFolder(tmp_path / "run"), Look())
    ((row, by_hand),) = first
    assert by_hand["MAP@R"] < 1
    for name in ("R@1", "R@2", "MAP@R"):
        assert scores["untrained"][name] == pytest.approx(by_hand[name])
        assert row[name] == pytest.approx(by_hand[name])


def test_without_a_step_the_score_is_of_the_encoder_as_it_is_saved(recipe_for, tmp_path):
    """With its random head, that is; a run of the backbone alone has no head."""
    for name, overrides in (("head", "encoder.dim=1"), ("none", "encoder.dim=null")):
        recipe = recipe_for("training.epochs=0", "protocol.test_share=0.6", overrides)
        scores = run(recipe, RunFolder(tmp_path / name), Observer())
        assert (scores["test"]["MAP@R"] == scores["untrained"]["MAP@R"]) == (name == "none")


def test_a_run_leaves_a_complete_folder(recipe_for, tmp_path):
    folder = RunFolder(tmp_path / "run")
    scores = run(recipe_for(), folder, Observer())
    assert json.loads(folder.scores_file.read_text()) == scores
    assert scores["protocol"] == "conventional"
    assert scores["selection"] == "best R@1 on the test classes"
    assert 0 <= scores["test"]["R@1"] <= 1
    rows = list(csv.DictReader(folder.evaluations_file.open()))
    assert [row["epoch"] for row in rows] == ["0.0", "1.0", "2.0", "3.0"]
    best = max(rows[1:], key=lambda row: float(row["R@1"]))
    assert math.isclose(float(best["R@1"]), scores["test"]["R@1"])
    assert float(rows[-1]["R@1"]) == scores["last"]["R@1"]
    record = json.loads(folder.environment_file.read_text())
    assert (
        record["packages"]["torch"] == torch.__version__.split("+")[0]
        or record["packages"]["torch"] == torch.__version__
    )
    assert record["data"]["training_images"] == 32
    assert record["data"]["test_images"] == 16
    assert folder.recipe() == recipe_for()
    assert folder.encoder_file.exists()
    assert len(list(folder.checkpoints.glob("best-*.pt"))) == 1


def test_a_folder_with_a_run_is_not_overwritten_by_accident(recipe_for, tmp_path):
    folder = RunFolder(tmp_path / "run")
    first = run(recipe_for("training.max_steps=1"), folder, Observer())
    with pytest.raises(RecipeError, match=r"holds a finished run.*--resume.*--overwrite.*-o"):
        run(recipe_for("training.max_steps=1"), folder, Observer())
    with pytest.raises(RecipeError, match=r"training\.seed was 0, is 1"):
        run(recipe_for("training.max_steps=1", "training.seed=1"), folder, Observer(), resume=True)
    assert run(recipe_for("training.max_steps=1"), folder, Observer(), resume=True) == first
    (folder.path / "my notes.txt").write_text("keep")
    run(recipe_for("training.max_steps=2"), folder, Observer(), overwrite=True)
    assert (folder.path / "my notes.txt").exists()
    assert folder.scores()["steps"] == 2


def test_a_step_moves_backbone_head_and_proxies(state_for, next_batch):
    state = state_for()
    before = {name: [p.detach().clone() for p in group["params"]] for name, group in groups_of(state).items()}
    train_step(state, next_batch(state), HealthCheck(state))
    for name, group in groups_of(state).items():
        moved = [not torch.equal(old, new) for old, new in zip(before[name], group["params"], strict=True)]
        assert any(moved), name


def test_warm_up_trains_head_and_proxies_only(state_for, next_batch):
    state = state_for("training.warmup_epochs=1")
    health = HealthCheck(state)
    backbone = [p.detach().clone() for p in groups_of(state)["backbone"]["params"]]
    head = [p.detach().clone() for p in groups_of(state)["head"]["params"]]
    for _ in range(state.sampler.batches_per_epoch):
        train_step(state, next_batch(state), health)
    assert all(torch.equal(a, b) for a, b in zip(backbone, groups_of(state)["backbone"]["params"], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(head, groups_of(state)["head"]["params"], strict=True))
    train_step(state, next_batch(state), health)
    assert not all(torch.equal(a, b) for a, b in zip(backbone, groups_of(state)["backbone"]["params"], strict=True))


def groups_of(state):
    return {group["name"]: group for group in state.optimiser.param_groups}


def test_validation_chooses_the_epoch_and_test_is_scored_once(recipe_for, photos, tmp_path, monkeypatch):
    from nearkin.evaluation.protocol import Protocol

    asked = []
    genuine = Protocol.score

    def spy(self, part, embed, **options):
        asked.append("validation" if part is self.validation else "test")
        return genuine(self, part, embed, **options)

    monkeypatch.setattr(Protocol, "score", spy)
    recipe = recipe_for(
        "protocol.name=validation",
        "protocol.test_share=0.2",
        "protocol.validation_share=0.5",
        "training.epochs=2",
        "training.batch_size=4",
    )
    # four classes must stay, so six leave two for the test and none to validate; eight leave two of each
    for extra in ("sieben", "acht"):
        (photos / extra).mkdir()
        for index, file in enumerate(sorted((photos / "kiwi").iterdir())):
            (photos / extra / f"{index}.png").write_bytes(file.read_bytes())
    scores = run(recipe, RunFolder(tmp_path / "run"), Observer())
    assert scores["selection"] == "best R@1 on the validation classes, ties within its error decided by MAP@R"
    assert asked == ["validation", "test", "validation", "validation", "test"]  # untrained once, at the end once


def start(recipe_for, folder, *overrides):
    recipe = folder.parent / "recipe.yaml"
    recipe.write_text(recipe_for(*overrides).to_yaml())
    command = [sys.executable, "-m", "nearkin", "train", str(recipe), "-o", str(folder), "--json"]
    command += ["--resume"] if RunFolder(folder).is_begun else []
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )


def wait_for(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


def same_bits(a, b):
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        return all(same_bits(a[key], b[key]) for key in a if key not in ("seconds",))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same_bits(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return a == b


KILLED_AND_RESUMED = """
import sys
from tests.killing import count_events, in_child
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training import loop
from nearkin.training.recipe_check import load_recipe

def train(folder, until=None):
    def work(out):
        if until is not None:
            count_events(until, (loop, "train_step"))
        run(load_recipe(sys.argv[1]), folder, resume=RunFolder(folder).is_begun)
    print(in_child(work)[1], end=" ")

train(sys.argv[2])
for until in (11, 14, None):
    train(sys.argv[3], until)
"""


def test_killed_and_resumed_is_bit_identical(recipe_for, tmp_path):
    """SIGKILL in the middle of epochs, twice, with the sampler ahead of the loop, then to the end."""
    overrides = ["training.checkpoint_minutes=0", "training.epochs=5", "training.sampler=balanced"]
    (tmp_path / "recipe.yaml").write_text(recipe_for(*overrides, "training.images_per_class=2").to_yaml())
    whole, broken = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    ended = run_script(KILLED_AND_RESUMED, tmp_path / "recipe.yaml", whole.path, broken.path)
    assert ended.split() == ["0", str(-signal.SIGKILL), str(-signal.SIGKILL), "0"]
    a, b = (torch.load(folder.last_checkpoint, weights_only=True) for folder in (whole, broken))
    assert a["step"] == b["step"] == 20
    for part in ("encoder", "objective", "optimiser", "scheduler", "sampler", "random", "history"):
        assert same_bits(a[part], b[part]), part
    exported = [safetensors.torch.load_file(folder.encoder_file) for folder in (whole, broken)]
    assert same_bits(*exported)
    assert whole.scores()["test"] == broken.scores()["test"]


def step_of(folder):
    try:
        return torch.load(folder.last_checkpoint, weights_only=True)["step"]
    except FileNotFoundError:
        return -1


def test_ctrl_c_saves_and_says_how_to_resume(recipe_for, tmp_path):
    folder = RunFolder(tmp_path / "run")
    # A checkpoint after every step says when the loop has begun, which is when it listens.
    overrides = ["training.epochs=4000", "training.evaluate_every=4000", "training.checkpoint_minutes=0"]
    process = start(recipe_for, folder.path, *overrides)
    wait_for(lambda: step_of(folder) > 0, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "--resume" in errors
    assert "Traceback" not in errors
    assert f"interrupted after step {step_of(folder)} of" in " ".join(errors.split())


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
    kept = memory.kept_per_pixel(plain.encoder, size, plain.device, None) * size**2
    monkeypatch.setattr(memory, "CPU_PIECE", 3.5 * kept)
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
        state.method._follower.register_forward_hook(lambda module, inputs, _: seen.append(len(inputs[0])))

    seen = []
    momentum = ("method.name=momentum", "objective.name=momentum_proxy_anchor", "objective.queue_size=20")
    stepped(FROZEN, "training.micro_batch=3", *momentum, change=watch, steps=1)
    assert seen == [3, 3, 2]


@pytest.mark.parametrize("size", [8, 9, 1000])
def test_a_piece_that_holds_the_whole_batch_is_the_plain_step_to_the_bit(stepped, size):
    (ours, calls), (plain, _) = stepped(f"training.micro_batch={size}"), stepped()
    assert calls == [(8, True), (8, True)]
    assert_same(ours, plain, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("overrides", "dropout", "scaled"),
    [
        ([], False, False),
        ([], True, True),
        (["training.max_grad_norm=0.1"], True, False),
        (["training.max_grad_value=0.01"], False, True),
        (["training.precision=bf16"], True, True),
        (["encoder.normalisation=ball", "objective.name=contrastive", "encoder.channels_last=true"], False, False),
    ],
)
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
        loop, "embed_in_pieces", lambda encode, pieces, _: torch.cat([encode(piece) for piece in pieces])
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
    assert all(len(shape) < 4 for shape in kept), kept  # no feature map
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
    for state in states.values():
        health = HealthCheck(state)
        for _ in range(state.warmup_steps):
            train_step(state, batch, health)
        assert all(map(torch.equal, state.encoder.backbone.parameters(), start))
        with torch.no_grad():
            for parameter in state.weights:
                parameter += 0.01 * torch.sin(torch.arange(parameter.numel())).view_as(parameter)
        away = [p.detach().clone().requires_grad_() for p in state.encoder.backbone.parameters()]
        train_step(state, batch, health)
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


def test_a_loss_that_is_not_finite_stops_the_run_and_loses_nothing(recipe_for, tmp_path):
    folder = RunFolder(tmp_path / "run")

    class Poison(Observer):
        def on_step(self, state, loss, images):
            if state.step == 6:
                with torch.no_grad():
                    state.encoder.head.weight.fill_(float("nan"))
                state.objective._checked = lambda embeddings, labels: labels

    with pytest.raises(TrainingError, match=r"loss became nan at step 6.*Bild \d ä\.png"):
        run(recipe_for(), folder, Poison())
    saved = torch.load(folder.last_checkpoint, weights_only=True)
    assert saved["step"] == 4
    assert all(torch.isfinite(value).all() for value in saved["encoder"].values())


def test_embeddings_that_are_not_finite_stop_the_run_as_a_divergence(recipe_for, tmp_path):
    class Poison(Observer):
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_old_handlers_come_back(number, capfd):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert not stop.requested
        signal.raise_signal(number)
        assert stop.requested
    assert signal.getsignal(number) is before
    printed = capfd.readouterr().err
    assert ("Ctrl-C again stops at once" in printed) == (number == signal.SIGINT), "Ctrl-C is answered at once"


def test_one_rank_answers_ctrl_c_and_a_closed_terminal_does_no_harm(capfd, monkeypatch):
    with monkeypatch.context() as patch, StopRequest() as stop:
        patch.setattr(ranks, "is_first", lambda: False)
        signal.raise_signal(signal.SIGINT)
    assert stop.requested
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(os, "write", lambda *_: os.read(10**6, 1))  # no such file descriptor
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
    assert stop.requested


def test_a_second_ctrl_c_interrupts_and_a_second_sigterm_still_asks():
    before = signal.getsignal(signal.SIGINT)
    with StopRequest() as stop:
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_in_another_thread_the_callers_handlers_stand():
    seen = []

    def work():
        with StopRequest():
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
