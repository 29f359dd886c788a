"""The loop: what it trains, what it reports, and that nothing is lost when it is stopped."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.torch
import torch

from nearkin.errors import RecipeError, TrainingError
from nearkin.evaluation import retrieval_scores
from nearkin.recipe import Recipe
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import open_data, run
from nearkin.training import checkpoint
from nearkin.training.build import build_state
from nearkin.training.health import HealthCheck
from nearkin.training.loop import fit, train_step
from nearkin.training.state import Silent, TrainingState

SMALL = {
    "data": {"transform": "mild", "image_size": 32, "workers": 1},
    "encoder": {"backbone": "resnetv2_20", "dim": 16},
    "objective": {"name": "proxy_anchor"},
    "training": {"epochs": 3, "batch_size": 8, "learning_rate": 1e-3, "device": "cpu", "schedule": "cosine"},
    "protocol": {"name": "conventional", "test_share": 0.34},
}


def recipe_for(photos, *overrides):
    return Recipe.from_mapping(SMALL, [f"data.source={json.dumps(str(photos))}", *overrides])


def state_for(photos, *overrides) -> TrainingState:
    recipe = recipe_for(photos, *overrides)
    return build_state(recipe, open_data(recipe.data))


def next_batch(state):
    from nearkin.data.loader import TrainingLoader

    loader = TrainingLoader(state.train_set, state.labels, state.transform, state.sampler, seed=0, workers=1)
    with loader:
        return next(iter(loader))


@pytest.mark.parametrize(("protocol", "times"), [("conventional", 1), ("validation", 2)])
def test_the_untrained_network_is_scored_once_for_each_part_it_is_scored_on(photos, tmp_path, protocol, times):
    for kind in list(photos.iterdir()):
        shutil.copytree(kind, photos / f"more {kind.name}")
    state = state_for(photos, f"protocol.name={protocol}", "protocol.test_share=0.2", "training.epochs=0")
    parts, score = [], state.score

    def counted(part, **options):
        parts.append(part)
        return score(part, **options)

    state.score = counted
    folder = RunFolder(tmp_path)
    folder.begin(state.recipe)
    fit(state, folder, Silent())
    assert len(parts) == times
    assert state.untrained == score(state.protocol.test, baseline=True)


def test_the_baseline_is_the_backbone_without_its_head(photos, tmp_path):
    """Pooled features, normalised: by hand from the backbone that the run began with."""
    first = []

    class Look(Silent):
        def on_evaluation(self, state, row):
            if not row["step"]:
                encoder, test = state.encoder.eval(), state.protocol.test.query
                crops = np.stack([state.transform.evaluate(state.data.images[row]) for row in test])
                with torch.no_grad():
                    maps = encoder.backbone(encoder.preprocessing(torch.from_numpy(crops)))
                features = torch.nn.functional.normalize(maps.mean(dim=(2, 3)))
                first.append((row, retrieval_scores(features, state.table.labels[test])))
                encoder.train()

    recipe = recipe_for(photos, "training.epochs=1", "protocol.test_share=0.6", "encoder.dim=1")
    scores = run(recipe, RunFolder(tmp_path / "run"), Look())
    ((row, by_hand),) = first
    assert by_hand["MAP@R"] < 1
    for name in ("R@1", "R@2", "MAP@R"):
        assert scores["untrained"][name] == pytest.approx(by_hand[name])
        assert row[name] == pytest.approx(by_hand[name])
    assert scores["baseline"] == "backbone"


def test_without_a_step_the_score_is_of_the_encoder_as_it_is_saved(photos, tmp_path):
    """With its random head, that is; a run of the backbone alone has no head."""
    for name, overrides in (("head", "encoder.dim=1"), ("none", "encoder.dim=null")):
        recipe = recipe_for(photos, "training.epochs=0", "protocol.test_share=0.6", overrides)
        scores = run(recipe, RunFolder(tmp_path / name), Silent())
        assert (scores["test"]["MAP@R"] == scores["untrained"]["MAP@R"]) == (name == "none")


def test_a_run_leaves_a_complete_folder(photos, tmp_path):
    folder = RunFolder(tmp_path / "run")
    scores = run(recipe_for(photos), folder, Silent())
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
    assert folder.recipe() == recipe_for(photos)
    assert folder.encoder_file.exists()
    assert len(list(folder.checkpoints.glob("best-*.pt"))) == 1


def test_a_folder_with_a_run_is_not_overwritten_by_accident(photos, tmp_path):
    folder = RunFolder(tmp_path / "run")
    first = run(recipe_for(photos, "training.max_steps=1"), folder, Silent())
    with pytest.raises(RecipeError, match=r"holds a finished run.*--resume.*--overwrite.*-o"):
        run(recipe_for(photos, "training.max_steps=1"), folder, Silent())
    with pytest.raises(RecipeError, match=r"training\.max_steps was 1, is 2"):
        run(recipe_for(photos, "training.max_steps=2"), folder, Silent(), resume=True)
    assert run(recipe_for(photos, "training.max_steps=1"), folder, Silent(), resume=True) == first
    (folder.path / "my notes.txt").write_text("keep")
    run(recipe_for(photos, "training.max_steps=2"), folder, Silent(), overwrite=True)
    assert (folder.path / "my notes.txt").exists()
    assert folder.scores()["steps"] == 2


def test_every_trainable_parameter_is_in_the_optimiser_once(photos):
    state = state_for(photos, "training.proxy_multiplier=100", "training.head_multiplier=10")
    groups = {group["name"]: group for group in state.optimiser.param_groups}
    assert groups["backbone"]["lr"] == pytest.approx(1e-3)
    assert groups["head"]["lr"] == pytest.approx(1e-2)
    assert groups["proxies"]["lr"] == pytest.approx(1e-1)
    held = [id(p) for group in groups.values() for p in group["params"]]
    wanted = [id(p) for module in (state.encoder, state.objective) for p in module.parameters()]
    assert sorted(held) == sorted(wanted)


def test_a_trained_margin_does_not_take_the_proxies_rate(photos):
    state = state_for(photos, "objective.name=margin")
    groups = groups_of(state)
    assert "proxies" not in groups
    assert groups["objective"]["lr"] == pytest.approx(1e-3)
    assert groups["objective"]["params"] == [state.objective.beta]


def test_a_step_moves_backbone_head_and_proxies(photos):
    state = state_for(photos)
    before = {name: [p.detach().clone() for p in group["params"]] for name, group in groups_of(state).items()}
    train_step(state, next_batch(state), HealthCheck(state))
    for name, group in groups_of(state).items():
        moved = [not torch.equal(old, new) for old, new in zip(before[name], group["params"], strict=True)]
        assert any(moved), name


def test_warm_up_trains_head_and_proxies_only(photos):
    state = state_for(photos, "training.warmup_epochs=1")
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
def test_schedules_scale_every_group_alike(photos, tmp_path, options, factors):
    seen = []

    class Rates(Silent):
        def on_step(self, state, loss, images):
            if state.step % state.sampler.batches_per_epoch == 1:
                seen.append([group["lr"] / group["initial_lr"] for group in state.optimiser.param_groups])

    run(recipe_for(photos, "training.epochs=4", *options), RunFolder(tmp_path / "run"), Rates())
    assert np.allclose(seen, np.array(factors)[:, None])


def test_plateau_waits_for_evaluations_without_improvement(photos, tmp_path):
    folder = RunFolder(tmp_path / "run")
    run(
        recipe_for(
            photos,
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


def test_a_plateau_of_the_test_classes_is_refused_unless_the_recipe_says_so(photos, tmp_path):
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(RecipeError, match=r"rate by the scores of the test classes: .*protocol\.monitor_test=true"):
        run(recipe_for(photos, "training.schedule=plateau"), folder, Silent())
    assert not folder.is_begun
    validated = ["protocol.name=validation", "protocol.test_share=0.2", "training.max_steps=1"]
    run(recipe_for(photos, "training.schedule=plateau", *validated), folder, Silent())
    assert "followed" not in folder.scores()["selection"]


def test_the_training_set_counts_the_images_that_train(photos):
    state = state_for(photos)
    places = state.protocol.train_rows
    rows = np.array([5, 0, len(places) - 1])
    assert not np.array_equal(places[rows], rows), "test classes stand between them"
    images = state.train_set
    assert len(images) == len(places) == len(state.labels)
    assert images.ids(rows) == [state.table.ids[row] for row in places[rows]]
    assert np.array_equal(images[5], state.data.images[int(places[5])])
    torch.testing.assert_close(images.embed(rows), state.embed(places[rows]))
    crops = np.stack([state.transform.evaluate(state.data.images[row]) for row in places[rows].tolist()])
    assert np.array_equal(images.pixels(rows).numpy(), crops)
    names = [state.table.class_names[state.table.labels[row]] for row in places]
    assert [sorted(set(names)).index(name) for name in names] == state.labels.tolist()


@pytest.mark.parametrize("clip", ["value", "norm"])
def test_clipping(photos, clip):
    state = state_for(photos, f"training.clip={clip}", "training.clip_at=0.001", "training.optimiser=sgd")
    train_step(state, next_batch(state), HealthCheck(state))
    gradients = torch.cat([p.grad.flatten() for g in state.optimiser.param_groups for p in g["params"]])
    size = gradients.abs().max() if clip == "value" else gradients.norm()
    assert size <= 0.001 * (1 + 1e-4)


def test_a_loss_that_is_not_finite_stops_the_run_and_loses_nothing(photos, tmp_path):
    folder = RunFolder(tmp_path / "run")

    class Poison(Silent):
        def on_step(self, state, loss, images):
            if state.step == 6:
                with torch.no_grad():
                    state.encoder.head.weight.fill_(float("nan"))
                state.objective._check = lambda *_: None

    with pytest.raises(TrainingError, match=r"loss became nan at step 6.*Gradient norms: backbone nan.*Bild \d ä\.png"):
        run(recipe_for(photos), folder, Poison())
    saved = torch.load(folder.last_checkpoint, weights_only=True)
    assert saved["step"] == 4
    assert all(torch.isfinite(value).all() for value in saved["encoder"].values())


def test_embeddings_that_are_not_finite_stop_the_run_as_a_divergence(photos, tmp_path):
    class Poison(Silent):
        def on_step(self, state, loss, images):
            if state.step == 6:
                with torch.no_grad():
                    state.encoder.head.weight.fill_(float("nan"))

    with pytest.raises(TrainingError, match=r"embeddings are not finite at step 6.*Bild \d ä\.png.*learning_rate"):
        run(recipe_for(photos), RunFolder(tmp_path / "run"), Poison())


def test_validation_chooses_the_epoch_and_test_is_scored_once(photos, tmp_path, monkeypatch):
    from nearkin.evaluation.protocol import Protocol

    asked = []
    genuine = Protocol.score

    def spy(self, part, embed, **options):
        asked.append("validation" if part is self.validation else "test")
        return genuine(self, part, embed, **options)

    monkeypatch.setattr(Protocol, "score", spy)
    recipe = recipe_for(
        photos,
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
    scores = run(recipe, RunFolder(tmp_path / "run"), Silent())
    assert scores["selection"] == "best MAP@R on the validation classes"
    assert asked == ["validation", "test", "validation", "validation", "test"]  # untrained once, at the end once


def start(photos, folder, *overrides):
    recipe = folder.parent / "recipe.yaml"
    recipe.write_text(recipe_for(photos, *overrides).to_yaml())
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


def test_killed_and_resumed_is_bit_identical(photos, tmp_path):
    """SIGKILL in the middle of epochs, twice, with the sampler ahead of the loop, then to the end."""
    overrides = [
        "training.checkpoint_minutes=0",
        "training.epochs=6",
        "training.sampler=balanced",
        "training.images_per_class=2",
    ]
    whole = RunFolder(tmp_path / "whole" / "run")
    broken = RunFolder(tmp_path / "broken" / "run")
    for folder in (whole, broken):
        folder.path.parent.mkdir()
    process = start(photos, whole.path, *overrides)
    assert process.wait(180) == 0, process.communicate()

    for kill_after in (5, 14):
        process = start(photos, broken.path, *overrides)
        wait_for(lambda after=kill_after: step_of(broken) >= after, process)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    assert not broken.is_finished
    process = start(photos, broken.path, *overrides)
    assert process.wait(180) == 0, process.communicate()

    a, b = (torch.load(folder.last_checkpoint, weights_only=True) for folder in (whole, broken))
    assert a["step"] == b["step"] == 24
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


def test_ctrl_c_saves_and_says_how_to_resume(photos, tmp_path):
    folder = RunFolder(tmp_path / "run")
    process = start(photos, folder.path, "training.epochs=400", "training.evaluate_every=400")
    wait_for(lambda: folder.evaluations_file.exists(), process)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in errors
    assert "Traceback" not in errors
    assert step_of(folder) > 0


def test_a_checkpoint_never_runs_code(photos, tmp_path):
    folder = RunFolder(tmp_path / "run")
    run(recipe_for(photos, "training.max_steps=1"), folder, Silent())
    import pickle

    class Evil:
        def __reduce__(self):
            return (print, ("ran",))

    folder.last_checkpoint.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(Exception, match="cannot be read as a checkpoint"):
        checkpoint.encoder_weights(folder, "last")


@pytest.mark.gpu
def test_on_a_gpu_the_check_of_a_step_does_not_wait_for_the_next_one(photos):
    state = state_for(photos, "training.device=cuda")
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


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("optimiser", ["adamw", "adam", "sgd"])
def test_a_resumed_optimiser_takes_the_step_that_it_would_have_taken(photos, tmp_path, optimiser, device):
    recipe = recipe_for(photos, f"training.device={device}", f"training.optimiser={optimiser}")
    folder = RunFolder.begun(tmp_path / "run", recipe)
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
