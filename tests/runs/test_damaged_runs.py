"""Files of a run that are cut short, empty, or another run's: which one, what is wrong, and what still works."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
import torch
from tests.conftest import write_photos

from nearkin.errors import DataError, Notice
from nearkin.runs.evaluate import evaluate_run
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.recipes import load_recipe
from nearkin.training.state import NullObserver

pytestmark = pytest.mark.filterwarnings("ignore::nearkin.errors.Notice")

QUICK = {
    "data": {"transform": "mild", "image_size": 16, "workers": 1},
    "encoder": {"backbone": "small", "dim": 4},
    "training": {"epochs": 2, "batch_size": 8, "learning_rate": 1e-3, "device": "cpu"},
    "protocol": {"name": "conventional", "test_share": 0.34},
}


@pytest.fixture
def recipe(photos):
    return load_recipe(QUICK, [f"data.source={json.dumps(str(photos))}"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, trained once; its photos are those of every test."""
    root = tmp_path_factory.mktemp("damaged")
    recipe = load_recipe(QUICK, [f"data.source={json.dumps(str(write_photos(root / 'own photos')))}"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEARKIN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        run(recipe, RunFolder(root / "run"))
    return RunFolder(root / "run")


@pytest.fixture
def folder(finished, recipe, tmp_path):
    folder = RunFolder(shutil.copytree(finished.path, tmp_path / "run"))
    folder.write_recipe(recipe)
    folder.write_environment(dataclasses.replace(folder.environment(), resolved_recipe=recipe.as_mapping()))
    return folder


def cut(path, share=0.5):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


@pytest.mark.parametrize("share", [0.0, 0.001, 0.999])
def test_a_broken_encoder_gives_way_to_the_checkpoint(folder, share):
    before = evaluate_run(folder.path)
    cut(folder.encoder_file, share)
    with pytest.warns(Notice, match=r"encoder\.safetensors cannot be read.*taken from the checkpoint"):
        assert evaluate_run(folder.path)["scores"] == before["scores"]
    shutil.rmtree(folder.checkpoints)
    with pytest.warns(Notice, match="cannot be read"), pytest.raises(DataError, match="has no checkpoint"):
        evaluate_run(folder.path)


@pytest.mark.parametrize("share", [0.0, 0.9])
def test_a_broken_checkpoint_leaves_the_encoder(folder, recipe, share):
    cut(folder.last_checkpoint, share)
    assert evaluate_run(folder.path)["images"] == 16
    with pytest.raises(DataError, match=r"last\.pt cannot be read as a checkpoint"):
        evaluate_run(folder.path, which="last")
    folder.scores_file.unlink()
    with pytest.raises(DataError, match=r"last\.pt cannot be read as a checkpoint"):
        run(recipe, RunFolder(folder.path), NullObserver(), resume=True)


def test_the_best_weights_are_looked_at_before_training_goes_on(folder, recipe):
    folder.scores_file.unlink()
    (best,) = folder.checkpoints.glob("best-*.pt")
    cut(best)
    with pytest.raises(DataError, match=r"best-\d+\.pt cannot be read.*checkpoint last"):
        run(recipe, RunFolder(folder.path), NullObserver(), resume=True)


@pytest.mark.parametrize("difference", ["seed", "images"])
def test_another_runs_files_are_refused(folder, recipe, photos, tmp_path, difference):
    if difference == "images":
        shutil.rmtree(photos / "kiwi")
        other = recipe
        said = "its images, classes or split differ"
    else:
        other = load_recipe(recipe.as_mapping(), ["training.seed=1"])
        said = r"training\.seed was 1, is 0"
    run(other, RunFolder(tmp_path / "other"), NullObserver())
    for name in ("encoder.safetensors", "checkpoints/last.pt"):
        shutil.copyfile(tmp_path / "other" / name, folder.path / name)
    with (
        pytest.warns(Notice, match=rf"encoder\.safetensors is not of this run \({said}"),
        pytest.raises(DataError, match=r"last\.pt is not of this run"),
    ):
        evaluate_run(folder.path)
    folder.scores_file.unlink()
    if difference == "seed":
        with pytest.raises(DataError, match=rf"last\.pt is not of this run \({said}\): put back the run's own"):
            run(recipe, RunFolder(folder.path), NullObserver(), resume=True)


def test_a_checkpoint_of_another_shape_is_one_line(folder, recipe):
    content = torch.load(folder.last_checkpoint, weights_only=True)
    content["encoder"]["head.weight"] = torch.zeros(7, 3)
    torch.save(content, folder.last_checkpoint)
    folder.scores_file.unlink()
    with pytest.raises(DataError, match=r"last\.pt does not fit this run \(Error\(s\) in loading"):
        run(recipe, RunFolder(folder.path), NullObserver(), resume=True)
    folder.encoder_file.unlink()
    with pytest.raises(DataError, match=r"the last weights in .* are not those of its recipe"):
        evaluate_run(folder.path, which="last")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("scores.json", ""),
        ("scores.json", '{"test": {"R@1": 0.'),
        ("scores.json", "[]"),
        ("evaluations.csv", "epoch,st"),
        ("evaluations.csv", "epoch,step\n0.0,zero\n"),
        ("evaluations.csv", "epoch,step,R@1\n0.0,0\n"),
        ("environment.json", "{"),
        ("events.json", "{}"),
        ("recipe.yaml", ""),
        ("recipe.yaml", "data: {source: [\n"),
        ("recipe.yaml", "data: {}\nencoder: {dim: 4}\n"),
    ],
)
def test_what_a_checkpoint_knows_is_written_anew(folder, recipe, name, content):
    file = folder.path / name
    before = file.read_bytes() if file.exists() else None
    scores = folder.scores()
    file.write_text(content)
    read = {"scores.json": folder.scores, "evaluations.csv": folder.evaluations, "events.json": folder.events}.get(name)
    if read is not None:
        with pytest.raises(DataError, match=rf"{name} cannot be read \(.*written again .*nearkin train .* --resume"):
            read()
    with pytest.warns(Notice, match=rf"{name} cannot be read: it is written again"):
        again = run(recipe, RunFolder(folder.path), NullObserver(), resume=True)
    assert again["test"] == scores["test"]
    assert folder.damaged() == []
    if name in ("evaluations.csv", "recipe.yaml"):
        assert file.read_bytes() == before


def test_a_recipe_that_is_nowhere_else_is_missed(folder):
    folder.recipe_file.write_text("")
    with pytest.warns(Notice, match=r"recipe\.yaml cannot be read \(it is not whole\); the recipe is taken from"):
        assert evaluate_run(folder.path)["images"] == 16
    folder.environment_file.write_text("")
    with pytest.raises(DataError, match=r"recipe\.yaml cannot be read .*put it back from a copy"):
        evaluate_run(folder.path)


def test_a_broken_split_is_not_guessed(folder, recipe):
    cut(folder.split_file)
    with pytest.raises(DataError, match=r"split\.csv cannot be read \(line \d+.*put it back from a copy"):
        evaluate_run(folder.path)
