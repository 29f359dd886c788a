"""The final model: every class trains, to the epoch that another run chose, at the same rates."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.errors import DataError, InterruptedRunError, RecipeError
from nearkin.evaluation.confidence import confidence_among
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import final_recipe, run, train_final
from nearkin.runs.scores import Scores
from nearkin.runs.trained_run import load_run
from nearkin.training import checkpoint
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer

SMALL = {
    "data": {"transform": "mild", "image_size": 16, "workers": 1},
    "encoder": {"backbone": "small", "dim": 8, "options": {"width": 4}},
    "training": {"epochs": 4, "batch_size": 8, "learning_rate": 1e-3, "device": "cpu", "schedule": "cosine"},
    "protocol": {"name": "conventional", "test_share": 0.34},
}


class Watcher(Observer):
    """Remembers the weights at the start, and the rate at the first step of every epoch."""

    def __init__(self):
        self.rates, self.start = [], None

    def on_step(self, state, loss, images):
        if (state.step - 1) % state.sampler.batches_per_epoch == 0:
            self.rates.append(state.optimiser.param_groups[0]["lr"])

    def on_evaluation(self, state, row):
        if not row["step"]:
            self.start = {name: value.clone() for name, value in state.encoder.state_dict().items()}


def train(photos, folder, *overrides):
    """A finished run, as its observer saw it."""
    watcher = Watcher()
    run(load_recipe(SMALL, [f"data.source={json.dumps(str(photos))}", *overrides]), RunFolder(folder), watcher)
    return watcher


def choose_epoch(folder, epoch):
    """Make a run's best epoch another one, as if its scores had been so."""
    folder = RunFolder(folder)
    scores = folder.scores()
    folder.write_scores({**scores, "best": {**scores.best, "epoch": epoch}})


def test_every_class_trains_to_the_chosen_epoch_from_the_same_start_at_the_same_rates(photos, tmp_path):
    before, watcher = train(photos, tmp_path / "run"), Watcher()
    choose_epoch(tmp_path / "run", 3.0)
    scores = train_final(tmp_path / "run", watcher)
    folder = RunFolder(tmp_path / "run-final")
    assert watcher.rates == before.rates[:3], "a cosine over four epochs that ends after three"
    assert all(torch.equal(value, watcher.start[name]) for name, value in before.start.items())
    data = folder.environment().data
    # One of the eight images of each class is held out.
    assert (scores.epochs, data.training_images, data.training_classes) == (3.0, 42, 6)
    assert folder.scores() == scores
    assert (scores.test, scores.untrained, scores.conditions.test_classes) == (None, None, "no test classes")
    assert scores.final_of.run == str(tmp_path / "run")
    assert scores.final_of.scores == RunFolder(tmp_path / "run").scores()
    assert "no score on unseen classes of its own" in scores.final_of.note
    assert "chosen on the test classes" in scores.final_of.note
    assert load_run(folder.path).embed(np.zeros((2, 16, 16, 3), np.uint8)).shape == (2, 8)
    card = folder.card_file.read_text()
    assert "42 images of 6 classes" in card
    assert f"| R@1 | {100 * scores.final_of.scores.untrained['R@1']:.1f} |" in card
    run(RunFolder(tmp_path / "run").recipe(), folder, overwrite=True)
    assert not folder.card_file.exists(), "of the model that was there before"


def test_a_rate_that_waited_for_scores_falls_where_it_fell(photos, tmp_path, monkeypatch):
    from nearkin.evaluation.protocol import Protocol

    monkeypatch.setattr(Protocol, "score", lambda *_, **__: {"R@1": 0.5, "MAP@R": 0.5})
    plateau = ("training.schedule=plateau", "training.lr_decay_every=1", "training.epochs=7")
    limits = ("training.min_learning_rate=4e-4", "training.early_stop_patience=9", "protocol.monitor_test=true")
    before = train(photos, tmp_path / "run", *plateau, *limits).rates
    assert len(set(before)) > 2
    assert min(before) == pytest.approx(4e-4), "the floor is above a quarter of the rate"
    choose_epoch(tmp_path / "run", 6.0)
    watcher = Watcher()
    train_final(tmp_path / "run", watcher)
    assert watcher.rates == pytest.approx(before[:6])


def test_a_run_that_counted_in_steps_is_trained_to_the_same_epoch_without_noise(photos, tmp_path):
    """32 of 48 images train: four steps to an epoch, then with 42 of them five."""
    steps = ("training.max_steps=6", "training.evaluate_every_steps=2")
    train(photos, tmp_path / "run", *steps, "protocol.label_noise=0.2")
    choose_epoch(tmp_path / "run", 1.5)
    scores = train_final(tmp_path / "run", Observer())
    data = RunFolder(tmp_path / "run-final").environment().data
    assert (scores.steps, data.training_images, data.replaced_labels) == (8, 42, 0)
    assert scores.conditions.training_conditions is None


def test_data_with_a_split_of_their_own_train_whole(photos, tmp_path):
    splits = ("train", "train", "train", "validation", "test", "test")
    with open(photos / "all.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "split"])
        for folder, split in zip(sorted(path for path in photos.iterdir() if path.is_dir()), splits, strict=True):
            writer.writerows([f"{folder.name}/{image.name}", folder.name, split] for image in folder.iterdir())
    train(photos / "all.csv", tmp_path / "run", "protocol.name=validation", "training.epochs=1")
    train_final(tmp_path / "run", Observer())
    data = RunFolder(tmp_path / "run-final").environment().data
    assert (data.training_images, data.training_classes) == (42, 6)


def test_interrupted_it_is_resumed_to_the_bit(photos, tmp_path):
    train(photos, tmp_path / "run", "training.checkpoint_minutes=0")
    train_final(tmp_path / "run", Observer(), output=tmp_path / "whole")

    class Stop(Observer):
        def on_step(self, state, loss, images):
            if state.step == 4:
                raise InterruptedRunError("stop")

    broken = RunFolder(tmp_path / "broken")
    with pytest.raises(InterruptedRunError):
        train_final(tmp_path / "run", Stop(), output=broken.path)
    assert checkpoint.read_checkpoint(broken.last_checkpoint)["step"] == 3
    with pytest.raises(RecipeError, match="not finished"):
        train_final(tmp_path / "run", Observer(), output=broken.path)
    train_final(tmp_path / "run", Observer(), output=broken.path, resume=True)
    a, b = (checkpoint.encoder_weights(RunFolder(tmp_path / name)) for name in ("whole", "broken"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert broken.recipe() == RunFolder(tmp_path / "whole").recipe()
    assert "final_of" in train_final(tmp_path / "run", Observer(), output=broken.path, resume=True)


def test_what_cannot_be_made_final_is_refused(photos, tmp_path):
    train(photos, tmp_path / "run", "training.epochs=1")
    train_final(tmp_path / "run", Observer())
    with pytest.raises(RecipeError, match="every class already"):
        train_final(tmp_path / "run-final", Observer())
    with pytest.raises(RecipeError, match="the run itself"):
        train_final(tmp_path / "run", Observer(), output=tmp_path / "run")
    RunFolder(tmp_path / "run").scores_file.unlink()
    with pytest.raises(DataError, match="not finished"):
        train_final(tmp_path / "run", Observer())
    with pytest.raises(RecipeError, match="no training step"):
        final_recipe(load_recipe(SMALL), Scores(best={"epoch": 0.0}))
    ccp = ["method.name=ccp", "objective.name=contrastive", "protocol.name=validation"]
    with pytest.raises(RecipeError, match=r"method\.steps_per_problem"):
        run(final_recipe(load_recipe(SMALL, ccp), Scores(best={"epoch": 2.0})), RunFolder(tmp_path / "ccp"))


def test_commands_take_it_and_do_not_pretend_to_a_score(photos, tmp_path, nearkin):
    train(photos, tmp_path / "run", "training.epochs=1")
    folder, final = RunFolder(tmp_path / "run"), tmp_path / "run-final"
    scores = folder.scores()
    better = {"untrained": {**scores.untrained, "R@1": 1.0, "MAP@R": 1.0}, "test": {**scores.test, "R@1": 0.9}}
    folder.write_scores({**scores, **better})
    code, out, err = nearkin("train", "--final", folder.path)
    assert code == 0, err
    for part in ("no score on unseen classes of its own", "MODEL_CARD.md", "Training did not help: R@1 100.0 → 90.0"):
        assert part in " ".join(out.split())
    code, _, err = nearkin("evaluate", final)
    assert code == 3
    assert f"that of {folder.path}" in err
    for kind in list(photos.iterdir())[:2]:
        shutil.copytree(kind, tmp_path / "elsewhere" / "test" / kind.name)
    for data, classes in ((photos, 6), (tmp_path / "elsewhere", 2)):
        code, out, err = nearkin("evaluate", final, "--data", data, "--json")
        assert code == 0, err
        assert json.loads(out)["classes"] == classes
        trained = (42, 48) if classes == 6 else (14, 16)
        assert "trained on {} of these {} images".format(*trained) in json.loads(out)["note"], "wherever they are"
    code, out, err = nearkin("table", final)
    assert code == 0, err
    assert f"final model: scores of {folder.path}" in out
    for argument in ("glyphs/demo", "training.epochs=3"):
        code, _, err = nearkin("train", "--final", folder.path, argument)
        assert (code, "--final" in err) == (2, True)


def test_new_images_of_known_classes_are_scored_and_the_card_says_so(tmp_path):
    """Squares of a colour each: 24 of a class, of which two do not train."""
    rng = np.random.default_rng(0)
    for number, colour in enumerate(rng.integers(40, 215, (12, 3))):
        (tmp_path / "squares" / f"class {number}").mkdir(parents=True)
        for i in range(24):
            pixels = np.clip(colour + rng.normal(0, 8, 3) + rng.normal(0, 40, (20, 20, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "squares" / f"class {number}" / f"{i}.png")
    train(
        tmp_path / "squares",
        tmp_path / "run",
        "protocol.holdout_share=0.1",
        "training.epochs=2",
        "protocol.test_share=0.5",
    )
    folder = RunFolder(tmp_path / "run")
    classes = len(folder.split.trained_classes)
    assert folder.scores().new_images is None, "too few to learn from"
    assert (folder.split.splits == "holdout").sum() == 2 * classes < 15
    assert folder.scores().no_new_images.endswith(f"with another of their class, got {2 * classes}")
    scores = train_final(tmp_path / "run", Observer())
    new, split = scores.new_images, RunFolder(tmp_path / "run-final").split
    assert (new.images, new.classes) == (24, 12) == ((split.splits == "holdout").sum(), 12)
    assert split.trained.isdisjoint(np.array(split.digests)[split.splits == "holdout"].tolist())
    assert 1 / 12 < new.accuracy <= 1
    assert 0 <= new.refused <= 1
    assert 0 <= new.unknown_refused <= 1
    card = (tmp_path / "run-final" / "MODEL_CARD.md").read_text()
    assert f"This model on new images of known classes: {100 * new.accuracy:.1f} % get the right label" in card
    assert (scores.no_new_images, "no_new_images" in dict(scores)) == (None, False)
    assert Scores.from_record(json.loads(json.dumps(dict(scores)))).new_images == new
    run_again = load_run(tmp_path / "run-final")
    vectors = run_again.embed([str(tmp_path / "squares" / name) for name in split.ids]).numpy()
    expected = confidence_among(vectors, split.labels, np.flatnonzero(split.splits == "holdout"), "cosine")
    assert new.accuracy == pytest.approx(expected.accuracy)
