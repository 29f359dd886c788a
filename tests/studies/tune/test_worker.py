"""A trial in a process of its own: as it would be here, gone with its parent, and its error said last."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from nearkin.errors import DataError
from nearkin.runs.folder import RunFolder
from nearkin.studies.pool import last_words
from nearkin.studies.tune import read_tuning, trials, worker
from nearkin.studies.tune.plan import validate_plan
from nearkin.training.interrupt import StopRequest


@pytest.fixture
def begun(make_plan, tmp_path):
    """The folder of a search whose first trial has its values and no more."""
    plan = make_plan(changes=["training.max_steps=2"])
    folder = tmp_path / "search"
    folder.mkdir()
    validate_plan(plan, folder)
    assert trials.ask(plan, trials.open_study(plan, folder)) == 0
    return folder


def test_the_trial_is_trained_to_its_end(begun, make_plan, tune, tmp_path):
    command = [sys.executable, "-m", "nearkin.studies.tune.worker", str(begun), "0"]
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}  # the last bits depend on it, and with them R@1
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | threads)
    assert done.returncode == 0, done.stderr
    assert "epoch" in done.stdout, "what is said of its evaluations"
    (trial,) = read_tuning(begun).trials
    (here,) = tune(make_plan(changes=["training.max_steps=2"]), tmp_path / "here", trials=1).trials
    assert (trial.status, trial.values, trial.scores) == ("finished", here.values, here.scores)
    assert RunFolder(begun / "trials" / "000" / "seed-0").is_finished


def test_an_error_is_the_last_thing_said(begun, monkeypatch, capsys, tmp_path):
    def missing(recipe, *_, **__):
        print("epoch 1\nerror: a smaller one")
        raise DataError(f"there are no weights [in] {'a/long/path' * 30}\nlooked for: them")

    watched = []
    monkeypatch.setattr(worker, "stop_with_parent", watched.append)
    monkeypatch.setattr(trials, "run", missing)
    with pytest.raises(SystemExit) as stopped:
        worker.main(str(begun), "0")
    assert stopped.value.code == DataError.exit_code
    assert watched == [os.getppid()]
    log = tmp_path / "log"
    log.write_text(capsys.readouterr().out)
    assert last_words(log) == f"there are no weights [in] {'a/long/path' * 30}\nlooked for: them"
    assert read_tuning(begun).trials[0].status == "unfinished"


def test_it_ends_when_the_one_that_started_it_is_gone(monkeypatch):
    parents = iter([7, 7, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    with StopRequest() as stop:
        worker.stop_with_parent(7, every=0)
        assert stop.requested
    assert list(parents) == [], "it looked until another process had taken its parent's place"
