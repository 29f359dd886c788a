"""The model to put to use: every class trains, to the epoch that another run chose, at the same rates."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch

from nearkin.errors import DataError, InterruptedRunError, RecipeError
from nearkin.runs.final import final_recipe, train_final
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.runs.scores import Scores
from nearkin.runs.trained_run import load_run
from nearkin.training import checkpoint
from nearkin.training.recipes import load_recipe

SMALL = {
    "data": {"transform": "mild", "image_size": 16, "workers": 1},
    "encoder": {"backbone": "small", "dim": 8, "options": {"width": 4}},
    "training": {"epochs": 4, "batch_size": 8, "learning_rate": 1e-3, "device": "cpu", "schedule": "cosine"},
    "protocol": {"name": "conventional", "test_share": 0.34},
}


class Rates:
    """The rate at the first step of every epoch."""

    def __init__(self):
        self.seen = []

    def on_step(self, state, loss, images):
        if (state.step - 1) % state.sampler.batches_per_epoch == 0:
            self.seen.append(state.optimiser.param_groups[0]["lr"])

    def on_evaluation(self, state, row):
        pass


def trained(photos, folder, *overrides):
    """A finished run, and the rates of its epochs."""
    rates = Rates()
    recipe = load_recipe(SMALL, [f"data.source={json.dumps(str(photos))}", *overrides])
    run(recipe, RunFolder(folder), rates)
    return rates.seen


def chosen_at(folder, epoch):
    """Make a run's best epoch another one, as if its scores had been so."""
    folder = RunFolder(folder)
    scores = folder.scores()
    folder.write_scores({**scores, "best": {**scores.best, "epoch": epoch}})


def test_every_class_trains_to_the_chosen_epoch_at_the_same_rates(photos, tmp_path):
    before = trained(photos, tmp_path / "run")
    chosen_at(tmp_path / "run", 3.0)
    rates = Rates()
    scores = train_final(tmp_path / "run", rates)
    folder = RunFolder(tmp_path / "run-final")
    assert rates.seen == before[:3], "a cosine over four epochs that ends after three"
    assert scores["epochs"] == 3.0
    data = json.loads(folder.environment_file.read_text())["data"]
    assert (data["training_images"], data["training_classes"]) == (48, 6)
    assert folder.scores() == scores
    assert (scores["test"], scores["untrained"], scores["test_classes"]) == (None, None, "no test classes")
    assert scores["final_of"]["run"] == str(tmp_path / "run")
    assert scores.final_of.scores == RunFolder(tmp_path / "run").scores()
    assert "no score of its own" in scores["final_of"]["note"]
    assert "chosen on the test classes" in scores["final_of"]["note"]
    assert load_run(folder.path).embed(np.zeros((2, 16, 16, 3), np.uint8)).shape == (2, 8)


def test_it_starts_where_the_run_started(photos, tmp_path, monkeypatch):
    starts = []

    class First(Rates):
        def on_evaluation(self, state, row):
            if not row["step"]:
                starts.append({name: value.clone() for name, value in state.encoder.state_dict().items()})

    recipe = load_recipe(SMALL, [f"data.source={json.dumps(str(photos))}", "training.epochs=1"])
    run(recipe, RunFolder(tmp_path / "run"), First())
    train_final(tmp_path / "run", First())
    assert all(torch.equal(starts[0][name], starts[1][name]) for name in starts[0])


def test_the_card_says_whose_the_score_is(photos, tmp_path):
    trained(photos, tmp_path / "run")
    scores = train_final(tmp_path / "run", Rates(), output=tmp_path / "for use")
    card = (tmp_path / "for use" / "MODEL_CARD.md").read_text()
    assert "48 images of 6 classes" in card
    assert f"These scores are of {tmp_path / 'run'}" in card
    assert f"| R@1 | {100 * scores['final_of']['scores']['untrained']['R@1']:.1f} |" in card
    for part in ("## Data", "## Score", "## Recipe", "## Use", "## Licence", "proxy_anchor", "nearkin embed"):
        assert part in card


def test_a_rate_that_waited_for_scores_falls_where_it_fell(photos, tmp_path, monkeypatch):
    from nearkin.evaluation.protocol import Protocol

    monkeypatch.setattr(Protocol, "score", lambda *_, **__: {"R@1": 0.5, "MAP@R": 0.5})
    before = trained(
        photos,
        tmp_path / "run",
        "training.schedule=plateau",
        "training.lr_decay_every=1",
        "training.epochs=7",
        "training.min_learning_rate=4e-4",
        "training.early_stop_patience=9",
        "protocol.monitor_test=true",
    )
    assert len(set(before)) > 2
    assert min(before) == pytest.approx(4e-4), "the floor is above a quarter of the rate"
    chosen_at(tmp_path / "run", 6.0)
    rates = Rates()
    train_final(tmp_path / "run", rates)
    assert rates.seen == pytest.approx(before[:6])


def test_a_run_that_counted_in_steps_is_trained_to_the_same_epoch(photos, tmp_path):
    """32 of 48 images train: four steps to an epoch, then six."""
    trained(photos, tmp_path / "run", "training.max_steps=6", "training.evaluate_every_steps=2")
    chosen_at(tmp_path / "run", 1.5)
    assert train_final(tmp_path / "run", Rates())["steps"] == 9


def test_data_with_a_split_of_their_own_train_whole(photos, tmp_path):
    splits = ("train", "train", "train", "validation", "test", "test")
    with open(photos / "all.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "split"])
        for folder, split in zip(sorted(path for path in photos.iterdir() if path.is_dir()), splits, strict=True):
            writer.writerows([f"{folder.name}/{image.name}", folder.name, split] for image in folder.iterdir())
    trained(photos / "all.csv", tmp_path / "run", "protocol.name=validation")
    train_final(tmp_path / "run", Rates())
    data = json.loads((tmp_path / "run-final" / "environment.json").read_text())["data"]
    assert (data["training_images"], data["training_classes"]) == (48, 6)


def test_small_data_and_wrong_labels_end_with_the_experiment(photos, tmp_path):
    trained(photos, tmp_path / "run", "protocol.train_share=0.5", "protocol.label_noise=0.2")
    scores = train_final(tmp_path / "run", Rates())
    data = json.loads((tmp_path / "run-final" / "environment.json").read_text())["data"]
    assert (data["training_images"], data["replaced_labels"]) == (48, 0)
    assert scores["training_conditions"] is None


def test_interrupted_it_is_resumed_to_the_bit(photos, tmp_path):
    trained(photos, tmp_path / "run", "training.checkpoint_minutes=0")
    train_final(tmp_path / "run", Rates(), output=tmp_path / "whole")

    class Stop(Rates):
        def on_step(self, state, loss, images):
            if state.step == 4:
                raise InterruptedRunError("stop")

    overrides = {"output": tmp_path / "broken"}
    recipe = RunFolder(tmp_path / "whole").recipe()
    with pytest.raises(InterruptedRunError):
        train_final(tmp_path / "run", Stop(), **overrides)
    assert checkpoint.read_checkpoint(RunFolder(tmp_path / "broken").last_checkpoint)["step"] == 3
    with pytest.raises(RecipeError, match="not finished"):
        train_final(tmp_path / "run", Rates(), **overrides)
    train_final(tmp_path / "run", Rates(), **overrides, resume=True)
    a, b = (checkpoint.encoder_weights(RunFolder(tmp_path / name)) for name in ("whole", "broken"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert RunFolder(tmp_path / "broken").recipe() == recipe
    assert "final_of" in train_final(tmp_path / "run", Rates(), **overrides, resume=True), "finished, it says so again"


def test_what_cannot_be_made_final_is_refused(photos, tmp_path):
    trained(photos, tmp_path / "run")
    train_final(tmp_path / "run", Rates())
    with pytest.raises(RecipeError, match="trained on every class already"):
        train_final(tmp_path / "run-final", Rates())
    with pytest.raises(RecipeError, match="is the run itself"):
        train_final(tmp_path / "run", Rates(), output=tmp_path / "run")
    RunFolder(tmp_path / "run").scores_file.unlink()
    with pytest.raises(DataError, match="not finished"):
        train_final(tmp_path / "run", Rates())
    trained(photos, tmp_path / "none", "training.epochs=0")
    with pytest.raises(RecipeError, match="took no training step"):
        train_final(tmp_path / "none", Rates())
    ccp = ["method.name=ccp", "objective.name=contrastive", "protocol.name=validation"]
    recipe = final_recipe(load_recipe(SMALL, ccp), Scores(best={"epoch": 2.0}))
    with pytest.raises(RecipeError, match=r"set method\.steps_per_problem"):
        run(recipe, RunFolder(tmp_path / "ccp"), Rates())


def test_it_does_not_pretend_to_a_score(photos, tmp_path, nearkin):
    trained(photos, tmp_path / "run")
    code, out, err = nearkin("train", "--final", tmp_path / "run")
    assert code == 0, err
    assert "no score of its own" in " ".join(out.split())
    assert "MODEL_CARD.md" in out
    code, _, err = nearkin("evaluate", tmp_path / "run-final")
    assert code == 3
    assert "there are none that it has never seen" in err
    assert f"that of {tmp_path / 'run'}" in err
    code, out, err = nearkin("evaluate", tmp_path / "run-final", "--data", photos)
    assert code == 0, err
    assert "trained on these very images" in out
    elsewhere = tmp_path / "elsewhere" / "test"
    for kind in list(photos.iterdir())[:2]:
        (elsewhere / kind.name).mkdir(parents=True)
        for file in kind.iterdir():
            (elsewhere / kind.name / file.name).write_bytes(file.read_bytes())
    code, out, err = nearkin("evaluate", tmp_path / "run-final", "--data", elsewhere.parent, "--json")
    assert code == 0, err
    assert json.loads(out)["classes"] == 2
    assert "trained on these very images" in json.loads(out)["note"], "wherever they lie"


def test_where_training_did_not_help_the_final_model_says_so_too(photos, tmp_path, nearkin):
    trained(photos, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    scores = folder.scores()
    untrained = {**scores.untrained, "R@1": 1.0, "MAP@R": 1.0}
    folder.write_scores({**scores, "untrained": untrained, "test": {**scores.test, "R@1": 0.9, "MAP@R": 0.8}})
    code, out, err = nearkin("train", "--final", tmp_path / "run")
    assert code == 0, err
    assert "Training did not help: R@1 100.0 → 90.0, MAP@R 100.0 → 80.0." in out


def test_every_command_takes_it(photos, tmp_path, nearkin):
    trained(photos, tmp_path / "run")
    final = tmp_path / "run-final"
    code, out, _ = nearkin("train", "--final", tmp_path / "run", "--json")
    assert json.loads(out)["final_of"]["run"] == str(tmp_path / "run")
    for command in (
        ["embed", final, photos, "-o", tmp_path / "e.npz"],
        ["plot", final],
        ["report", final],
        ["table", final],
    ):
        code, out, err = nearkin(*command)
        assert code == 0, err
    assert f"final model: scores of {tmp_path / 'run'}" in out
    assert "final model" in (final / "report.html").read_text()


def test_a_new_run_in_its_place_takes_the_card_away(photos, tmp_path):
    trained(photos, tmp_path / "run")
    train_final(tmp_path / "run", Rates(), output=tmp_path / "other")
    recipe = RunFolder(tmp_path / "run").recipe()
    run(recipe, RunFolder(tmp_path / "other"), Rates(), overwrite=True)
    assert not (tmp_path / "other" / "MODEL_CARD.md").exists()


@pytest.mark.parametrize("arguments", [["glyphs/demo"], ["training.epochs=3"], ["--data", "photos"]])
def test_recipe_and_data_come_from_the_run(nearkin, arguments):
    code, _, err = nearkin("train", "--final", "runs/none", *arguments)
    assert code == 2
    assert "--final takes recipe and data from its run" in " ".join(err.split())
