"""Runs are trained, kept, resumed and recorded; several at a time in processes with a stand-in for training."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
import time

import pytest
import torch
from rich.console import Console
from tests.rows import Rows

from nearkin.disk import sole_writer_of
from nearkin.errors import BusyError, InterruptedRunError, RecipeError, TrainingError
from nearkin.runs.folder import RunFolder
from nearkin.studies import study
from nearkin.studies import worker_pool as pool
from nearkin.studies.rows import chosen_names
from nearkin.studies.study import Row, planned_runs
from nearkin.studies.tables import results_of
from nearkin.studies.worker_pool import last_log_line
from nearkin.training.observers import ConsoleObserver
from nearkin.training.recipe_check import load_recipe


def run_rows(rows, folder, seeds, **options):
    return Rows(rows, folder, seeds).run(**options)


def test_every_row_and_seed_has_a_folder_and_finished_runs_are_kept(make_row, tmp_path, monkeypatch):
    rows = [make_row("a"), make_row("b", "objective.name=mpa", "objective.proxies_per_class=2")]
    console = Console(file=io.StringIO(), width=200)
    outcomes = run_rows(rows, tmp_path, [0, 7], console=console)
    assert [(o.row, o.seed, o.status) for o in outcomes] == [
        (row, seed, "finished") for seed in (0, 7) for row in ("a", "b")
    ]
    assert console.file.getvalue().count("The other 3 runs will take about") == 1
    scores = json.loads((tmp_path / "b" / "seed-7" / "scores.json").read_text())
    assert (scores["objective"], scores["seed"], scores["steps"]) == ("mpa", 7, 4)
    monkeypatch.setattr(study, "run", lambda *_, **__: pytest.fail("nothing should be trained"))
    assert run_rows(rows, tmp_path, [0, 7]) == outcomes
    assert len(run_rows(rows[1:], tmp_path, [0, 7])) == 2


def test_an_interruption_loses_nothing(make_row, tmp_path, monkeypatch):
    rows = [make_row("a"), make_row("b", "objective.name=vcpa")]
    genuine = ConsoleObserver.on_step

    def stop_in_b(self, state, loss, images):
        genuine(self, state, loss, images)
        if state.recipe.objective.name == "vcpa" and state.step == 3:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(ConsoleObserver, "on_step", stop_in_b)
        with pytest.raises(InterruptedRunError, match="1 of 2 runs finished"):
            run_rows(rows, tmp_path / "study", [0])
    begun = planned_runs(rows, tmp_path / "study", [0])[1]
    assert (begun.outcome.status, begun.outcome.reason) == ("unfinished", "begun, not finished")
    run_rows(rows, tmp_path / "study", [0])
    run_rows(rows[1:], tmp_path / "straight", [0])
    ours, straight = (RunFolder(tmp_path / folder / "b" / "seed-0").scores() for folder in ("study", "straight"))
    assert (ours.test, ours.last["loss"]) == (straight.test, straight.last["loss"])


def test_a_run_that_fails_is_recorded_and_the_others_continue(make_row, tmp_path, monkeypatch):
    genuine = study.run
    trouble = {"diverges": TrainingError("the loss became nan"), "odd": ValueError("embeddings must be finite")}

    def run(recipe, folder, *arguments, **options):
        if folder.path.parent.name in trouble:
            raise trouble[folder.path.parent.name]
        return genuine(recipe, folder, *arguments, **options)

    rows = [make_row("missing", "data.source=./nowhere"), *map(make_row, trouble), make_row("fine")]
    with monkeypatch.context() as patch:
        patch.setattr(study, "run", run)
        missing, diverges, odd, fine = run_rows(rows, tmp_path, [0])
    assert (missing.status, missing.exit_code) == ("skipped", 3)
    assert "nowhere" in missing.reason
    assert (diverges.status, diverges.exit_code, diverges.reason) == ("failed", 5, "the loss became nan")
    assert (odd.status, odd.exit_code) == ("failed", 1)
    assert (fine.status, fine.reason) == ("finished", None)
    results = {result.row.name: result for result in results_of(planned_runs(rows, tmp_path, [0]))}
    assert (results["missing"].problems, results["missing"].status) == ([missing], "skipped")
    assert (results["fine"].problems, results["fine"].status) == ([], "finished")
    # What was missing may be there now: the next call tries again.
    assert run_rows([make_row("missing")], tmp_path, [0])[0].status == "finished"


def test_an_error_that_nobody_can_put_right_is_raised(make_row, tmp_path, monkeypatch):
    def bug(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr("nearkin.runs.run.fit", bug)
    with pytest.raises(RuntimeError, match="a bug"):
        run_rows([make_row("odd")], tmp_path, [0])


def test_another_recipe_is_an_error_that_names_the_key_and_overwrite_runs_only_what_changed(make_row, tmp_path):
    run_rows([make_row("a"), make_row("b")], tmp_path, [0])
    before = (tmp_path / "a" / "seed-0" / "scores.json").stat().st_mtime_ns
    rows = [make_row("a"), make_row("b", "objective.alpha=16")]
    with pytest.raises(RecipeError, match=r"objective\.alpha was None, is 16\.0"):
        run_rows(rows, tmp_path, [0])
    with pytest.raises(RecipeError):
        results_of(planned_runs(rows, tmp_path, [0]))
    run_rows(rows, tmp_path, [0], overwrite=True)
    assert RunFolder(tmp_path / "b" / "seed-0").recipe().objective.options == {"alpha": 16.0}
    assert (tmp_path / "a" / "seed-0" / "scores.json").stat().st_mtime_ns == before


def test_what_cannot_be_run_is_refused_before_anything_is(make_row, tmp_path):
    with pytest.raises(RecipeError, match="row 'b'"):
        run_rows([make_row("a"), make_row("b", "training.device=tpu")], tmp_path / "study", [0])
    with pytest.raises(RecipeError, match="jobs must be at least 1, got 0"):
        run_rows([make_row("a")], tmp_path / "study", [0], jobs=0)
    for rows, seeds in (([make_row("a")] * 2, [0]), ([], [0]), ([make_row("a")], []), ([make_row("a")], [1, 1])):
        with pytest.raises(RecipeError):
            run_rows(rows, tmp_path / "study", seeds)
    with pytest.raises(RecipeError, match="did you mean 'proxy_anchor'"):
        chosen_names(["proxy_ancor"], ["proxy_anchor", "vcpa"])
    assert not (tmp_path / "study").exists()


def test_each_seed_holds_out_its_own_validation_classes_and_each_fold_has_its_own_seed(tmp_path):
    def held_out(*changes):
        row = Row("row", "Row", load_recipe({}, ["protocol.name=validation", *changes]))
        return [planned.recipe.protocol.validation_seed for planned in planned_runs([row], tmp_path, (0, 1, 2))]

    assert held_out() == [None, 1, 2]
    assert held_out("protocol.split_seed=4") == [None, 5, 6]
    assert held_out("protocol.validation_seed=7") == [7, 7, 7]
    assert held_out("protocol.name=mlrc") == [None, None, None]
    check = Row("row", "Row", load_recipe({}, ["protocol.folds=2"]), mlrc=True)
    models = planned_runs([check], tmp_path, (3, 4))
    assert [(model.recipe.protocol.fold, model.recipe.training.seed) for model in models] == [
        (0, 3),
        (1, 4),
        (0, 5),
        (1, 6),
    ]
    assert models[3].folder.path == tmp_path / "row" / "fold-1" / "seed-6"
    assert {model.recipe.protocol.name for model in models} == {"mlrc"}


STAND_IN = """
import os, pathlib, signal, sys, time
assert sys.argv[1:4] == ["-m", "nearkin", "train"] and sys.argv[5] == "-o", sys.argv
assert sys.argv[7:] == ["--resume", "--verbose", "--no-figure"], sys.argv
folder = pathlib.Path(sys.argv[6])
name = folder.parent.name
tries = folder / "tries"
tries.write_text(tries.read_text() + "." if tries.exists() else ".")
(folder / "began").write_text(str(time.time()))
print("epoch 1", flush=True)
if name == "late":
    print("error: it is written by process 7")
    sys.exit(6)
if name == "stopped":
    def save(*_):
        (folder / "saved").touch()
        sys.exit(130)

    signal.signal(signal.SIGTERM, save)
    (folder / "ready").touch()
    time.sleep(250)
if len(tries.read_text()) < {"large": 2, "killed": 3, "huge": 99}.get(name, 1):
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    print("error: the GPU's memory is full")
    sys.exit(8)
(folder / "scores.json").write_text("{}")
(folder / "ended").write_text(str(time.time()))
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Instead of ``nearkin train``, a script that starts at once and does what the row's name says."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    monkeypatch.setattr(pool, "PYTHON", (sys.executable, str(tmp_path / "stand_in.py")))
    monkeypatch.setattr(pool, "POLL_SECONDS", 0.02)


def test_runs_that_other_processes_are_at_are_left_to_them(make_row, tmp_path, stand_in):
    rows = [make_row("busy"), make_row("late"), make_row("fine")]
    with sole_writer_of(tmp_path / "busy" / "seed-0"):
        busy, late, fine = run_rows(rows, tmp_path, [0], jobs=2)
        (here,) = run_rows(rows[:1], tmp_path, [0])
    assert (busy.status, busy.exit_code) == (here.status, here.exit_code) == ("unfinished", BusyError.exit_code)
    assert str(os.getpid()) in busy.reason
    assert (late.status, late.exit_code, late.reason) == ("unfinished", 6, "it is written by process 7")
    assert (fine.status, fine.parallel_runs) == ("finished", 2)
    assert not (tmp_path / "late" / "seed-0" / "study.json").exists(), "the other process will say how it ended"


def test_runs_that_find_memory_full_are_run_again_with_half_as_many_at_a_time(make_row, tmp_path, stand_in):
    rows = [make_row(name) for name in ("fine", "large", "killed", "huge")]
    *ended, huge = run_rows(rows, tmp_path, [0], jobs=4)
    assert [(outcome.status, outcome.parallel_runs) for outcome in ended] == [("finished", n) for n in (4, 2, 1)]
    assert (huge.status, huge.exit_code, huge.reason) == ("failed", 8, "the GPU's memory is full")
    tries = {row.name: len((tmp_path / row.name / "seed-0" / "tries").read_text()) for row in rows}
    assert tries == {"fine": 1, "large": 2, "killed": 3, "huge": 3}, "alone is the last try"
    spans = [
        [float((tmp_path / row.name / "seed-0" / at).read_text()) for at in ("began", "ended")] for row in rows[:3]
    ]
    assert len(spans) == 3


def test_a_signal_lets_every_run_save_itself_and_starts_no_more(make_row, tmp_path, stand_in):
    def interrupt():
        while len(list(tmp_path.glob("stopped/*/ready"))) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(InterruptedRunError, match="0 of 3 runs finished"):
        run_rows([make_row("stopped")], tmp_path, [0, 1, 2], jobs=2)
    watcher.join()
    assert sorted(path.parent.name for path in tmp_path.glob("stopped/*/saved")) == ["seed-0", "seed-1"]
    assert not (tmp_path / "stopped" / "seed-2").exists()


def test_two_at_a_time_give_the_scores_of_one_at_a_time(make_row, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))  # as here, for the same last bits
    rows = [make_row("a"), make_row("broken", "data.source=./nowhere")]
    a, broken = run_rows(rows, tmp_path / "two", [3], jobs=2)
    assert (a.status, a.parallel_runs) == ("finished", 2)
    assert (broken.status, broken.exit_code) == ("skipped", 3)
    assert "nowhere" in broken.reason
    run_rows(rows[:1], tmp_path / "one", [3])
    two, one = (RunFolder(tmp_path / folder / "a" / "seed-3").scores() for folder in ("two", "one"))
    assert two.test == pytest.approx(one.test, abs=1e-3)
    assert (two.steps, two.conditions.seed) == (4, 3)


def test_the_last_line_of_a_log(tmp_path):
    log = tmp_path / "log"
    assert str(log) in last_log_line(log)
    log.write_text("epoch 1\nerror: first\nerror: no data\nlooked for:\n  a folder\n")
    assert last_log_line(log) == "no data\nlooked for:\n  a folder"
    log.write_text("Traceback\nValueError: odd\n")
    assert last_log_line(log) == "ValueError: odd"
