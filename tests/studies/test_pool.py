"""With a stand-in for ``nearkin train`` that starts at once and does what its recipe's seed says."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial

import pytest
from rich.console import Console

from nearkin.errors import InterruptedRunError
from nearkin.runs.folder import RunFolder
from nearkin.studies import pool, starter
from nearkin.studies.pool import last_words, progress_of, run_side_by_side, share_done, training_job
from nearkin.training.recipes import load_recipe

STAND_IN = """
import pathlib, signal, sys, time
_, *module, verb, recipe, _, folder, first, second, third = sys.argv
assert [*module, verb] == ["-m", "nearkin", "train"], sys.argv
assert [first, second, third] == ["--resume", "--verbose", "--no-picture"], sys.argv
folder = pathlib.Path(folder)
seed = int(recipe_text.split("seed: ")[1].split()[0]) if (recipe_text := pathlib.Path(recipe).read_text()) else 0
(folder / "began").write_text(str(time.time()))
print("some line", flush=True)
if seed == 1:
    print("error: the loss became nan", file=sys.stderr)
    sys.exit(5)
if seed == 2:
    signal.raise_signal(signal.SIGKILL)
if seed == 3:
    def save(*_):
        (folder / "saved").touch()
        sys.exit(130)

    signal.signal(signal.SIGTERM, save)
    (folder / "evaluations.csv").write_text("epoch,step,loss,R@1,seconds\\n1.0,5,0.5,0.25,3.0\\n")
    time.sleep(250)
if seed == 4:  # two that wait for each other to begin: one at a time would wait in vain
    other = folder.parent / str(int(folder.name) ^ 1) / "began"
    end = time.monotonic() + 120
    while not other.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
(folder / "scores.json").write_text("{}")
(folder / "ended").write_text(str(time.time()))
"""


@dataclass
class Task:
    seed: int
    folder: RunFolder

    @property
    def recipe(self):
        return load_recipe({}, [f"training.seed={self.seed}", "training.epochs=4"])

    @property
    def label(self):
        return f"seed {self.seed}"


@pytest.fixture
def train(tmp_path, monkeypatch):
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.setattr(starter, "PYTHON", (sys.executable, str(script)))
    monkeypatch.setattr(pool, "POLL_SECONDS", 0.02)

    def call(seeds, at_once, console=None):
        tasks = [Task(seed, RunFolder(tmp_path / str(place))) for place, seed in enumerate(seeds)]
        ends = []

        def jobs():
            for task in tasks:
                task.folder.begin(task.recipe)
                yield training_job(task.label, task.recipe, task.folder, partial(ended, task.seed))

        def ended(seed, code, words):
            ends.append((seed, code, words))

        run_side_by_side(jobs(), at_once=at_once, total=len(seeds), console=console or Console(quiet=True))
        return tasks, ends

    return call


def test_as_many_at_a_time_as_asked_for_and_no_more(train):
    tasks, ends = train([4, 4, 4, 4], 2)
    assert [code for _, code, _ in ends] == [0, 0, 0, 0]
    spans = [[float((task.folder.path / name).read_text()) for name in ("began", "ended")] for task in tasks]
    at_a_time = [sum(began <= moment < ended for began, ended in spans) for moment, _ in spans]
    assert max(at_a_time) == 2
    assert (tasks[0].folder.path / "output.log").read_text().startswith("some line")


def test_a_run_that_fails_says_why_and_the_others_go_on(train):
    _, ends = train([1, 2, 0], 2)
    by_seed = {seed: (code, words) for seed, code, words in ends}
    assert by_seed[1] == (5, "the loss became nan")
    assert by_seed[2][0] == -9
    assert "killed by signal 9" in by_seed[2][1]
    assert by_seed[0][0] == 0


def test_a_signal_lets_every_run_save_itself_and_starts_no_more(train, tmp_path):
    def interrupt():
        while not ((tmp_path / "0" / "evaluations.csv").exists() and (tmp_path / "1" / "evaluations.csv").exists()):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    text = Console(file=open(os.devnull, "w"), force_terminal=True, width=200, record=True)  # noqa: SIM115
    with pytest.raises(InterruptedRunError):
        train([3, 3, 0], 2, text)
    watcher.join()
    assert (tmp_path / "0" / "saved").exists()
    assert (tmp_path / "1" / "saved").exists()
    assert not (tmp_path / "2").exists()
    assert "begins: seed 3" in text.export_text()


def test_progress_shows_epoch_score_and_time_left(tmp_path):
    task = Task(0, RunFolder(tmp_path))
    job = training_job(task.label, task.recipe, task.folder, lambda code, words: None)
    assert job.look() is None
    task.folder.write_evaluations([{"epoch": 1.0, "step": 5, "loss": 0.5, "R@1": 0.25, "seconds": 30.0}])
    # One of four epochs in 30 seconds leaves 90.
    assert progress_of(task.recipe, task.folder) == (0.25, "epoch 1  step 5  R@1 25.0  1:30 left")
    assert job.look() == (0.25, "epoch 1  step 5  R@1 25.0  1:30 left")
    assert job.look() is None, "nothing new"


def test_the_share_that_is_done_counts_steps_where_they_end_the_run():
    recipe = load_recipe({}, ["training.epochs=10", "training.max_steps=20"])
    assert share_done(recipe, {"epoch": 1.0, "step": 5.0}) == 0.25
    assert share_done(recipe, {"epoch": 5.0, "step": 5.0}) == 0.5


def test_last_words(tmp_path):
    log = tmp_path / "log"
    assert "said nothing" in last_words(log)
    log.write_text("epoch 1\nerror: first\nerror: no data\nlooked for:\n  a folder\n")
    assert last_words(log) == "no data\nlooked for:\n  a folder"
    log.write_text("Traceback\nValueError: odd\n")
    assert last_words(log) == "ValueError: odd"
