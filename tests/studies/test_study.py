from __future__ import annotations

import json
import os
import signal
import sys

import pytest
import torch
from rich.console import Console

from nearkin.errors import BusyError, InterruptedRunError, RecipeError, TrainingError
from nearkin.runs.folder import RunFolder
from nearkin.runs.lock import sole_writer_of
from nearkin.studies import pool, starter, study
from nearkin.studies.results import results_of
from nearkin.studies.study import Row, chosen_names, planned_runs, run_all
from nearkin.training.observers import ConsoleObserver
from nearkin.training.recipes import load_recipe


def run_rows(rows, folder, seeds, **options):
    return run_all(planned_runs(rows, folder, seeds), **options)


@pytest.fixture
def forbid_training(monkeypatch):
    def forbid():
        def refuse(*_, **__):
            raise AssertionError("nothing should be trained")

        monkeypatch.setattr(study, "run", refuse)

    return forbid


def test_every_row_and_seed_has_a_folder_and_finished_runs_are_kept(make_row, tmp_path, forbid_training):
    rows = [make_row("a"), make_row("b", "objective.name=mpa", "objective.proxies_per_class=2")]
    outcomes = run_rows(rows, tmp_path / "study", [0, 7])
    assert [(o.row, o.seed, o.status) for o in outcomes] == [
        ("a", 0, "finished"),
        ("b", 0, "finished"),
        ("a", 7, "finished"),
        ("b", 7, "finished"),
    ]
    for name, objective in (("a", "proxy_anchor"), ("b", "mpa")):
        scores = json.loads((tmp_path / "study" / name / "seed-7" / "scores.json").read_text())
        assert (scores["objective"], scores["seed"], scores["steps"]) == (objective, 7, 4)
    forbid_training()
    assert run_rows(rows, tmp_path / "study", [0, 7]) == outcomes
    assert len(run_rows(rows[1:], tmp_path / "study", [0, 7])) == 2


def test_an_interruption_loses_nothing(make_row, tmp_path, monkeypatch):
    rows = [make_row("a"), make_row("b", "objective.name=vcpa")]
    genuine = ConsoleObserver.on_step

    def stop_in_b(self, state, loss, images):
        genuine(self, state, loss, images)
        if state.recipe.objective.name == "vcpa" and state.step == 3:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(ConsoleObserver, "on_step", stop_in_b)
        with pytest.raises(InterruptedRunError, match=r"1 of 2 runs finished.*The same command goes on"):
            run_rows(rows, tmp_path / "study", [0])
    begun = planned_runs(rows, tmp_path / "study", [0])[1]
    assert (begun.outcome.status, begun.outcome.reason) == ("unfinished", "begun, not finished")
    run_rows(rows, tmp_path / "study", [0])
    run_rows(rows, tmp_path / "straight", [0])
    for name in ("a", "b"):
        ours, straight = (RunFolder(tmp_path / folder / name / "seed-0").scores() for folder in ("study", "straight"))
        assert ours.test == straight.test
        assert ours.last["loss"] == straight.last["loss"]


def test_what_cannot_be_run_is_recorded_and_the_rest_goes_on(make_row, tmp_path, monkeypatch):
    rows = [
        make_row("missing", "data.source=./nowhere"),
        make_row("diverges"),
        make_row("overflows", "training.learning_rate=1e30"),
        make_row("fine"),
    ]
    genuine = study.run

    def run(recipe, folder, *arguments, **options):
        if "diverges" in str(folder.path):
            raise TrainingError("the loss became nan at step 3")
        return genuine(recipe, folder, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(study, "run", run)
        missing, diverges, overflows, fine = run_rows(rows, tmp_path / "study", [0])
    assert (missing.status, missing.exit_code) == ("skipped", 3)
    assert "nowhere" in missing.reason
    assert (diverges.status, diverges.exit_code) == ("failed", 5)
    assert diverges.reason == "the loss became nan at step 3"
    assert overflows.status == "failed"
    assert "finite" in overflows.reason or "the loss became" in overflows.reason
    assert (fine.status, fine.reason) == ("finished", None)
    kept = json.loads((tmp_path / "study" / "missing" / "seed-0" / "study.json").read_text())
    assert kept["status"] == "skipped"
    results = {each.row.name: each for each in results_of(planned_runs(rows, tmp_path / "study", [0]))}
    assert results["missing"].seeds == []
    assert results["missing"].problems == [missing]
    assert results["fine"].problems == []
    # What was missing may be there now: the next call tries again.
    rows[0] = make_row("missing")
    assert run_rows(rows[:1], tmp_path / "study", [0])[0].status == "finished"


def test_a_run_that_finds_memory_full_is_recorded_and_an_error_of_another_kind_is_shown(
    make_row, tmp_path, monkeypatch
):
    trouble = {"large": torch.OutOfMemoryError("CUDA out of memory."), "odd": RuntimeError("a bug")}

    def fit(_, folder, __):
        raise trouble[folder.path.parent.name]

    monkeypatch.setattr("nearkin.runs.run.fit", fit)
    (large,) = run_rows([make_row("large")], tmp_path / "study", [0])
    assert (large.status, large.exit_code) == ("failed", 8)
    assert large.reason.startswith("the GPU's memory is full")
    with pytest.raises(RuntimeError, match="a bug"):
        run_rows([make_row("odd")], tmp_path / "study", [0])


def test_another_recipe_is_an_error_that_names_the_key_and_overwrite_runs_only_what_changed(make_row, tmp_path):
    run_rows([make_row("a"), make_row("b")], tmp_path / "study", [0])
    before = (tmp_path / "study" / "a" / "seed-0" / "scores.json").stat().st_mtime_ns
    rows = [make_row("a"), make_row("b", "objective.alpha=16")]
    with pytest.raises(RecipeError, match=r"objective\.alpha was None, is 16\.0.*--overwrite"):
        run_rows(rows, tmp_path / "study", [0])
    with pytest.raises(RecipeError, match="--overwrite"):
        results_of(planned_runs(rows, tmp_path / "study", [0]))
    run_rows(rows, tmp_path / "study", [0], overwrite=True)
    assert RunFolder(tmp_path / "study" / "b" / "seed-0").recipe().objective.options == {"alpha": 16.0}
    assert (tmp_path / "study" / "a" / "seed-0" / "scores.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("objective.alpha=-1", "row 'b'.*alpha must be positive"),
        ("method.name=ccp", r"row 'b'.*set method\.steps_per_problem"),
        ("training.device=tpu", "row 'b'.*unknown device"),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_refused_before_anything_is_run(make_row, tmp_path, override, said):
    objective = "objective.name=vcpa" if "alpha" in override else "objective.name=contrastive"
    with pytest.raises(RecipeError, match=said):
        run_rows([make_row("a"), make_row("b", objective, override)], tmp_path / "study", [0])
    assert not (tmp_path / "study").exists()


def test_mistakes_in_names_and_seeds(make_row, tmp_path):
    rows = [make_row("proxy_anchor"), make_row("vcpa")]
    with pytest.raises(RecipeError, match="did you mean 'proxy_anchor'"):
        chosen_names(["proxy_ancor"], [row.name for row in rows])
    with pytest.raises(RecipeError, match="different names"):
        run_rows([rows[0], rows[0]], tmp_path, [0])
    for seeds in ([], [1, 1]):
        with pytest.raises(RecipeError, match="seeds"):
            run_rows(rows, tmp_path, seeds)


def test_two_at_a_time_give_the_scores_of_one_at_a_time(make_row, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))  # as here, for the same last bits
    rows = [make_row("a"), make_row("broken", "data.source=./nowhere")]
    a, broken = run_rows(rows, tmp_path / "two", [3], jobs=2)
    assert (a.status, a.side_by_side) == ("finished", 2)
    assert (broken.status, broken.exit_code) == ("skipped", 3)
    assert broken.reason.startswith("there is no folder")
    run_rows(rows[:1], tmp_path / "one", [3])
    two, one = (RunFolder(tmp_path / folder / "a" / "seed-3").scores() for folder in ("two", "one"))
    assert two.test == pytest.approx(one.test, abs=1e-3)
    assert (two.steps, two.conditions.seed) == (4, 3)


LATE_OR_FINE = """
import pathlib, sys
folder = pathlib.Path(sys.argv[6])
if folder.parent.name == "late":
    print("error: it is written by process 7")
    sys.exit(6)
(folder / "scores.json").write_text("{}")
"""


def test_runs_that_other_processes_are_at_are_left_to_them(make_row, tmp_path, monkeypatch):
    monkeypatch.setattr(starter, "PYTHON", (sys.executable, "-c", LATE_OR_FINE))
    monkeypatch.setattr(pool, "POLL_SECONDS", 0.02)
    rows = [make_row("busy"), make_row("late"), make_row("fine")]
    with sole_writer_of(tmp_path / "busy" / "seed-0"):
        busy, late, fine = run_rows(rows, tmp_path, [0], jobs=2)
    assert (busy.status, busy.exit_code) == ("unfinished", BusyError.exit_code)
    assert f"written by process {os.getpid()} since" in busy.reason
    assert (late.status, late.exit_code, late.reason) == ("unfinished", 6, "it is written by process 7")
    assert (fine.status, fine.side_by_side) == ("finished", 2)
    assert not (tmp_path / "late" / "seed-0" / "study.json").exists(), "the other process will say how it ended"


FULL_AT_FIRST = """
import pathlib, signal, sys, os
folder = pathlib.Path(sys.argv[6])
tries = folder / "tries"
tries.write_text(tries.read_text() + "." if tries.exists() else ".")
if len(tries.read_text()) < {"fine": 1, "large": 2, "killed": 3, "huge": 99}[folder.parent.name]:
    if folder.parent.name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    print("error: the GPU's memory is full")
    sys.exit(8)
(folder / "scores.json").write_text("{}")
"""


def test_runs_that_find_memory_full_are_run_again_with_half_as_many_at_a_time(make_row, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(starter, "PYTHON", (sys.executable, "-c", FULL_AT_FIRST))
    monkeypatch.setattr(pool, "POLL_SECONDS", 0.02)
    rows = [make_row(name) for name in ("fine", "large", "killed", "huge")]
    fine, large, killed, huge = run_rows(rows, tmp_path, [0], jobs=4, console=Console(width=200))
    assert [(each.status, each.side_by_side) for each in (fine, large, killed)] == [
        ("finished", 4),
        ("finished", 2),
        ("finished", 1),
    ]
    assert (huge.status, huge.exit_code, huge.reason) == ("failed", 8, "the GPU's memory is full")
    tries = {row.name: len((tmp_path / row.name / "seed-0" / "tries").read_text()) for row in rows}
    assert tries == {"fine": 1, "large": 2, "killed": 3, "huge": 3}, "alone is the last try"
    said = capsys.readouterr().out
    assert "memory was full 4 at a time: 3 again, 2 at a time" in said
    assert "memory was full 2 at a time: 2 again, 1 at a time" in said


def test_each_seed_of_a_study_holds_out_validation_classes_of_its_own(tmp_path):
    def held_out(*changes):
        row = Row("row", "Row", load_recipe({}, ["protocol.name=validation", *changes]))
        return [planned.recipe.protocol.validation_seed for planned in planned_runs([row], tmp_path, (0, 1, 2))]

    assert held_out() == [None, 1, 2]
    assert held_out("protocol.split_seed=4") == [None, 5, 6]
    assert held_out("protocol.validation_seed=7") == [7, 7, 7]
    assert held_out("protocol.name=mlrc") == [None, None, None]
