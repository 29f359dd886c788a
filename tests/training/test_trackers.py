"""The libraries of ``training.track`` get what a run gives, and one run for a run that was resumed."""

from __future__ import annotations

import importlib
import io
import json
import struct
import subprocess
import sys

import pytest
from rich.console import Console

from nearkin.errors import MissingExtraError, Notice, RecipeError
from nearkin.runs.run import run
from nearkin.training.observers import ConsoleObserver
from nearkin.training.trackers import trackers

NAMES = ("tensorboard", "wandb", "mlflow")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch, tmp_path):
    for name in ("WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()


def train(recipe, folder, *, resume=False, also=()):
    with ConsoleObserver(Console(file=io.StringIO())) as bar:
        bar.others += [*trackers(recipe, folder), *also]
        return run(recipe, folder, bar, resume=resume)


@pytest.fixture
def tracked(recipe_for, tmp_path):
    """Train two steps with one tracker and resume for a third; returns the folder and the last scores."""

    def go(name):
        pytest.importorskip(name)
        steps = ("training.max_steps=2", "training.max_steps=3")
        first, second = (recipe_for(f"training.track={name}", count) for count in steps)
        train(first, tmp_path / "run")
        return tmp_path / "run", train(second, tmp_path / "run", resume=True)

    return go


def test_tensorboard(tracked):
    folder, scores = tracked("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]
    assert [event.step for event in events.Scalars("evaluation/R@1")] == [0, 2, 3]
    assert events.Scalars("test/R@1")[-1].value == pytest.approx(scores.test["R@1"])
    assert b"proxy_anchor" in events.Tensors("recipe/text_summary")[0].tensor_proto.string_val[0]


def records(file):
    """The records of a ``.wandb`` file: after a header, blocks of 32 KiB with pieces of them, as LevelDB's log."""
    from wandb.proto import wandb_internal_pb2

    content, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if (left := 2**15 - at % 2**15) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def test_wandb(tracked, monkeypatch):
    folder, scores = tracked("wandb")
    sys.modules["wandb"].teardown()  # W&B's own process writes the end of a file when it ends, not before
    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2, "a file for each sitting"
    assert {file.stem for file in files} == {f"run-{(folder / 'wandb-id.txt').read_text()}"}
    rows, config, exit_codes = [], {}, []
    for file in files:
        for record in records(file):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                assert (record.run.project, record.run.display_name) == ("nearkin", "run")
            if kind in ("run", "config"):
                update = record.run.config if kind == "run" else record.config
                config |= {item.key or item.nested_key[0]: json.loads(item.value_json) for item in update.update}
            elif kind == "history":
                items = record.history.item
                rows.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
            elif kind == "exit":
                exit_codes.append(record.exit.exit_code)
    assert [row["step"] for row in rows if "loss" in row] == [1, 2, 3]
    assert [row["step"] for row in rows if "evaluation/R@1" in row] == [0, 2, 3]
    assert rows[-1]["test/R@1"] == pytest.approx(scores.test["R@1"])
    assert config["training"]["max_steps"] == 3
    assert exit_codes == [0, 0]


def test_mlflow(tracked):
    folder, scores = tracked("mlflow")
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder.parent / 'mlflow.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("nearkin").experiment_id])
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params["objective.name"] == "proxy_anchor"
    assert (found.data.params["training.max_steps"], found.data.tags["training.max_steps"]) == ("2", "3")

    def steps(name):
        return [metric.step for metric in client.get_metric_history(found.info.run_id, name)]

    assert (steps("loss"), steps("evaluation/R_at_1")) == ([1, 2, 3], [0, 2, 3])
    assert found.data.metrics["test/R_at_1"] == pytest.approx(scores.test["R@1"])


def test_mlflow_begins_again_where_its_store_is_another(tracked, recipe_for, tmp_path, monkeypatch):
    folder, _ = tracked("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'other.db'}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    train(recipe_for("training.track=mlflow", "training.max_steps=4"), folder, resume=True)
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'other.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert [metric.step for metric in client.get_metric_history(found.info.run_id, "loss")] == [4]


class Library:
    """A tracker's hooks, each of which may fail."""

    def __init__(self, tracker, fails=()):
        self.calls = []
        for name in ("begin", "log", "end"):
            setattr(tracker, name, self.hook(name, name in fails))

    def hook(self, name, fails):
        def call(*arguments):
            self.calls.append((name, arguments))
            if fails:
                raise OSError("no route to it")

        return call


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_trackers_are_closed_also_where_a_run_is_interrupted(recipe_for, tmp_path, error):
    from nearkin.training.state import Observer

    class Stop(Observer):
        def on_step(self, state, loss, images):
            if error is not None:
                raise error

    recipe = recipe_for("training.track=tensorboard", "training.max_steps=1")
    (tracker,) = trackers(recipe, tmp_path / "run")
    library = Library(tracker)
    if error is None:
        train(recipe.with_changes({"training.track": []}), tmp_path / "run", also=[tracker])
    else:
        with pytest.raises(error):
            train(recipe.with_changes({"training.track": []}), tmp_path / "run", also=[tracker, Stop()])
    assert library.calls[-1] == ("end", (error is not None,))
    assert [name for name, _ in library.calls].count("end") == 1


def test_a_library_that_fails_ends_a_run_before_the_first_step_alone(recipe_for, tmp_path):
    recipe = recipe_for("training.track=tensorboard", "training.max_steps=1")
    untracked = recipe.with_changes({"training.track": []})
    (tracker,) = trackers(recipe, tmp_path / "a")
    Library(tracker, fails=["begin"])
    with pytest.raises(RecipeError, match="no route to it"):
        train(untracked, tmp_path / "a", also=[tracker])
    (tracker,) = trackers(recipe, tmp_path / "b")
    library = Library(tracker, fails=["log"])
    with pytest.warns(Notice, match="no longer tracks"):
        scores = train(untracked, tmp_path / "b", also=[tracker])
    assert scores.test
    assert [name for name, _ in library.calls] == ["begin", "log"]


@pytest.mark.parametrize("name", NAMES)
def test_without_its_package_the_extra_is_named(recipe_for, tmp_path, monkeypatch, name):
    def refuse(module):
        raise ImportError(f"No module named {module!r}")

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(MissingExtraError, match=rf"nearkin\[{name}\]"):
        trackers(recipe_for(f"training.track={name}"), tmp_path)


def test_a_run_that_tracks_nothing_imports_none_of_them():
    code = "import sys, nearkin.training.trackers; print(*{'wandb', 'mlflow', 'tensorboard'} & set(sys.modules))"
    assert not subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
