"""Files of a run that are cut short or empty: which one, what is wrong, and what still works."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from tests.conftest import write_photos

from nearkin.errors import DataError
from nearkin.runs.evaluate import evaluate_run
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer

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
    return folder


def cut(path, share=0.5):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


@pytest.mark.parametrize("share", [0.0, 0.001, 0.999])
def test_the_checkpoint_can_be_used_instead_of_a_broken_encoder(folder, share):
    before = evaluate_run(folder.path)
    cut(folder.encoder_file, share)
    with pytest.raises(DataError, match=r"encoder\.safetensors cannot be read .*: delete it"):
        evaluate_run(folder.path)
    folder.encoder_file.unlink()
    assert evaluate_run(folder.path)["scores"] == before["scores"]
    shutil.rmtree(folder.checkpoints)
    with pytest.raises(DataError, match="has no checkpoint"):
        evaluate_run(folder.path)


@pytest.mark.parametrize("share", [0.0, 0.9])
def test_a_broken_checkpoint_leaves_the_encoder(folder, recipe, share):
    cut(folder.last_checkpoint, share)
    assert evaluate_run(folder.path)["images"] == 16
    with pytest.raises(DataError, match=r"last\.pt cannot be read as a checkpoint"):
        evaluate_run(folder.path, which="last")
    folder.scores_file.unlink()
    with pytest.raises(DataError, match=r"last\.pt cannot be read as a checkpoint"):
        run(recipe, RunFolder(folder.path), Observer(), resume=True)


def test_the_best_weights_are_looked_at_before_training_goes_on(folder, recipe):
    folder.scores_file.unlink()
    (best,) = folder.checkpoints.glob("best-*.pt")
    cut(best)
    with pytest.raises(DataError, match=r"best-\d+\.pt cannot be read"):
        run(recipe, RunFolder(folder.path), Observer(), resume=True)


def test_a_checkpoint_of_another_shape_is_one_line(folder, recipe):
    content = torch.load(folder.last_checkpoint, weights_only=True)
    content["encoder"]["head.weight"] = torch.zeros(7, 3)
    torch.save(content, folder.last_checkpoint)
    folder.scores_file.unlink()
    with pytest.raises(DataError, match=r"last\.pt does not fit this run \(Error\(s\) in loading"):
        run(recipe, RunFolder(folder.path), Observer(), resume=True)
    folder.encoder_file.unlink()
    with pytest.raises(DataError, match=r"the last weights in .* are not those of its recipe"):
        evaluate_run(folder.path, which="last")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("scores.json", ""),
        ("scores.json", '{"test": {"R@1": 0.'),
        ("scores.json", "[]"),
        ("evaluations.csv", "epoch,step\n0.0,zero\n"),
        ("environment.json", "{"),
        ("events.json", "{"),
    ],
)
def test_what_a_checkpoint_holds_is_written_again(folder, recipe, name, content):
    file = folder.path / name
    before = file.read_bytes() if file.exists() else None
    scores = folder.scores()
    file.write_text(content)
    read = {"scores.json": folder.scores, "evaluations.csv": folder.evaluations, "events.json": folder.events}
    with pytest.raises(DataError, match=rf"{name} cannot be read .*: delete it and scores.json"):
        read.get(name, folder.environment)()
    file.unlink()
    folder.scores_file.unlink(missing_ok=True)
    again = run(recipe, RunFolder(folder.path), Observer(), resume=True)
    assert again["test"] == scores["test"]
    assert folder.environment().data.images == 48
    if name == "evaluations.csv":
        assert file.read_bytes() == before


@pytest.mark.parametrize("content", ["", "data: {source: [\n", "data: {}\nencoder: {dim: 4}\n"])
def test_a_recipe_that_is_not_whole_is_refused(folder, content):
    folder.recipe_file.write_text(content)
    with pytest.raises(DataError, match=r"recipe\.yaml cannot be read .*put it back from a copy"):
        evaluate_run(folder.path)


def test_a_broken_split_is_not_guessed(folder, recipe):
    cut(folder.split_file)
    with pytest.raises(DataError, match=r"split\.csv cannot be read \(line \d+.*put it back from a copy"):
        evaluate_run(folder.path)
