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

from nearkin.errors import RecipeError
from nearkin.evaluation import retrieval_scores
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.health import HealthCheck
from nearkin.training.loop import fit
from nearkin.training.state import NullObserver
from nearkin.training.step import train_step


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
    fit(state, folder, NullObserver())
    assert len(parts) == times
    assert state.untrained == score(state.protocol.test, baseline=True)


def test_the_baseline_is_the_backbone_without_its_head(recipe_for, tmp_path):
    """Pooled features, normalised: by hand from the backbone that the run began with."""
    first = []

    class Look(NullObserver):
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
    assert scores["baseline"] == "backbone"


def test_without_a_step_the_score_is_of_the_encoder_as_it_is_saved(recipe_for, tmp_path):
    """With its random head, that is; a run of the backbone alone has no head."""
    for name, overrides in (("head", "encoder.dim=1"), ("none", "encoder.dim=null")):
        recipe = recipe_for("training.epochs=0", "protocol.test_share=0.6", overrides)
        scores = run(recipe, RunFolder(tmp_path / name), NullObserver())
        assert (scores["test"]["MAP@R"] == scores["untrained"]["MAP@R"]) == (name == "none")


def test_a_run_leaves_a_complete_folder(recipe_for, tmp_path):
    folder = RunFolder(tmp_path / "run")
    scores = run(recipe_for(), folder, NullObserver())
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
    first = run(recipe_for("training.max_steps=1"), folder, NullObserver())
    with pytest.raises(RecipeError, match=r"holds a finished run.*--resume.*--overwrite.*-o"):
        run(recipe_for("training.max_steps=1"), folder, NullObserver())
    with pytest.raises(RecipeError, match=r"training\.max_steps was 1, is 2"):
        run(recipe_for("training.max_steps=2"), folder, NullObserver(), resume=True)
    assert run(recipe_for("training.max_steps=1"), folder, NullObserver(), resume=True) == first
    (folder.path / "my notes.txt").write_text("keep")
    run(recipe_for("training.max_steps=2"), folder, NullObserver(), overwrite=True)
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
    scores = run(recipe, RunFolder(tmp_path / "run"), NullObserver())
    assert scores["selection"] == "best R@1 on the validation classes, within its error MAP@R"
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


def test_killed_and_resumed_is_bit_identical(recipe_for, tmp_path):
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
    process = start(recipe_for, whole.path, *overrides)
    assert process.wait(180) == 0, process.communicate()

    for kill_after in (5, 14):
        process = start(recipe_for, broken.path, *overrides)
        wait_for(lambda after=kill_after: step_of(broken) >= after, process)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    assert not broken.is_finished
    process = start(recipe_for, broken.path, *overrides)
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
