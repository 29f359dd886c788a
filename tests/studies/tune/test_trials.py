"""What happens to trials, with a stand-in for training whose scores follow from the learning rate."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from nearkin.errors import BusyError, DataError, InterruptedRunError, RecipeError, TrainingError
from nearkin.runs.lock import sole_writer_of
from nearkin.studies import pool
from nearkin.studies.starter import Starter
from nearkin.studies.tune import read_tuning, trials

RATES = "training.learning_rate=0.5,0.6,0.7,0.8,0.9,0.1,0.2"
EVALUATIONS = 6


@pytest.fixture
def stand_in(monkeypatch):
    """A score of rate × k / 6 at the k-th evaluation; ``trouble[rate]`` is raised at the fourth."""
    seen = SimpleNamespace(runs=[], trouble={})

    def train(recipe, folder, observer, *, resume, progress, score_test):
        rate, seed = recipe.training.learning_rate, recipe.training.seed
        assert resume == folder.is_begun
        assert not score_test
        seen.runs.append((rate, seed))
        if folder.is_finished:
            return folder.scores()
        folder.begin(recipe)
        protocol = SimpleNamespace(select_by="R@1", selects_on="validation")
        state = SimpleNamespace(protocol=protocol, total_steps=EVALUATIONS, history=[], best=None, baseline="backbone")
        state.is_below_baseline = lambda row: False
        for state.step in range(EVALUATIONS + 1):
            score = rate * state.step / EVALUATIONS - 0.01 * seed
            row = {"epoch": float(state.step), "step": state.step, "R@1": score, "seconds": 10.0 * state.step}
            state.history.append(row)
            folder.write_evaluations(state.history)
            folder.last_checkpoint.write_text("weights")
            if state.step == 4 and rate in seen.trouble:
                raise seen.trouble[rate]
            observer.on_evaluation(state, row)
        folder.write_scores({"best": state.history[-1]})
        return folder.scores()

    monkeypatch.setattr(trials, "run", train)
    return seen


def statuses(tuning):
    return [trial.status for trial in tuning.trials]


@pytest.mark.parametrize(("pruner", "given_up"), [("median", [5, 6]), ("halving", [5, 6]), ("none", [])])
def test_bad_trials_are_given_up_and_leave_no_weights(make_plan, tune, tmp_path, stand_in, pruner, given_up):
    tuning = tune(make_plan(RATES, sampler="grid", pruner=pruner), tmp_path / "search")
    assert [trial.number for trial in tuning.trials if trial.status == "pruned"] == given_up
    assert [trial.number for trial in tuning.ranking[:5]] == [4, 3, 2, 1, 0]
    assert not list(tmp_path.glob("search/trials/*/*/checkpoints/*.pt"))
    for number in given_up:
        trial = tuning.trials[number]
        assert 2 <= len(trial.curve) < EVALUATIONS
        assert trial.score == max(trial.curve)
        assert trial.seconds == 10.0 * len(trial.curve)
    if pruner == "median":
        assert len(tuning.trials[5].curve) == 3, "two evaluations of grace"


def test_only_the_first_seed_is_held_against_others(make_plan, tune, tmp_path, stand_in):
    tuning = tune(make_plan(RATES, sampler="grid", pruner="median", seeds=2), tmp_path / "search")
    assert stand_in.runs == [
        *((rate, seed) for rate in (0.5, 0.6, 0.7, 0.8, 0.9) for seed in (0, 1)),
        (0.1, 0),
        (0.2, 0),
    ]
    assert tuning.trials[4].scores == pytest.approx([0.9, 0.89])
    assert tuning.trials[4].score == pytest.approx(0.895)
    assert len(tuning.trials[4].curve) == EVALUATIONS


def test_a_trial_that_breaks_does_not_end_the_search(make_plan, tune, tmp_path, stand_in):
    stand_in.trouble = {0.6: TrainingError("the loss became nan"), 0.7: ValueError("embeddings must be finite")}
    tuning = tune(make_plan(RATES, sampler="grid", pruner="none"), tmp_path / "search", trials=4)
    assert statuses(tuning) == ["finished", "diverged", "failed", "finished"]
    assert [trial.reason for trial in tuning.trials[1:3]] == ["the loss became nan", "embeddings must be finite"]
    assert tuning.trials[1].score == pytest.approx(0.6 * 3 / 6), "the best it had reached"
    assert not list(tmp_path.glob("search/trials/*/*/checkpoints/*.pt"))


def test_what_is_missing_stops_the_search_and_is_tried_again(make_plan, tune, tmp_path, stand_in):
    plan = make_plan(RATES, sampler="grid")
    stand_in.trouble = {0.6: DataError("no weights")}
    with pytest.raises(DataError, match="no weights"):
        tune(plan, tmp_path / "search", trials=3)
    assert statuses(read_tuning(tmp_path / "search")) == ["finished", "unfinished"]
    stand_in.trouble = {}
    assert statuses(tune(plan, tmp_path / "search", trials=3)) == ["finished"] * 3


class Killed(BaseException):
    """Nothing catches it, as nothing would notice a kill."""


@pytest.mark.parametrize("when", ["while it trains", "before it is recorded"])
def test_a_killed_trial_comes_to_the_same_evaluations_again(make_plan, tune, tmp_path, stand_in, monkeypatch, when):
    plan = make_plan(RATES, sampler="grid", pruner="median")
    with monkeypatch.context() as patch:
        if when == "while it trains":
            stand_in.trouble = {0.7: Killed()}
        else:
            patch.setattr(trials, "_end", _killed_in(5, trials._end))
        with pytest.raises(Killed):
            tune(plan, tmp_path / "search")
    stand_in.trouble = {}
    begun = read_tuning(tmp_path / "search").trials[-1]
    assert (begun.status, len(begun.curve)) == ("unfinished", 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Optuna warns of a value that is reported again
        killed = tune(plan, tmp_path / "search")
    straight = tune(plan, tmp_path / "straight")
    assert [(t.status, t.values, t.curve) for t in killed.trials] == [
        (t.status, t.values, t.curve) for t in straight.trials
    ]


def _killed_in(number, genuine):
    def end(study, trial, *arguments, **options):
        if trial == number:
            raise Killed
        genuine(study, trial, *arguments, **options)

    return end


def test_values_that_were_not_drawn_to_the_end_are_given_up(make_plan, tune, tmp_path, stand_in):
    plan = make_plan("training.learning_rate=0.1..0.9", "training.batch_size=4..8")
    tune(plan, tmp_path / "search", trials=1)
    trials.open_study(plan, tmp_path / "search").ask({plan.space[0].key: plan.space[0].distribution()})
    tuning = tune(plan, tmp_path / "search", trials=3)
    assert statuses(tuning) == ["finished", "failed", "finished"]
    assert tuning.trials[1].reason == "it was killed while its values were drawn"


def test_the_seed_decides_the_course(make_plan, tune, tmp_path, stand_in):
    def values(name, count, **settings):
        plan = make_plan("training.learning_rate=0.1..0.9", "training.batch_size=4..8", **settings)
        return [trial.values for trial in tune(plan, tmp_path / name, trials=count).trials]

    first = values("a", 12, seed=3)
    assert values("b", 12, seed=3) == first
    assert values("c", 2, seed=4) != first[:2]
    assert values("d", 2, seed=3, sampler="random") == first[:2], "TPE begins at random"
    assert len({tuple(point.values()) for point in first}) == 12


def test_the_same_point_is_not_trained_twice(make_plan, tune, tmp_path, stand_in):
    tuning = tune(make_plan("training.learning_rate=0.4,0.8", sampler="random"), tmp_path / "search", trials=8)
    assert sorted(stand_in.runs) == [(0.4, 0), (0.8, 0)]
    first = {trial.values["training.learning_rate"]: trial.number for trial in reversed(tuning.trials)}
    for trial in tuning.trials:
        rate = trial.values["training.learning_rate"]
        assert trial.score == pytest.approx(rate)
        assert trial.same_as == (None if first[rate] == trial.number else first[rate])
    assert [trial.score for trial in tuning.ranking] == pytest.approx([0.8, 0.4]), "each point once"


def test_a_grid_goes_through_every_point_in_order(make_plan, tune, tmp_path, stand_in):
    plan = make_plan("training.batch_size=4,8", "training.learning_rate=0.1,0.2,0.3", sampler="grid")
    tuning = tune(plan, tmp_path / "search", trials=99)
    expected = [(size, rate) for size in (4, 8) for rate in (0.1, 0.2, 0.3)]
    assert [tuple(trial.values.values()) for trial in tuning.trials] == expected
    with pytest.raises(
        RecipeError, match=r"training\.learning_rate=0\.1\.\.0\.9 has no end of them: list them as a,b,c"
    ):
        tune(make_plan("training.learning_rate=0.1..0.9", sampler="grid"), tmp_path / "other")


def test_a_folder_is_gone_on_with_by_its_own_plan_only(make_plan, tune, tmp_path, stand_in):
    folder = tmp_path / "search"
    tune(make_plan(RATES, sampler="grid"), folder, trials=1)
    for other, message in (
        (make_plan(RATES, sampler="grid", seeds=2), "seeds was 1, is 2"),
        (make_plan("training.learning_rate=0.5,0.6", sampler="grid"), "space was 'training.learning_rate=0.5,0.6,0.7"),
        (make_plan(RATES, sampler="grid", changes=["encoder.dim=8"]), r"\(encoder.dim was 4, is 8\)"),
        (make_plan(RATES, sampler="grid", changes=["objective.alpha=8"]), r"\(objective.alpha was None, is 8.0\)"),
    ):
        with pytest.raises(RecipeError, match=rf"holds another search.*{message}.*only --trials and --jobs may change"):
            tune(other, folder)
    moved = make_plan(RATES, sampler="grid", changes=["training.device=auto", "data.workers=2"])
    assert statuses(tune(moved, folder, trials=2)) == ["finished"] * 2
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("data: {}")
    with pytest.raises(RecipeError, match="holds a run"):
        tune(moved, tmp_path / "run")
    with pytest.raises(DataError, match="holds no search"):
        read_tuning(tmp_path / "run")


def test_one_command_at_a_time(make_plan, tune, tmp_path, stand_in):
    with (
        sole_writer_of(tmp_path / "search"),
        pytest.raises(BusyError, match=rf"written by process {os.getpid()} since"),
    ):
        tune(make_plan(), tmp_path / "search")
    assert statuses(tune(make_plan(), tmp_path / "search", trials=1)) == ["finished"]


class Process:
    """A process that ends as its trial's number says, as soon as it is started."""

    endings: dict = {}  # noqa: RUF012

    def __init__(self, command, log):
        *module, folder, number = command
        assert module == ["-m", "nearkin.studies.tune.worker"]
        self.code = self.endings.get(int(number), 0)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("epoch 1\nerror: no weights\n")
        if self.code == 0:
            trials.train_trial(trials.Plan.read(folder), Path(folder), int(number), Console(quiet=True))
        if self.code is None:
            os.kill(os.getpid(), signal.SIGTERM)

    def poll(self):
        return self.code

    def terminate(self):
        self.code = 130

    def kill(self):
        raise AssertionError("nothing should have to be killed")


@pytest.fixture
def processes(monkeypatch, stand_in):
    monkeypatch.setattr(Process, "endings", {})
    monkeypatch.setattr(pool, "POLL_SECONDS", 0)
    monkeypatch.setattr(Starter, "__enter__", lambda starter: starter)
    monkeypatch.setattr(Starter, "start", staticmethod(Process))
    return Process


def test_a_process_that_dies_is_recorded(make_plan, tune, tmp_path, processes):
    processes.endings = {0: -9, 2: 1}
    tuning = tune(make_plan(RATES, sampler="grid"), tmp_path / "search", trials=4, jobs=3)
    assert statuses(tuning) == ["failed", "finished", "failed", "finished"]
    assert tuning.trials[0].reason == "killed by signal 9; it said: no weights"
    assert tuning.trials[2].reason == "no weights"


def test_processes_stop_when_data_are_missing(make_plan, tune, tmp_path, processes):
    processes.endings = {1: DataError.exit_code}
    with pytest.raises(DataError, match="no weights"):
        tune(make_plan(RATES, sampler="grid"), tmp_path / "search", jobs=2)
    assert statuses(read_tuning(tmp_path / "search")) == ["finished", "unfinished"]
    processes.endings = {}
    assert statuses(tune(make_plan(RATES, sampler="grid"), tmp_path / "search", trials=3, jobs=2)) == ["finished"] * 3


def test_processes_are_asked_to_stop(make_plan, tune, tmp_path, processes):
    processes.endings = {1: None}
    with pytest.raises(InterruptedRunError, match="interrupted with 1 of 7 trials done"):
        tune(make_plan(RATES, sampler="grid"), tmp_path / "search", jobs=2)
    assert statuses(read_tuning(tmp_path / "search")) == ["finished", "unfinished"]


def test_a_trial_that_another_process_has_ended_meanwhile_is_left_alone(make_plan, tune, tmp_path, stand_in):
    plan = make_plan(RATES, sampler="grid")
    before = tune(plan, tmp_path / "search", trials=1)
    trials.train_trial(plan, tmp_path / "search", 0, Console(quiet=True))
    assert len(stand_in.runs) == 1
    assert read_tuning(tmp_path / "search").trials == before.trials


def test_what_is_left_of_a_search_is_known_with_its_values(make_plan, tune, tmp_path, stand_in):
    plan = make_plan(RATES, sampler="grid", pruner="median", seeds=2)
    folder = tmp_path / "search"
    assert [len(trials.planned_trials(plan, folder, count)[0]) for count in (3, None)] == [6, 14]
    stand_in.trouble = {0.6: TrainingError("the loss became nan")}
    tune(plan, folder, trials=3)
    runs, ended = trials.planned_trials(plan, folder, 4)
    assert ended == 3
    assert [(run.label, run.folder.is_finished) for run in runs] == [
        (f"trial {number}, seed {seed}", number < 3) for number in (0, 2, 3) for seed in (0, 1)
    ]
    assert [run.recipe.training.learning_rate for run in runs[:4]] == [0.5, 0.5, 0.7, 0.7]
    assert not any(run.was_changed(forgive=False) for run in runs)
    with pytest.raises(RecipeError, match="holds another search"):
        trials.planned_trials(make_plan("training.learning_rate=0.5,0.6", sampler="grid"), folder)


def test_a_trial_that_was_taken_over_is_no_run_that_is_left(make_plan, tune, tmp_path, stand_in):
    plan = make_plan("training.learning_rate=0.4,0.8", sampler="random")
    tune(plan, tmp_path / "search", trials=8)
    runs, ended = trials.planned_trials(plan, tmp_path / "search", 8)
    assert ended == 8
    assert [run.folder.is_finished for run in runs] == [True, True]
