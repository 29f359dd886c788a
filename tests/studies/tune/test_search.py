"""Searches that train for real, on tiny images."""

from __future__ import annotations

import csv
import json
import signal

import pytest
import torch
from rich.console import Console

from nearkin.data.folder import read_folder
from nearkin.errors import DataError, InterruptedRunError, RecipeError
from nearkin.evaluation.protocol import Protocol
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.studies import tune as package
from nearkin.studies.tune import Search, read_tuning
from nearkin.studies.tune.tables import three_seeds
from nearkin.training import state
from nearkin.training.observers import ConsoleObserver

OPTIMISERS = ["training.optimiser=adam,sgd"]


def course(tuning):
    return [(trial.number, trial.status, trial.values, trial.scores, trial.curve) for trial in tuning.trials]


def test_the_test_classes_are_never_looked_at(make_plan, tune, tmp_path, monkeypatch):
    plan = make_plan(changes=["training.max_steps=2"])
    seen = []
    genuine = state.embed_images

    def record(*arguments, rows, **options):
        seen.extend(rows.tolist())
        return genuine(*arguments, rows=rows, **options)

    monkeypatch.setattr(state, "embed_images", record)
    tuning = tune(plan, tmp_path / "search", trials=1)
    table = read_folder(plan.recipe.data.source)
    protocol = Protocol(plan.recipe.protocol, table)
    assert set(seen) == set(protocol.validation.query.tolist())
    assert not set(seen) & set(protocol.test.query.tolist())
    scores = RunFolder(tmp_path / "search" / "trials" / "000" / "seed-0").scores()
    assert (scores.test, scores.untrained) == (None, None)
    # Otherwise a run does look at them, so the rows above are the right ones to watch.
    run(tuning.recipe_of(tuning.trials[0]), RunFolder(tmp_path / "run"), ConsoleObserver(Console(quiet=True)))
    assert set(protocol.test.query.tolist()) <= set(seen)


def test_an_interrupted_search_takes_the_same_course(make_plan, tune, tmp_path, monkeypatch):
    plan = make_plan(changes=["training.max_steps=4"], pruner="none")
    steps = []
    genuine = ConsoleObserver.on_step

    def stop_once(self, state, loss, images):
        genuine(self, state, loss, images)
        steps.append(state.step)
        if len(steps) == 7:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ConsoleObserver, "on_step", stop_once)
    with pytest.raises(InterruptedRunError, match=r"interrupted with 1 of 3 trials done.*The same command goes on"):
        tune(plan, tmp_path / "search", trials=3)
    begun = read_tuning(tmp_path / "search").trials
    assert [trial.status for trial in begun] == ["finished", "unfinished"]
    resumed = tune(plan, tmp_path / "search", trials=3)
    assert steps == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4], "no step twice"
    assert resumed.trials[1].values == begun[1].values
    straight = tune(plan, tmp_path / "straight", trials=3)
    assert course(resumed) == course(straight)
    more = tune(plan, tmp_path / "search", trials=4)
    assert course(more)[:3] == course(straight)
    assert len(steps) == 12 + 12 + 4, "one trial more, and the others as they were"


def test_a_trial_scores_as_its_best_evaluation_over_seeds(make_plan, tune, tmp_path):
    tuning = tune(make_plan(seeds=2, changes=["protocol.select_by=R@1"]), tmp_path / "search", trials=1)
    (trial,) = tuning.trials
    best, epochs = [], []
    for seed in (0, 1):
        folder = tmp_path / "search" / "trials" / "000" / f"seed-{seed}"
        assert not list(folder.glob("checkpoints/*.pt"))
        assert json.loads((folder / "environment.json").read_text())["seed"] == seed
        with open(folder / "evaluations.csv", newline="") as file:
            rows = [row for row in csv.DictReader(file) if int(row["step"])]
        chosen = max(rows, key=lambda row: (float(row["R@1"]), float(row["MAP@R"])))
        best.append(float(chosen["R@1"]))
        epochs.append(float(chosen["epoch"]))
    assert trial.scores == best
    assert trial.score == pytest.approx(sum(best) / 2)
    assert trial.epochs == epochs
    assert tuning.conditions["selection"] == "best R@1 on the validation classes"


def test_a_trial_given_up_in_the_midst_of_training_leaves_no_weights(make_plan, tune, tmp_path, monkeypatch):
    monkeypatch.setattr("optuna.trial.Trial.should_prune", lambda trial: len(trial.storage.get_all_trials(0)) > 1)
    tuning = tune(make_plan(changes=["training.max_steps=4"]), tmp_path / "search", trials=2)
    assert [(trial.status, len(trial.curve)) for trial in tuning.trials] == [("finished", 2), ("pruned", 1)]
    left = {file.name for file in (tmp_path / "search" / "trials" / "001" / "seed-0").rglob("*") if file.is_file()}
    assert left == {"recipe.yaml", "environment.json", "split.csv", "evaluations.csv", ".lock"}


def test_data_without_validation_classes_are_refused(make_plan, tune, tmp_path):
    with pytest.raises(DataError, match=r"'kinds' has too few classes to hold any out.*protocol\.test_share"):
        tune(make_plan(changes=["protocol.test_share=0.5"]), tmp_path / "search")
    assert not (tmp_path / "search").exists()


def test_a_class_fold_will_do(make_plan, tune, tmp_path):
    changes = ["protocol.name=mlrc", "protocol.folds=2", "protocol.fold=1", "training.max_steps=1"]
    tuning = tune(make_plan(changes=changes), tmp_path / "search", trials=1)
    assert tuning.conditions["selection"] == "best MAP@R on the held-out class fold 1 of 0–1"


def test_a_trial_in_a_process_of_its_own(make_plan, tune, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))  # as here, for the same last bits
    plan = make_plan(changes=["training.max_steps=2"])
    tuning = tune(plan, tmp_path / "jobs", trials=1, jobs=2)
    assert course(tuning) == course(tune(plan, tmp_path / "here", trials=1))
    said = (tmp_path / "jobs" / "trials" / "000" / "output.log").read_text()
    assert "so far" in said
    scores = RunFolder(tmp_path / "jobs" / "trials" / "000" / "seed-0").scores()
    assert (scores.test, scores.untrained) == (None, None)


@pytest.mark.parametrize(
    ("case", "pictures"),
    [
        ("none", []),
        ("one", ["history.png", "parameters.png", "plane.png"]),
        ("many", ["history.png", "parameters.png", "plane.png"]),
        ("grid", ["history.png", "parameters.png", "plane.png"]),
        ("choices", ["history.png", "parameters.png"]),
    ],
)
def test_written_files(made_up, many, monkeypatch, case, pictures):
    lists = ("method.proximal_weight=0,1e-4,1e-2", "method.proxies_per_class=1,2")
    tuning = {
        "none": lambda: made_up([("diverged", None, 0.5, 3)]),
        "one": lambda: made_up([("finished", 0.5, 0.5, 3)]),
        "many": lambda: many,
        "grid": lambda: made_up([("finished", 0.5, 0.0, 1), ("pruned", 0.4, 0.0, 2)], lists, sampler="grid"),
        "choices": lambda: made_up(
            [("finished", 0.5, "adam"), ("finished", 0.4, "sgd")], ["training.optimiser=adam,sgd"]
        ),
    }[case]()
    monkeypatch.setattr(Search, "tuning", tuning)
    search = Search(tuning.plan, None, tuning.folder)
    files = search.write()
    expected = ["tuning.md", "trials.csv", *(["best.yaml"] if case != "none" else []), *pictures]
    assert [file.name for file in files] == expected
    for file in files:
        assert file.stat().st_size > 0
        if file.suffix == ".png":
            assert file.read_bytes().startswith(b"\x89PNG")
    page = (tuning.folder / "tuning.md").read_text()
    assert [three_seeds(tuning) in page, *search.next_steps()] == (
        [False] if case == "none" else [True, three_seeds(tuning)]
    )


def test_a_search_in_one_call(make_plan, tmp_path):
    recipe = make_plan(changes=["training.max_steps=1"]).recipe
    space = ["training.learning_rate=1e-3,1e-2"]
    tuning = package.tune(recipe, space, sampler="grid", folder=tmp_path / "search")
    assert [trial.values["training.learning_rate"] for trial in tuning.trials] == [1e-3, 1e-2]
    assert tuning.plan.pruner == "none", "a grid is gone through whole"
    assert (tmp_path / "search" / "best.yaml").exists()
    with pytest.raises(RecipeError, match="trials must be at least 1"):
        package.tune(recipe, space, trials=0)
    with pytest.raises(RecipeError, match="jobs must be at least 1"):
        package.tune(recipe, space, folder=tmp_path / "search", jobs=0)
