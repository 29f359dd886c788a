"""Checkpoints: what they bring back, and that they run no code."""

from __future__ import annotations

import io
import os
import pickle
import signal
import threading
import time

import pytest
import torch
from torch import nn

from nearkin.disk import write_atomically
from nearkin.errors import DataError, InterruptedRunError, OutputError
from nearkin.runs.data import open_data
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training import checkpoint
from nearkin.training.build import build_state
from nearkin.training.checkpoint import BackgroundWriter, copied_to_host
from nearkin.training.loop import HealthCheck, fit, train_step
from nearkin.training.state import Observer


def test_a_checkpoint_never_runs_code(recipe_for, tmp_path):
    folder = RunFolder(tmp_path / "run")
    run(recipe_for("training.max_steps=1"), folder, Observer())

    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    folder.last_checkpoint.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(DataError, match="cannot be read as a checkpoint"):
        checkpoint.encoder_weights(folder, "last")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [[1, 2], {"weights": {}}, {"encoder": {}, "format": -1}])
def test_a_file_of_something_else_is_named(tmp_path, content):
    folder = RunFolder(tmp_path / "run")
    folder.last_checkpoint.parent.mkdir(parents=True)
    torch.save(content, folder.last_checkpoint)
    with pytest.raises(DataError, match=r"last\.pt is no checkpoint of this version"):
        checkpoint.encoder_weights(folder, "last")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("optimiser", ["adamw", "adam", "rmsprop", "sgd"])
def test_a_resumed_optimiser_takes_the_step_that_it_would_have_taken(
    recipe_for, next_batch, tmp_path, optimiser, device
):
    recipe = recipe_for(f"training.device={device}", f"training.optimiser={optimiser}")
    folder = RunFolder(tmp_path / "run").begin(recipe)
    state = build_state(recipe, open_data(recipe.data))
    for _ in range(3):
        train_step(state, next_batch(state), HealthCheck(state))
    with checkpoint.BackgroundWriter() as writer:
        checkpoint.save_last(state, folder, writer)
    resumed = build_state(recipe, open_data(recipe.data))
    checkpoint.load_last(resumed, folder)
    batch = next_batch(state)
    for each in (state, resumed):
        # Torch has no fused RMSprop.
        assert optimiser == "rmsprop" or bool(each.optimiser.param_groups[0]["fused"]) == (device == "cuda")
        train_step(each, batch, HealthCheck(each))
    for one, other in zip(state.weights, resumed.weights, strict=True):
        torch.testing.assert_close(one, other)


PATIENCE = 60.0
"""Seconds after which a test that waits for something gives up, so that it fails instead of hanging."""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_copy_stays_as_it_is(device):
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(device, memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(layer.parameters())
    values = {"history": [{"R@1": 0.5}], "betas": (0.9, torch.ones(2, device=device)), "none": None}

    def step():
        optimiser.zero_grad()
        layer(torch.randn(2, 3, 8, 8, device=device)).square().sum().backward()
        optimiser.step()

    def content():
        return {"layer": layer.state_dict(), "optimiser": optimiser.state_dict(), **values}

    step()
    expected = io.BytesIO()
    torch.save(content(), expected)
    copied, arrive = copied_to_host(content())
    step()  # changes every tensor in place, and on a GPU is begun before the copy has arrived
    values["history"][0]["R@1"] = 0.7
    values["history"].append({})
    values["betas"][1].zero_()
    arrive()
    expected.seek(0)
    reference = torch.load(expected, map_location="cpu", weights_only=True)
    assert_same(copied, reference)
    assert copied["layer"]._metadata == layer.state_dict()._metadata
    assert copied["layer"]["0.weight"].stride() == layer[0].weight.stride()
    assert not copied["layer"]["0.weight"].equal(layer[0].weight.cpu()), "the step has changed the original"


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.device.type == "cpu"
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


def test_a_tensor_that_is_there_twice_is_copied_once():
    weight = torch.ones(3)
    copied, _ = copied_to_host({"one": weight, "other": weight.detach(), "part": weight[:2]})
    assert copied["one"] is copied["other"]
    assert copied["part"] is not copied["one"]
    assert copied["one"].data_ptr() != weight.data_ptr()


def test_writes_keep_their_order_and_end_with_the_first_that_fails():
    done = []

    def fail():
        raise OutputError("no room")

    writer = BackgroundWriter()
    writer.put_off(lambda: done.append("superseded weights"))
    writer.put_off(lambda: done.append("weights"))
    writer.begin(lambda: done.append("checkpoint"))
    writer.put_off(fail)
    writer.begin(lambda: done.append("checkpoint that points at what is missing"))
    with pytest.raises(OutputError, match="no room"):
        writer.wait()
    writer.wait()  # raised once
    assert done == ["weights", "checkpoint"]


def test_a_failure_is_known_at_the_next_look():
    def fail():
        raise OutputError("no room")

    def look(writer):
        for _ in range(int(PATIENCE / 0.01)):
            writer.check()
            time.sleep(0.01)

    writer = BackgroundWriter()
    writer.begin(fail)
    with pytest.raises(OutputError, match="no room"):
        look(writer)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, ValueError])
def test_whoever_leaves_waits(error):
    done, leaving = [], threading.Event()

    def slow():
        assert leaving.wait(PATIENCE)
        done.append(True)

    def work():
        with BackgroundWriter() as writer:
            writer.begin(slow)
            leaving.set()
            if error is not None:
                raise error

    if error is None:
        work()
    else:
        with pytest.raises(error):
            work()
    assert done


def test_an_error_of_training_is_not_hidden_by_one_of_writing():
    def fail():
        raise OutputError("no room")

    def work():
        with BackgroundWriter() as writer:
            writer.begin(fail)
            raise ValueError("training")

    with pytest.raises(ValueError, match="training"):
        work()


class HeldUp(Observer):
    """Lets the first checkpoint be written only when training is some steps further."""

    def __init__(self, monkeypatch, until):
        self.until, self.go_on, self.steps_of, self.seen = until, threading.Event(), [], {}
        monkeypatch.setattr(checkpoint, "write_atomically", self.write)

    def write(self, path, content):
        assert threading.current_thread() is not threading.main_thread()
        assert self.go_on.wait(PATIENCE), "training waits for a checkpoint"
        saved = torch.load(io.BytesIO(content), weights_only=True)
        self.steps_of.append((path.name, saved["step"]))
        assert saved["encoder"].keys() == self.seen[saved["step"]].keys()
        assert all(torch.equal(value, self.seen[saved["step"]][name]) for name, value in saved["encoder"].items())
        write_atomically(path, content)

    def on_step(self, state, loss, images):
        self.seen[state.step] = {name: value.clone() for name, value in state.encoder.state_dict().items()}
        if state.step == self.until:
            self.go_on.set()


def test_training_goes_on_while_a_checkpoint_is_written(state_for, tmp_path, monkeypatch):
    """Four steps to an epoch; the first checkpoint, best weights and all, is held up until two steps later."""
    state = state_for("training.epochs=2")
    folder, observer = RunFolder(tmp_path / "run").begin(state.recipe), HeldUp(monkeypatch, until=6)
    fit(state, folder, observer)
    assert ("last.pt", 4) in observer.steps_of
    last = [step for name, step in observer.steps_of if name == "last.pt"]
    assert last == [4, 8], "each once, the end too"
    assert observer.steps_of[0] == ("best-00000004.pt", 4), "before the checkpoint that points at it"
    assert torch.load(folder.last_checkpoint, weights_only=True)["step"] == 8


SCORES = (0.1, 0.2, 0.1, 0.5, 0.4, 0.2, 0.6, 0.3)
"""Before training and after each of seven steps."""


def with_scores(state, monkeypatch):
    scores = iter([{"R@1": share} for share in SCORES])
    monkeypatch.setattr(state, "score", lambda *_, **__: next(scores))
    return state


def test_a_slow_disk_holds_up_neither_training_nor_what_is_best(state_for, tmp_path, monkeypatch):
    """An evaluation after each step, while the first checkpoint is being written until the last step."""
    changes = ("training.epochs=2", "training.max_steps=7", "training.evaluate_every_steps=1", "protocol.select_by=R@1")
    state = with_scores(state_for(*changes), monkeypatch)
    folder, observer = RunFolder(tmp_path / "run").begin(state.recipe), HeldUp(monkeypatch, until=7)
    fit(state, folder, observer)
    written = [("best-00000001.pt", 1), ("last.pt", 1), ("best-00000006.pt", 6), ("last.pt", 7)]
    assert observer.steps_of == written, "not that of the third step, which was superseded before its turn"
    assert [file.name for file in folder.checkpoints.glob("best-*")] == ["best-00000006.pt"]
    assert len(folder.evaluations()) == 8


def test_a_run_goes_on_from_before_the_evaluations_that_were_passed_over(state_for, tmp_path, monkeypatch):
    changes = ("training.epochs=2", "training.max_steps=7", "training.evaluate_every_steps=1", "protocol.select_by=R@1")
    whole = with_scores(state_for(*changes), monkeypatch)
    fit(whole, RunFolder(tmp_path / "whole").begin(whole.recipe), Observer())

    class Killed(HeldUp):
        def on_step(self, state, loss, images):
            super().on_step(state, loss, images)
            if state.step == 5:
                self.go_on.set()
                raise SystemExit

    state = with_scores(state_for(*changes), monkeypatch)
    folder = RunFolder(tmp_path / "run").begin(state.recipe)
    with monkeypatch.context() as patch:
        observer = Killed(patch, until=None)
        with pytest.raises(SystemExit):
            fit(state, folder, observer)
    assert [step for name, step in observer.steps_of if name == "last.pt"] == [1]
    again = state_for(*changes)
    checkpoint.load_last(again, folder)
    assert again.step == 1
    scores = iter([{"R@1": share} for share in SCORES[2:]])
    monkeypatch.setattr(again, "score", lambda *_, **__: next(scores))
    fit(again, folder, Observer())
    assert again.best["step"] == whole.best["step"] == 6
    for name, value in whole.encoder.state_dict().items():
        assert torch.equal(value, again.encoder.state_dict()[name]), name


def test_an_interrupted_run_ends_when_its_checkpoint_is_written(state_for, tmp_path, monkeypatch):
    state = state_for("training.epochs=2")
    folder, observer = RunFolder(tmp_path / "run").begin(state.recipe), HeldUp(monkeypatch, until=None)

    def on_step(state, loss, images):
        HeldUp.on_step(observer, state, loss, images)
        if state.step == 2:
            signal.raise_signal(signal.SIGTERM)
            threading.Timer(0.3, observer.go_on.set).start()

    monkeypatch.setattr(observer, "on_step", on_step)
    with pytest.raises(InterruptedRunError, match="after step 2"):
        fit(state, folder, observer)
    assert torch.load(folder.last_checkpoint, weights_only=True)["step"] == 2


@pytest.mark.parametrize("failing", ["last.pt", "best-00000008.pt"])
def test_a_checkpoint_that_cannot_be_written_ends_the_run_and_leaves_the_one_before(
    state_for, tmp_path, monkeypatch, failing
):
    state = state_for("training.epochs=3", "protocol.select_by=R@1")
    folder = RunFolder(tmp_path / "run").begin(state.recipe)
    scores = iter([{"R@1": share} for share in (0.1, 0.2, 0.3, 0.4, 0.5)])
    monkeypatch.setattr(state, "score", lambda *_, **__: next(scores))
    monkeypatch.setattr(BackgroundWriter, "is_busy", False)  # or the second may be passed over

    def write(path, content):
        step = torch.load(io.BytesIO(content), weights_only=True)["step"]
        if step == 8 and path.name == failing:
            raise OutputError(f"cannot write {path}: No space left on device")
        write_atomically(path, content)

    monkeypatch.setattr(checkpoint, "write_atomically", write)
    with pytest.raises(OutputError, match=f"{failing}: No space left on device"):
        fit(state, folder, Observer())
    left = torch.load(folder.last_checkpoint, weights_only=True)
    assert left["step"] == 4
    assert folder.best_checkpoint(left["best"]["step"]).exists()
