"""What is loaded of a run for looking: the right weights, the right proxies, the right part of the data."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.errors import DataError, Notice
from nearkin.report.opened_run import CannotDrawError, OpenedRun, ViewOptions, open_runs, whole_classes
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer


def photos(root, *, kinds=9, per_kind=6):
    rng = np.random.default_rng(0)
    for number in range(kinds):
        (root / f"kind {number}").mkdir(parents=True)
        centre = rng.uniform(0, 255, (8, 8, 3))
        for index in range(per_kind):
            pixels = (centre + rng.normal(0, 30, centre.shape)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / f"kind {number}" / f"{index}.png")
    return root


def train(folder, data, *overrides):
    mapping = {
        "data": {"source": str(data), "transform": "digits", "image_size": 8, "workers": 1, "cache": "memory"},
        "encoder": {"backbone": "small", "dim": 5},
        "training": {
            "epochs": 50,
            "max_steps": 4,
            "batch_size": 12,
            "device": "cpu",
            "evaluate_every_steps": 1,
            "learning_rate": 0.01,
        },
        "protocol": {"name": "conventional"},
    }
    run(load_recipe(mapping, overrides), RunFolder(folder), Observer())
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One data set and three runs on it."""
    root = tmp_path_factory.mktemp("plots")
    data = photos(root / "data")
    ccp = ["method.name=ccp", "method.steps_per_problem=2", "method.proxies_per_class=2", "method.pool_size=3"]
    train(root / "anchor", data)
    train(root / "ccp", data, "objective.name=contrastive", "training.sampler=balanced", *ccp)
    train(root / "pair", data, "objective.name=contrastive")
    return root


def pretend_best(folder, step):
    """Let the best evaluation be at another step than the last: its checkpoint gets changed weights."""
    last = torch.load(folder / "checkpoints" / "last.pt", weights_only=True)
    for file in (folder / "checkpoints").glob("best-*.pt"):
        file.unlink()
    changed = {"format": last["format"], "step": step, "encoder": last["encoder"], "objective": dict(last["objective"])}
    if "bank.vectors" in changed["objective"]:
        changed["objective"]["bank.vectors"] = -last["objective"]["bank.vectors"]
    torch.save(changed, folder / "checkpoints" / f"best-{step:08d}.pt")
    last["best"] = {**last["history"][step], "step": step}
    torch.save(last, folder / "checkpoints" / "last.pt")
    return last


@pytest.mark.parametrize("checkpoint", ["best", "last"])
def test_proxies_are_those_of_the_checkpoint_and_belong_to_the_tables_classes(made, tmp_path, checkpoint):
    folder = shutil.copytree(made / "anchor", tmp_path / "run")
    last = pretend_best(folder, 2)
    opened = OpenedRun(folder, ViewOptions(checkpoint=checkpoint))
    saved = last["objective"]["bank.vectors"].numpy() * (-1 if checkpoint == "best" else 1)
    expected = saved / np.linalg.norm(saved, axis=2, keepdims=True)
    assert opened.step == (2 if checkpoint == "best" else 4)
    assert np.allclose(opened.proxies.vectors.numpy(), expected, atol=1e-6)
    table, rows = opened.data.table, opened.protocol.train_rows
    assert opened.proxies.classes.tolist() == sorted(set(table.labels[rows].tolist()))
    third = opened.proxies.classes[[2]]
    assert np.allclose(opened.proxies.of_classes(third).numpy(), expected[[2]], atol=1e-6)


def test_ccps_own_proxies_are_shown_with_the_weights_they_were_saved_with(made, tmp_path):
    folder = shutil.copytree(made / "ccp", tmp_path / "run")
    last = pretend_best(folder, 1)
    opened = OpenedRun(folder)
    assert opened.proxies is None
    assert opened.step == 1
    shown = opened.at_proxies
    assert (shown.step, shown.view.checkpoint) == (4, "last")
    saved = last["method"]["bank"]["vectors"]
    assert np.allclose(shown.proxies.vectors, saved / saved.norm(dim=2, keepdim=True), atol=1e-6)
    for name, weight in shown.trained.encoder.state_dict().items():
        assert torch.equal(weight, last["encoder"][name]), name


def test_anchors_that_are_images_are_embedded_anew(made, tmp_path):
    options = ["method.steps_per_problem=9", "method.proxies_per_class=2", "method.pool_size=3"]
    ccp = ["objective.name=contrastive", "training.sampler=balanced", "method.name=ccp", *options]
    folder = train(tmp_path / "run", made / "data", *ccp, "method.anchors=samples")
    opened = OpenedRun(folder, ViewOptions(checkpoint="last"))
    rows = torch.load(folder / "checkpoints" / "last.pt", weights_only=True)["method"]["anchor_rows"]
    embedded = opened.embed(opened.protocol.train_rows[rows[3].numpy()])
    assert torch.allclose(opened.proxies.vectors[3], embedded, atol=1e-6)


def test_a_pair_loss_has_no_proxies_and_no_uncertainty(made):
    opened = OpenedRun(made / "pair")
    assert opened.proxies is None
    assert opened.at_proxies is opened
    with pytest.raises(CannotDrawError, match="contrastive"):
        _ = opened.uncertainty


def test_data_that_changed_since_training_is_said_clearly(made, tmp_path):
    data = shutil.copytree(made / "data", tmp_path / "data")
    folder = train(tmp_path / "run", data, "training.max_steps=1")
    before = OpenedRun(folder).proxies
    names = [OpenedRun(folder).data.table.class_names[label] for label in before.classes]
    for number in range(20, 23):
        for file in shutil.copytree(data / "kind 0", data / f"kind {number}").iterdir():
            Image.fromarray(255 - np.asarray(Image.open(file).convert("RGB"))).save(file)
    (data / "kind 0").rename(data / "zebra")
    opened = OpenedRun(folder)
    with pytest.warns(Notice, match="3 new classes"):
        assert torch.equal(opened.proxies.vectors, before.vectors)
    assert [opened.data.table.class_names[label] for label in opened.proxies.classes] == names


def test_samples_are_of_the_right_classes(made):
    opened = OpenedRun(made / "anchor")
    train_labels = set(opened.training_classes.tolist())
    assert set(opened.training_sample.labels.tolist()) == train_labels
    assert not set(opened.test_sample.labels.tolist()) & train_labels
    assert torch.allclose(opened.training_sample.embeddings.norm(dim=1), torch.ones(len(opened.training_sample.rows)))
    two = opened.training_sample.of_classes(opened.training_classes[:2])
    assert two.labels.tolist() == [label for label in opened.training_classes[:2].tolist() for _ in range(6)]


def test_runs_on_different_data_are_refused_and_equal_names_told_apart(made, tmp_path):
    elsewhere = shutil.copytree(made / "data", tmp_path / "other data")
    other = train(tmp_path / "anchor", elsewhere, "training.max_steps=1")
    with pytest.raises(DataError, match="must share their data"):
        open_runs([made / "anchor", other])
    seed = train(tmp_path / "twin" / "anchor", made / "data", "training.max_steps=1")
    first, second, third = open_runs([made / "anchor", seed, made / "pair"])
    assert first.label != second.label
    assert third.label == "contrastive"
    assert [first.family, second.family, third.family] == [0, 1, 2], "max_steps differs, so they are no seeds of one"


def test_a_large_part_is_thinned_by_whole_classes_or_within_large_ones():
    labels = np.repeat([0, 1, 2, 3], [10, 10, 10, 1000])
    rng = np.random.default_rng(1)
    small = whole_classes(np.arange(30), labels, rng, limit=25)
    assert len(small) == 20
    assert np.unique(labels[small], return_counts=True)[1].tolist() == [10, 10]
    thinned = whole_classes(np.arange(1030), labels, rng, limit=60, at_least=4)
    classes, counts = np.unique(labels[thinned], return_counts=True)
    assert classes.tolist() == [0, 1, 2, 3]
    assert counts.tolist() == [10, 10, 10, 15]
    assert len(np.unique(thinned)) == len(thinned)


def test_a_folder_without_checkpoints_says_what_is_missing(made, tmp_path):
    folder = shutil.copytree(made / "anchor", tmp_path / "run")
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(CannotDrawError, match=r"last\.pt is missing"):
        _ = OpenedRun(folder).proxies
    (folder / "evaluations.csv").write_text("epoch,step\n0,zero\n")
    with pytest.raises(DataError, match=r"evaluations\.csv cannot be read"):
        _ = OpenedRun(folder).evaluations
