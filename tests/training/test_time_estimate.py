"""Where a run's time goes, told by a clock that only the test moves."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
import torch
from rich.console import Console

from nearkin.data.cache import open_images
from nearkin.data.table import ImageTable
from nearkin.evaluation.protocol import Protocol
from nearkin.runs.folder import RunFolder
from nearkin.training import checkpoint
from nearkin.training.build import build_state
from nearkin.training.loop import fit
from nearkin.training.observers import ConsoleObserver
from nearkin.training.recipes import load_recipe
from nearkin.training.run_time import RunTime
from nearkin.training.state import NullObserver
from nearkin.training.time_estimate import Estimate, Estimator

STEP, FIRST, EVALUATION, CHECKPOINT = 2.0, 30.0, 9.0, 0.5


TOY = {
    "data": {"transform": "mild", "image_size": 16, "workers": 1},
    "encoder": {"backbone": "small", "dim": 6, "options": {"width": 4}},
    "training": {"epochs": 50, "max_steps": 13, "batch_size": 8, "device": "cpu", "evaluate_every_steps": 4},
    "protocol": {"name": "conventional"},
}


PIECES = ["training.micro_batch=3", "encoder.freeze_batch_norm=true"]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def slow(monkeypatch):
    """A toy run on a fake clock: a step takes two seconds, the first half a minute, scoring the test classes nine.

    A step of the warm-up takes a quarter of the others, and those in three pieces go through two of them once more.
    Called again, it is another sitting.
    """
    clock = Clock()
    save_last = checkpoint.save_last

    def score(*_, **__):
        clock.now += EVALUATION
        return {"R@1": 0.5, "MAP@R": 0.5}

    def save(*arguments):
        clock.now += CHECKPOINT
        save_last(*arguments)

    monkeypatch.setattr(Protocol, "score", score)
    monkeypatch.setattr(checkpoint, "save_last", save)
    monkeypatch.setattr(checkpoint, "save_best", lambda *_: None)

    def build(*overrides):
        labels = np.repeat(np.arange(6), 6)  # four classes train: three batches to an epoch
        pixels = np.random.default_rng(0).integers(0, 256, (36, 16, 16, 3), dtype=np.uint8)
        splits = np.where(labels < 4, "train", "test").tolist()
        table = ImageTable.build("toy", pixels, [f"class {label}" for label in labels], splits=splits)
        state = build_state(load_recipe(TOY, overrides), open_images(table, cache_dir=None))
        state.time = RunTime(clock)
        genuine, first = state.method.loss, True

        def loss(state, *arguments):
            nonlocal first
            whole = STEP * (1 + 2 / 3 / 4) if state.recipe.training.micro_batch else STEP
            clock.now += FIRST if first else STEP / 4 if state.step < state.warmup_steps else whole
            first = False
            return genuine(state, *arguments)

        state.method.loss = loss
        return state

    build.clock = clock
    return build


class Foreteller(NullObserver):
    def __init__(self):
        self.estimator, self.estimates = Estimator(), {}

    def on_step(self, state, loss, images):
        self.estimates[state.step] = self.estimator.after_step(state)


@pytest.mark.parametrize(
    "overrides",
    [
        ["training.max_steps=null", "training.epochs=40"],  # 120 steps, an evaluation every 4
        ["training.max_steps=null", "training.epochs=40", "training.warmup_epochs=10"],
        ["training.max_steps=null", "training.epochs=40", "training.evaluate_every_steps=null"],
        ["training.max_steps=50", "training.evaluate_every_steps=50"],
        ["training.max_steps=null", "training.epochs=40", *PIECES],
        ["training.max_steps=null", "training.epochs=40", "training.warmup_epochs=20", *PIECES],
    ],
)
def test_the_time_of_the_whole_run_is_known_after_its_first_steps(slow, overrides, tmp_path):
    state, seen = slow(*overrides), Foreteller()
    began = slow.clock.now
    fit(state, RunFolder(tmp_path / "run").begin(state.recipe), seen)
    state.score(state.protocol.test, final=True)
    took = slow.clock.now - began
    assert seen.estimates[1] is None
    assert seen.estimates[2].evaluation == EVALUATION
    for step in (2, 5, 20, 40):
        assert seen.estimates[step].total == pytest.approx(took, rel=0.1), step
        assert seen.estimates[step].left < seen.estimates[step].total
    last = seen.estimates[max(seen.estimates)]
    assert last.left == pytest.approx(2 * EVALUATION + CHECKPOINT, abs=CHECKPOINT), "the last evaluation and the score"


def test_a_resumed_run_counts_what_it_took_before(slow, tmp_path):
    folder = None
    for limit in (13, 60):
        state, seen = slow(f"training.max_steps={limit}"), Foreteller()
        if folder is None:
            folder = RunFolder(tmp_path / "run").begin(state.recipe)
        else:
            slow.clock.now += 5000  # between the sittings
            checkpoint.load_last(state, folder)
        fit(state, folder, seen)
    assert seen.estimates[20].total == pytest.approx(state.time.seconds + EVALUATION, rel=0.1)
    assert seen.estimates[20].total < 1000


def test_the_parts_are_kept_apart_over_two_sittings(slow, tmp_path):
    first = slow("training.max_steps=8")
    folder = RunFolder(tmp_path / "run").begin(first.recipe)
    fit(first, folder, NullObserver())
    second = slow("training.max_steps=13")
    checkpoint.load_last(second, folder)
    fit(second, folder, NullObserver())
    assert second.time.by["steps"] == pytest.approx(2 * FIRST + 11 * STEP)
    assert second.time.by["evaluations"] == pytest.approx(5 * EVALUATION)  # untrained, 4, 8, 12, 13
    # At 4, 12 and 13: the last one of a sitting cannot be in it.
    assert second.time.by["checkpoints"] == pytest.approx(3 * CHECKPOINT)
    assert second.time.seconds == pytest.approx(sum(second.time.by.values()), abs=1)


def test_a_checkpoint_of_an_early_version_is_read(slow, tmp_path):
    state = slow("training.max_steps=4")
    folder = RunFolder(tmp_path / "run").begin(state.recipe)
    fit(state, folder, NullObserver())
    content = torch.load(folder.last_checkpoint, weights_only=True)
    del content["baseline"]
    content |= {"seconds": 50.0, "step_seconds": 40.0}
    torch.save(content, folder.last_checkpoint)
    resumed = slow("training.max_steps=13")
    checkpoint.load_last(resumed, folder)
    assert resumed.time.seconds == 50.0
    assert resumed.time.by == {"steps": 40.0, "evaluations": 0.0, "checkpoints": 0.0}
    assert resumed.baseline == "random head"
    seen = Foreteller()
    fit(resumed, folder, seen)
    assert seen.estimates[7].total > 50


def test_the_estimate_is_one_line(slow, tmp_path):
    text = io.StringIO()
    state = slow("training.max_steps=null", "training.epochs=40")
    with ConsoleObserver(Console(file=text, width=200)) as observer:
        fit(state, RunFolder(tmp_path / "run").begin(state.recipe), observer)
    (line,) = [line for line in text.getvalue().splitlines() if "in all" in line]
    assert re.fullmatch(r"about (9|10) minutes in all, 9 s per evaluation", line)


def test_the_estimate_is_said_again_only_where_it_was_far_off():
    text = io.StringIO()
    observer = ConsoleObserver(Console(file=text, width=200))
    for total, left in ((18, 18), (100, 90), (110, 90), (90, 60), (400, 300), (410, 300), (800, 10)):
        observer._announce(Estimate(total=float(total), left=float(left), evaluation=0.0))
    assert text.getvalue().splitlines() == ["about 2 minutes in all", "about 7 minutes in all"]
