from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import nearkin
from nearkin.errors import DataError, InterruptedRunError, Notice, RecipeError, TrainingError
from nearkin.runs.folder import RunFolder
from nearkin.runs.scores import EnsembleScores
from nearkin.studies import study
from nearkin.studies.mlrc import RealityCheck, mlrc, mlrc_models
from nearkin.studies.mlrc.check import default_mlrc_folder


def test_one_repeat_and_then_a_second(recipe, tmp_path, trained, embedded):
    assert nearkin.mlrc is mlrc
    folder = tmp_path / "check"
    said = Console(file=io.StringIO(), width=200)
    first = mlrc(recipe, folder=folder, console=said)
    assert "fold 0 of 0–1, repeat 0, seed 5" in said.file.getvalue()
    assert "fold 1 of 0–1, repeat 0, seed 6" in said.file.getvalue()
    assert trained == [(0, 5), (1, 6)]
    assert embedded == [16, 16]
    assert (first["protocol"], first.folds, first.repeats, first.seeds) == ("mlrc", 2, 1, [5, 6])
    assert (first.dim, first.concatenated_dim) == (4, 8)
    assert first.conditions.selection == "best MAP@R on the held-out class fold of each model"
    assert first.conditions.test_classes == "classes never seen in training"
    assert first.conditions.hardware.startswith("CPU")
    assert json.loads((folder / "mlrc.json").read_text()) == dict(first)
    assert EnsembleScores.read(folder) == first
    assert (folder / "mlrc.md").read_text().startswith("# MLRC on own photos: proxy_anchor, ")

    runs = [RunFolder(folder / f"fold-{fold}" / f"seed-{seed}").scores() for fold, seed in ((0, 5), (1, 6))]
    assert [each.conditions.protocol for each in runs] == ["mlrc", "mlrc"]
    assert runs[1].conditions.selection == "best MAP@R on the held-out class fold 1 of 0–1"
    for name in ("R@1", "P@R", "MAP@R"):
        value = first.separate[name]
        assert value.mean == pytest.approx((runs[0].test[name] + runs[1].test[name]) / 2)
        assert (value.spread, value.interval) == (None, None)
        assert first["separate"][name]["interval"] is None
        assert first.concatenated[name].interval is None
    assert [model.chosen_by for model in first.models] == [each.best["MAP@R"] for each in runs]

    second = mlrc(recipe, folder=folder, repeats=2)
    assert trained[2:] == [(0, 7), (1, 8)]
    assert embedded == [16] * 4, "the first models' embeddings were kept"
    assert second.seeds == [5, 6, 7, 8]
    assert second.models[:2] == first.models

    assert mlrc(recipe, folder=folder).separate == first.separate, "fewer repeats leave the others out"
    assert len(trained) == len(embedded) == 4


def test_a_recipe_may_be_given_by_name_with_changes(photos, tmp_path, trained):
    (tmp_path / "tiny.yaml").write_text(
        "data: {transform: mild, image_size: 8, workers: 1}\n"
        "encoder: {backbone: small, dim: 4}\n"
        "training: {epochs: 1, max_steps: 1, batch_size: 8, device: cpu}\n"
        "protocol: {test_share: 0.35}\n"
    )
    changes = [f"data.source={json.dumps(str(photos))}", "protocol.folds=2", "training.seed=3"]
    assert mlrc(str(tmp_path / "tiny.yaml"), changes=changes, folder=tmp_path / "check").seeds == [3, 4]


def test_models_differ_in_fold_and_seed_alone(recipe, tmp_path):
    models = mlrc_models(recipe, tmp_path, 3)
    assert len({model.seed for model in models}) == len({model.folder.path for model in models}) == 6
    assert [model.recipe.protocol.fold for model in models] == [0, 1] * 3
    assert {model.recipe.protocol.name for model in models} == {"mlrc"}
    assert default_mlrc_folder(recipe).name.startswith("mlrc-own photos-proxy_anchor-")


def test_an_interruption_loses_nothing(recipe, tmp_path, trained, monkeypatch):
    train = study.run

    def stop_at_the_second(recipe, *arguments, **options):
        if recipe.protocol.fold == 1:
            raise InterruptedRunError("interrupted; the same command goes on")
        train(recipe, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(study, "run", stop_at_the_second)
        with pytest.raises(InterruptedRunError, match=r"1 of 2 runs finished.*The same command goes on"):
            mlrc(recipe, folder=tmp_path / "check")
    assert not (tmp_path / "check" / "mlrc.json").exists()
    with pytest.raises(DataError, match=r"no mlrc\.json yet"):
        RealityCheck(recipe, folder=tmp_path / "check").tables()
    result = mlrc(recipe, folder=tmp_path / "check")
    assert len(trained) == 2
    straight = mlrc(recipe, folder=tmp_path / "straight")
    assert result.concatenated == straight.concatenated


@pytest.mark.parametrize("kind", [TrainingError, DataError])
def test_a_model_that_fails_is_named_with_its_reason(recipe, tmp_path, monkeypatch, kind):
    def fail(*_, **__):
        raise kind("the loss became nan at step 3")

    monkeypatch.setattr(study, "run", fail)
    with pytest.raises(kind, match="2 of 2 models did not finish: fold 0 of 0–1, repeat 0, seed 5: the loss"):
        mlrc(recipe, folder=tmp_path / "check")
    assert not (tmp_path / "check" / "mlrc.json").exists()


def test_what_cannot_be_done_is_said_before_anything_is_trained(make_recipe, tmp_path, trained):
    folder = tmp_path / "check"
    with pytest.raises(DataError, match=r"4 classes that are not tested; 4 folds of at least 2 need 8"):
        mlrc(make_recipe("protocol.folds=4"), folder=folder)
    with pytest.raises(RecipeError, match="repeats must be at least 1, got 0"):
        mlrc(make_recipe(), folder=folder, repeats=0)
    with pytest.raises(RecipeError, match="jobs must be at least 1, got 0"):
        mlrc(make_recipe(), folder=folder, jobs=0)
    assert not trained
    assert not folder.exists()
    mlrc(make_recipe(), folder=folder)
    with pytest.raises(RecipeError, match=r"another recipe \(objective\.alpha was None, is 16\.0\)"):
        mlrc(make_recipe("objective.alpha=16"), folder=folder)


def test_models_of_other_images_make_no_ensemble(recipe, photos, tmp_path, trained):
    before = mlrc(recipe, folder=tmp_path / "check")
    (photos / "a new one").mkdir()
    for number, file in enumerate(sorted((photos / "kiwi").iterdir())):
        Image.fromarray(255 - np.asarray(Image.open(file))).save(photos / "a new one" / f"{number}.png")
    with pytest.warns(Notice, match="8 images of 1 new class came after the run began and are left out"):
        again = mlrc(recipe, folder=tmp_path / "check")
    assert again.concatenated == before.concatenated
    with pytest.raises(DataError, match=r"not those that .*fold-0/seed-5 was trained on.*ensemble \(8 images of 1 new"):
        mlrc(recipe, folder=tmp_path / "check", repeats=2)
    assert len(trained) == 2
