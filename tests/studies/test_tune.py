"""Searches with a stand-in for training whose scores follow from the learning rate; and one that trains."""

from __future__ import annotations

import json
import os
import signal
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import nearkin
from nearkin.disk import sole_writer_of
from nearkin.errors import BusyError, DataError, InterruptedRunError, RecipeError, TrainingError
from nearkin.runs.folder import RunFolder
from nearkin.studies import tune as module
from nearkin.studies import worker_pool as pool
from nearkin.studies.tune import Search, tune
from nearkin.training.recipe_check import load_recipe

RATES = "training.learning_rate=0.5,0.6,0.7,0.8,0.9,0.1,0.2"
EVALUATIONS = 6
TINY = {
    "data": {"transform": "mild", "image_size": 8, "shorter_side": 10, "workers": 1},
    "encoder": {"backbone": "small", "dim": 4},
    "objective": {"name": "proxy_anchor"},
    "training": {"epochs": 50, "max_steps": 8, "evaluate_every_steps": 2, "batch_size": 8, "device": "cpu"},
    "protocol": {"name": "validation", "test_share": 0.25},
}


@pytest.fixture
def classes(tmp_path):
    """Eight small classes: two to test, two to validate and four to train."""
    rng = np.random.default_rng(0)
    for number in range(8):
        folder = tmp_path / "classes" / f"class {number}"
        folder.mkdir(parents=True)
        centre = rng.normal(128, 50, (10, 10, 3))
        for image in range(6):
            pixels = (centre + rng.normal(0, 40, (10, 10, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{image}.png")
    return tmp_path / "classes"


@pytest.fixture
def search(classes, tmp_path):
    """Runs a search, or resumes it: ``search("objective.alpha=4..32", changes=["training.max_steps=4"])``."""

    def call(*space, folder="search", changes=(), jobs=1, **settings):
        recipe = load_recipe(TINY, [f"data.source={json.dumps(str(classes))}", *changes])
        space = space or ["training.learning_rate=1e-4..1e-1:log"]
        made = tune(recipe, space, folder=tmp_path / folder, **settings, train=False)
        made.run(jobs=jobs)
        return made

    return call


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

    monkeypatch.setattr(module, "run", train)
    return seen


def statuses(search):
    return [record["status"] for record in search.record()["trials"]]


def course(search):
    return [(trial.state.name, trial.params, trial.intermediate_values) for trial in search.history]


@pytest.mark.parametrize(("pruner", "given_up"), [("median", [5, 6]), ("none", [])])
def test_bad_trials_are_given_up_and_leave_no_weights(search, tmp_path, stand_in, pruner, given_up):
    made = search(RATES, sampler="grid", pruner=pruner)
    assert [trial.number for trial in made.history if trial.state.name == "PRUNED"] == given_up
    assert [trial.number for trial in made.ranking[:5]] == [4, 3, 2, 1, 0]
    assert not list(tmp_path.glob("search/trials/*/*/checkpoints/*.pt"))
    for number in given_up:
        trial = made.history[number]
        assert 2 <= len(trial.intermediate_values) < EVALUATIONS
        assert trial.user_attrs["seconds"] == 10.0 * len(trial.intermediate_values)
    if pruner == "median":
        assert len(made.history[5].intermediate_values) == 3, "two evaluations of grace"


def test_only_the_first_seed_is_compared_with_other_trials(search, stand_in):
    made = search(RATES, sampler="grid", pruner="median", seeds=2)
    rates = [(rate, seed) for rate in (0.5, 0.6, 0.7, 0.8, 0.9) for seed in (0, 1)]
    assert stand_in.runs == [*rates, (0.1, 0), (0.2, 0)]
    assert made.history[4].user_attrs["scores"] == pytest.approx([0.9, 0.89])
    assert made.history[4].value == pytest.approx(0.895)


def test_a_trial_that_breaks_does_not_end_the_search(search, tmp_path, stand_in):
    stand_in.trouble = {0.6: TrainingError("the loss became nan"), 0.7: ValueError("embeddings must be finite")}
    made = search(RATES, sampler="grid", trials=4)
    assert statuses(made) == ["finished", "pruned", "failed", "finished"]
    reasons = [record["reason"] for record in made.record()["trials"][1:3]]
    assert reasons == ["the loss became nan", "embeddings must be finite"]
    assert made.record()["trials"][1]["R@1"] == pytest.approx(0.6 * 3 / 6), "the best it had reached"
    assert not list(tmp_path.glob("search/trials/*/*/checkpoints/*.pt"))


def test_what_is_missing_stops_the_search_and_is_tried_again(search, tmp_path, stand_in):
    stand_in.trouble = {0.6: DataError("no weights")}
    with pytest.raises(DataError, match="no weights"):
        search(RATES, sampler="grid", trials=3)
    assert statuses(Search.read(tmp_path / "search")) == ["finished", "unfinished"]
    stand_in.trouble = {}
    assert statuses(search(RATES, sampler="grid", trials=3)) == ["finished"] * 3


class Killed(BaseException):
    """Nothing catches it, as nothing would notice a kill."""


@pytest.mark.parametrize("when", ["while it trains", "before it is recorded"])
def test_a_killed_trial_comes_to_the_same_evaluations_again(search, tmp_path, stand_in, monkeypatch, when):
    genuine = module._end

    def end(study, number, *arguments, **options):
        if number == 5:
            raise Killed
        genuine(study, number, *arguments, **options)

    options = {"sampler": "grid", "pruner": "median"}
    with monkeypatch.context() as patch:
        if when == "while it trains":
            stand_in.trouble = {0.7: Killed()}
        else:
            patch.setattr(module, "_end", end)
        with pytest.raises(Killed):
            search(RATES, **options)
    stand_in.trouble = {}
    begun = Search.read(tmp_path / "search").history[-1]
    assert (begun.state.name, len(begun.intermediate_values)) == ("RUNNING", 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Optuna warns of a value that is reported again
        killed = search(RATES, **options)
    assert course(killed) == course(search(RATES, **options, folder="straight"))


def test_values_that_were_not_drawn_to_the_end_are_given_up(search, tmp_path, stand_in):
    space = ("training.learning_rate=0.1..0.9", "training.batch_size=4..8")
    made = search(*space, trials=1)
    key, distribution = next(iter(made.space.items()))
    module._open(tmp_path / "search").ask({key: distribution})
    made = search(*space, trials=3)
    assert statuses(made) == ["finished", "failed", "finished"]
    assert "killed" in made.history[1].user_attrs["reason"]


def test_the_seed_decides_the_course_and_a_grid_goes_through_every_point(search, stand_in):
    def values(folder, **settings):
        made = search("training.learning_rate=0.1..0.9", "training.batch_size=4..8", folder=folder, **settings)
        return [trial.params for trial in made.history]

    first = values("a", trials=12, seed=3)
    assert values("b", trials=6, seed=3) == first[:6]
    assert values("b", trials=12, seed=3) == first, "as if it had not been interrupted"
    assert values("c", trials=2, seed=4) != first[:2]
    assert values("d", trials=2, seed=3, sampler="random") == first[:2], "TPE begins at random"
    points = ("training.batch_size=4,8", "training.learning_rate=0.1,0.2,0.3")
    made = search(*points, sampler="grid", trials=2, folder="grid")
    made = search(*points, sampler="grid", trials=99, folder="grid")
    assert [tuple(map(float, trial.params.values())) for trial in made.history] == [
        (size, rate) for size in (4, 8) for rate in (0.1, 0.2, 0.3)
    ]
    with pytest.raises(RecipeError, match=r"training\.learning_rate"):
        search("training.learning_rate=0.1..0.9", sampler="grid", folder="other")


def test_a_folder_is_resumed_by_its_own_search_only(search, tmp_path, stand_in):
    search(RATES, sampler="grid", trials=1)
    for space, options, named in (
        (RATES, {"seeds": 2}, "seeds was 1, is 2"),
        ("training.learning_rate=0.5,0.6", {}, "space was"),
        (RATES, {"changes": ["encoder.dim=8"]}, "encoder.dim was 4, is 8"),
    ):
        with pytest.raises(RecipeError, match=named):
            search(space, sampler="grid", **options)
    moved = {"sampler": "grid", "changes": ["training.device=auto", "data.workers=2"]}
    assert statuses(search(RATES, **moved, trials=2)) == ["finished"] * 2
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("data: {}")
    (tmp_path / "file").touch()
    for taken in ("run", "file"):
        with pytest.raises(RecipeError, match=taken):
            search(RATES, **moved, folder=taken)
    with pytest.raises(DataError, match="run"):
        Search.read(tmp_path / "run")
    with sole_writer_of(tmp_path / "search"), pytest.raises(BusyError, match=str(os.getpid())):
        search(RATES, **moved)


def test_what_cannot_be_searched_is_refused(search, tmp_path):
    with pytest.raises(DataError, match=r"'classes'.*protocol\.test_share"):
        search(changes=["protocol.test_share=0.5"])
    for mistake in ({"changes": ["protocol.name=conventional"]}, {"trials": 0}, {"seeds": 0}, {"jobs": 0}):
        with pytest.raises(RecipeError):
            search(**mistake)
    for mistake in ({"sampler": "best"}, {"pruner": "best"}, {"seed": -1}):
        with pytest.raises(RecipeError):
            search(**mistake)
    assert not (tmp_path / "search").exists()


class Process:
    """A process that ends as its trial's number says, as soon as it is started."""

    endings: dict = {}  # noqa: RUF012

    def __init__(self, job, environment):
        *command, folder, number = job.command
        assert command == ["-m", "nearkin.studies.tune"]
        self.code = self.endings.get(int(number), 0)
        job.log.parent.mkdir(parents=True, exist_ok=True)
        job.log.write_text("epoch 1\nerror: no weights\n")
        if self.code == 0:
            Search.read(folder).train(int(number), Console(quiet=True))
        if self.code is None:
            os.kill(os.getpid(), signal.SIGTERM)

    def poll(self):
        return self.code

    def terminate(self):
        self.code = 130


@pytest.fixture
def processes(monkeypatch, stand_in):
    monkeypatch.setattr(Process, "endings", {})
    monkeypatch.setattr(pool, "POLL_SECONDS", 0)
    monkeypatch.setattr(pool, "_start", Process)
    return Process


def test_several_at_a_time(search, tmp_path, processes):
    processes.endings = {0: -9, 2: 1}
    made = search(RATES, sampler="grid", trials=4, jobs=3)
    assert statuses(made) == ["failed", "finished", "failed", "finished"]
    assert made.history[2].user_attrs["reason"] == "no weights"
    assert "9" in made.history[0].user_attrs["reason"]
    processes.endings = {0: 3}
    with pytest.raises(DataError, match="no weights"):
        search(RATES, sampler="grid", jobs=2, folder="missing")
    assert "unfinished" in statuses(Search.read(tmp_path / "missing"))
    processes.endings = {0: None}
    with pytest.raises(InterruptedRunError, match="0 of 1 trials"):
        search(RATES, sampler="grid", trials=1, jobs=2, folder="stopped")
    processes.endings = {}
    assert statuses(search(RATES, sampler="grid", trials=1, jobs=2, folder="stopped")) == ["finished"]


def test_a_search_that_trains_is_the_same_in_a_process_of_its_own(search, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))  # as here, for the same last bits
    space = ("training.learning_rate=1e-3,1e-2", "training.batch_size=4,8")
    options = {"changes": ["training.max_steps=2"], "sampler": "grid", "trials": 1}
    apart = search(*space, **options, jobs=2, folder="apart")
    here = search(*space, **options)
    assert course(apart) == course(here)
    scores = RunFolder(tmp_path / "search" / "trials" / "000" / "seed-0").scores()
    assert (scores.test, scores.untrained) == (None, None), "the test classes were not looked at"
    files = here.write()
    names = ["tuning.md", "trials.csv", "best.yaml", "history.png", "parameters.png"]
    assert [file.name for file in files] == names
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files[3:])
    assert load_recipe(tmp_path / "search" / "best.yaml").training.learning_rate == 1e-3
    assert here.next_steps()[0] in files[0].read_text()
    table = here.table()
    assert table.parts[0].lines[0].cells[-2:] == ("0.001", "4")
    assert "best R@1 on the validation classes" in table.conditions[0]


def test_a_search_in_one_call(classes, tmp_path, stand_in):
    assert nearkin.tune is tune
    recipe = load_recipe(TINY, [f"data.source={json.dumps(str(classes))}"])
    stand_in.trouble = {0.5: TrainingError("the loss became nan")}
    failed = tune(recipe, ["training.learning_rate=0.5,0.6"], sampler="grid", trials=1, folder=tmp_path / "search")
    assert failed.failure([]) == ("no trial has finished: the loss became nan", 5)
    assert sorted(path.name for path in (tmp_path / "search").glob("t*.*")) == ["trials.csv", "tuning.md"]
    done = tune(recipe, ["training.learning_rate=0.5,0.6"], sampler="grid", folder=tmp_path / "search")
    assert (done.failure([]), done.pruner) == (None, "none")
    assert any("the loss became nan" in note for note in done.table().notes)
    planned = tune(load_recipe({}, ["protocol.name=validation"]), ["training.batch_size=8,16"], train=False)
    assert planned.folder.name.startswith("tune-glyphs-proxy_anchor-")
