"""``nearkin tune`` as a person meets it."""

from __future__ import annotations

import csv
import functools
import json

import pytest

from nearkin.studies.tune import trials
from nearkin.training.recipes import load_recipe

TINY = """
data: {transform: mild, image_size: 8, workers: 1}
encoder: {backbone: small, dim: 4}
training: {epochs: 2, max_steps: 2, batch_size: 8, device: cpu}
protocol: {name: mlrc, test_share: 0.35, folds: 2}
"""
SPACE = ("--space", "training.learning_rate=1e-3,1e-1", "--space", "objective.alpha=8,32")


@pytest.fixture
def command(nearkin, monkeypatch, tmp_path, photos):
    """Run the command; returns (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "tiny.yaml").write_text(TINY)

    return functools.partial(nearkin, "tune", "tiny.yaml", "--data", photos)


def test_a_search_ends_with_a_recipe_and_begins_where_it_was(command, tmp_path, monkeypatch):
    code, out, err = command(*SPACE, "--sampler", "grid", "--trials", 2, "--epochs", 1, "-o", "search")
    assert code == 0, err
    assert "Plan: 2 trials × 1 seed, 0 of them ended already, into search\nTime: " in err
    assert err.count("48 images of 6 classes") == 1, "said once for all runs"
    assert "epoch " not in err, "quiet otherwise when piped"
    assert "Search on own photos: proxy_anchor" in out
    assert "grid sampler, seed 0, no pruner; mlrc protocol" in " ".join(out.split())
    next_command = (
        "for seed in 0 1 2; do nearkin train search/best.yaml training.seed=$seed -o search/best/seed-$seed; done"
    )
    assert next_command in out
    with open("search/trials.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["training.learning_rate"] for row in rows] == ["0.001", "0.001"]
    assert [row["objective.alpha"] for row in rows] == ["8.0", "32.0"]
    best = max(rows, key=lambda row: float(row["MAP@R"]))
    recipe = load_recipe("search/best.yaml")
    assert recipe.objective.options["alpha"] == float(best["objective.alpha"])
    assert recipe.training.epochs == 1
    assert {"history.png", "parameters.png", "plane.png"} <= {file.name for file in (tmp_path / "search").iterdir()}

    def refuse(*_, **__):
        raise AssertionError("nothing should be trained")

    monkeypatch.setattr(trials, "run", refuse)
    code, out, err = command(*SPACE, "--sampler", "grid", "--trials", 2, "--epochs", 1, "-o", "search", "--json")
    assert code == 0, err
    printed = json.loads(out)
    assert (printed["folder"], printed["select_by"], printed["best"]) == ("search", "MAP@R", int(best["trial"]))
    assert [trial["score"] for trial in printed["trials"]] == [float(row["MAP@R"]) for row in rows]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("protocol.name=conventional", *SPACE), "protocol.name=conventional chooses by the test images: set"),
        (("--space", "training.learning_rat=1..2"), "did you mean 'learning_rate'"),
        (
            ("objective.name=mpa", "--space", "objective.proxies_per_class=0..2"),
            "the space holds objective.proxies_per_",
        ),
        (("training.learning_rate=1e-4..1e-2", *SPACE), "a range belongs behind --space"),
        (("--space", "training.learning_rate=1e-4..1e-2", "--sampler", "grid"), "list them as a,b,c"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(command, tmp_path, arguments, message):
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert not (tmp_path / "runs").exists()


def test_a_search_without_a_finished_trial_is_an_error(command, monkeypatch):
    def diverge(*_, **__):
        raise trials.TrainingError("the loss became nan")

    monkeypatch.setattr(trials, "run", diverge)
    code, out, err = command("--space", "training.learning_rate=1e-4..1e-2", "--trials", 2)
    assert code == 5
    assert "Trial 0, 1 diverged: the loss became nan" in out
    assert "no trial has finished: the loss became nan" in err
