"""The reality check on photographs that take a second to learn, with two folds of two classes."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file, save_file

from nearkin.errors import DataError, InterruptedRunError, RecipeError, TrainingError
from nearkin.notices import Notice
from nearkin.recipe import Recipe
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import TrainedRun, run
from nearkin.studies import mlrc
from nearkin.studies.mlrc import default_mlrc_folder, mlrc_models, run_mlrc
from nearkin.training.observers import ConsoleObserver

TINY = {
    "data": {"transform": "mild", "image_size": 8, "workers": 1},
    "encoder": {"backbone": "small", "dim": 4},
    "training": {"epochs": 2, "max_steps": 3, "batch_size": 8, "device": "cpu", "learning_rate": 1e-3, "seed": 5},
    "objective": {"name": "proxy_anchor"},
    "protocol": {"name": "conventional", "folds": 2, "test_share": 0.35},
}


@pytest.fixture
def recipe(photos):
    return Recipe.from_mapping(TINY, [f"data.source={json.dumps(str(photos))}"])


@pytest.fixture
def trained(monkeypatch):
    """Trains in this process, which is faster; gives the labels of the models that were trained."""
    labels = []

    def train(runs, *, at_once, begin, end, console):
        for each in runs:
            begin(each)
            with ConsoleObserver(console) as observer:
                run(each.recipe, each.folder, observer, resume=True)
            end(each, 0, "")
            labels.append(each.label)

    monkeypatch.setattr(mlrc, "train_side_by_side", train)
    return labels


@pytest.fixture
def embedded(monkeypatch):
    """How often images were embedded for the reality check."""
    calls, genuine = [], TrainedRun.embed

    def embed(trained, images, rows):
        calls.append(len(rows))
        return genuine(trained, images, rows)

    monkeypatch.setattr(TrainedRun, "embed", embed)
    return calls


def reference(vectors, labels, gallery=None, gallery_labels=None):
    """R@1, P@R and MAP@R by sorting all distances, query by query."""
    rows = []
    for query, vector in enumerate(vectors):
        among = vectors if gallery is None else gallery
        owners = labels if gallery is None else gallery_labels
        places = [row for row in range(len(among)) if gallery is not None or row != query]
        order = sorted(places, key=lambda row: ((among[row] - vector) ** 2).sum())
        hits = (owners[order] == labels[query]).astype(float)
        total = int(hits.sum())
        precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
        rows.append((hits[0], hits[:total].mean(), (precision * hits)[:total].sum() / total))
    return dict(zip(("R@1", "P@R", "MAP@R"), np.mean(rows, axis=0), strict=True))


def kept_embeddings(folder):
    """``{(fold, seed): array}`` from the files beside the models, in double precision and of length 1."""
    found = {}
    for file in folder.glob("fold-*/seed-*/test_embeddings-*.npy"):
        vectors = np.load(file).astype(np.float64)
        key = tuple(int(part.split("-")[1]) for part in file.parts[-3:-1])
        assert key not in found
        found[key] = vectors / np.sqrt((vectors**2).sum(axis=1, keepdims=True))
    return found


def test_one_repeat_and_then_a_second(recipe, tmp_path, trained, embedded):
    folder = tmp_path / "check"
    first = run_mlrc(recipe, folder)
    assert trained == ["fold 0 of 0–1, repeat 0, seed 5", "fold 1 of 0–1, repeat 0, seed 6"]
    assert embedded == [16, 16]
    assert (first["protocol"], first["folds"], first["repeats"], first["seeds"]) == ("mlrc", 2, 1, [5, 6])
    assert (first["dim"], first["concatenated_dim"]) == (4, 8)
    assert first["selection"] == "best MAP@R on the held-out class fold of each model"
    assert first["test_classes"] == "classes never seen in training"
    assert first["hardware"].startswith("CPU")
    assert json.loads((folder / "mlrc.json").read_text()) == first

    runs = [RunFolder(folder / f"fold-{fold}" / f"seed-{seed}").scores() for fold, seed in ((0, 5), (1, 6))]
    assert [each["protocol"] for each in runs] == ["mlrc", "mlrc"]
    assert runs[1]["selection"] == "best MAP@R on the held-out class fold 1 of 0–1"
    for name in ("R@1", "P@R", "MAP@R"):
        value = first["separate"][name]
        assert value["mean"] == pytest.approx((runs[0]["test"][name] + runs[1]["test"][name]) / 2)
        assert (value["spread"], value["interval"]) == (None, None)
        assert first["concatenated"][name]["interval"] is None
    assert [model["chosen_by"] for model in first["models"]] == [each["best"]["MAP@R"] for each in runs]

    second = run_mlrc(recipe, folder, repeats=2)
    assert trained[2:] == ["fold 0 of 0–1, repeat 1, seed 7", "fold 1 of 0–1, repeat 1, seed 8"]
    assert embedded == [16] * 4, "the first models' embeddings were kept"
    assert second["seeds"] == [5, 6, 7, 8]
    assert second["models"][:2] == first["models"]
    assert second["combinations"]["repeats_by_fold"] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    vectors, labels = kept_embeddings(folder), np.repeat([0, 1], 8)
    for number, (one, two) in enumerate(itertools.product((0, 1), repeat=2)):
        expected = reference(np.hstack([vectors[0, 5 + 2 * one], vectors[1, 6 + 2 * two]]), labels)
        ours = {name: value["values"][number] for name, value in second["concatenated"].items()}
        assert ours == pytest.approx(expected)
    for name, value in second["separate"].items():
        each = [model["scores"][name] for model in second["models"]]
        means = [(each[0] + each[1]) / 2, (each[2] + each[3]) / 2]
        assert value["values"] == pytest.approx(means)
        half = 12.7062 * abs(means[0] - means[1]) / 2
        assert value["interval"] == pytest.approx([sum(means) / 2 - half, sum(means) / 2 + half], abs=1e-4)
    assert second["concatenated"]["MAP@R"]["interval"][0] <= second["concatenated"]["MAP@R"]["mean"]

    assert run_mlrc(recipe, folder)["separate"] == first["separate"], "fewer repeats leave the others out"
    assert len(trained) == len(embedded) == 4


def test_models_differ_in_fold_and_seed_alone(recipe, tmp_path):
    models = mlrc_models(recipe, tmp_path, 3)
    assert len({model.seed for model in models}) == len({model.folder.path for model in models}) == 6
    assert [model.recipe.protocol.fold for model in models] == [0, 1] * 3
    assert {model.recipe.protocol.name for model in models} == {"mlrc"}
    assert default_mlrc_folder(recipe).name.startswith("mlrc-own photos-proxy_anchor-")


def test_an_interruption_loses_nothing(recipe, tmp_path, trained, monkeypatch):
    train = mlrc.train_side_by_side

    def stop_after_one(runs, **options):
        train(runs[:1], **options)
        raise InterruptedRunError("interrupted; the same command goes on")

    with monkeypatch.context() as patch:
        patch.setattr(mlrc, "train_side_by_side", stop_after_one)
        with pytest.raises(InterruptedRunError, match=r"1 of 2 models trained.*The same command goes on"):
            run_mlrc(recipe, tmp_path / "check")
    assert not (tmp_path / "check" / "mlrc.json").exists()
    result = run_mlrc(recipe, tmp_path / "check")
    assert len(trained) == 2
    straight = run_mlrc(recipe, tmp_path / "straight")
    assert result["concatenated"] == straight["concatenated"]


def test_a_model_that_fails_is_named_with_its_reason(recipe, tmp_path, monkeypatch):
    def fail(code):
        def train(runs, *, begin, end, **_):
            for each in runs:
                begin(each)
                end(each, code, "the loss became nan at step 3")

        monkeypatch.setattr(mlrc, "train_side_by_side", train)

    fail(5)
    with pytest.raises(TrainingError, match=r"2 of 2 models did not finish: fold 0 of 0–1.*the loss became nan"):
        run_mlrc(recipe, tmp_path / "check")
    fail(3)
    with pytest.raises(DataError, match="did not finish"):
        run_mlrc(recipe, tmp_path / "check")


def test_what_cannot_be_done_is_said_before_anything_is_trained(recipe, photos, tmp_path, trained):
    def changed(*overrides):
        return Recipe.from_mapping(TINY, [f"data.source={json.dumps(str(photos))}", *overrides])

    with pytest.raises(DataError, match=r"4 classes that are not tested; 4 folds of at least 2 need 8"):
        run_mlrc(changed("protocol.folds=4"), tmp_path / "check")
    with pytest.raises(RecipeError, match="at least 1, got 0 and 1"):
        run_mlrc(recipe, tmp_path / "check", repeats=0)
    assert not trained
    assert not (tmp_path / "check").exists()
    run_mlrc(recipe, tmp_path / "check")
    with pytest.raises(RecipeError, match=r"another recipe \(objective\.alpha was None, is 16\.0\)"):
        run_mlrc(changed("objective.alpha=16"), tmp_path / "check")


def test_embeddings_of_other_weights_are_not_used(recipe, tmp_path, trained, embedded):
    run_mlrc(recipe, tmp_path / "check")
    ours, other = (tmp_path / "check" / name / "encoder.safetensors" for name in ("fold-0/seed-5", "fold-1/seed-6"))
    save_file(load_file(other), ours)
    run_mlrc(recipe, tmp_path / "check")
    assert len(embedded) == 3
    vectors = kept_embeddings(tmp_path / "check")
    assert np.array_equal(vectors[0, 5], vectors[1, 6]), "and one file is left beside each model"


def test_models_of_other_images_make_no_ensemble(recipe, photos, tmp_path, trained):
    before = run_mlrc(recipe, tmp_path / "check")
    (photos / "a new one").mkdir()
    for number, file in enumerate(sorted((photos / "kiwi").iterdir())):
        Image.fromarray(255 - np.asarray(Image.open(file))).save(photos / "a new one" / f"{number}.png")
    with pytest.warns(Notice, match="8 images of 1 new class came after the run began and are left out"):
        again = run_mlrc(recipe, tmp_path / "check")
    assert again["concatenated"] == before["concatenated"]
    with pytest.raises(DataError, match=r"not those that .*fold-0/seed-5 was trained on.*ensemble \(8 images of 1 new"):
        run_mlrc(recipe, tmp_path / "check", repeats=2)
    assert len(trained) == 2


def test_queries_are_searched_in_the_gallery(photos, tmp_path, trained):
    kinds = sorted(path.name for path in photos.iterdir())
    lines = ["path,label,split"]
    for number, kind in enumerate(kinds):
        for place, file in enumerate(sorted((photos / kind).iterdir())):
            split = "train" if number < 4 else ("query" if place % 3 == 0 else "gallery")
            lines.append(f"{kind}/{file.name},{kind},{split}")
    (photos / "list.csv").write_text("\n".join(lines))
    recipe = Recipe.from_mapping(TINY, [f"data.source={json.dumps(str(photos / 'list.csv'))}"])
    result = run_mlrc(recipe, tmp_path / "check")
    vectors = kept_embeddings(tmp_path / "check")
    joined = np.hstack([vectors[0, 5], vectors[1, 6]])
    assert joined.shape == (16, 8)
    expected = reference(joined[:6], np.repeat([0, 1], 3), joined[6:], np.repeat([0, 1], 5))
    assert {name: value["mean"] for name, value in result["concatenated"].items()} == pytest.approx(expected)


def test_many_repeats_are_sampled_and_say_so(recipe, tmp_path, trained, monkeypatch):
    monkeypatch.setattr(mlrc, "MOST_COMBINATIONS", 3)
    console = Console(file=(tmp_path / "said").open("w"))
    result = run_mlrc(recipe, tmp_path / "check", repeats=2, console=console)
    assert (result["combinations"]["scored"], result["combinations"]["possible"]) == (3, 4)
    assert len(result["concatenated"]["R@1"]["values"]) == 3
    console.file.close()
    assert "scoring 3 combinations" in (tmp_path / "said").read_text()


def test_embeddings_in_the_ball_are_compared_by_distance(recipe, photos, tmp_path, trained):
    source = f"data.source={json.dumps(str(photos))}"
    result = run_mlrc(Recipe.from_mapping(TINY, [source, "encoder.normalisation=ball"]), tmp_path / "check")
    folders = [RunFolder(tmp_path / "check" / name) for name in ("fold-0/seed-5", "fold-1/seed-6")]
    for model, folder in zip(result["models"], folders, strict=True):
        assert model["scores"]["R@1"] == pytest.approx(folder.scores()["test"]["R@1"])
        assert model["scores"]["MAP@R"] == pytest.approx(folder.scores()["test"]["MAP@R"])
    raw = [np.load(next(folder.path.glob("test_embeddings-*.npy"))).astype(np.float64) for folder in folders]
    expected = reference(np.hstack(raw), np.repeat([0, 1], 8))
    assert {name: value["mean"] for name, value in result["concatenated"].items()} == pytest.approx(expected)
