"""Soups of small runs: their weights by hand, their scores against ``evaluate``, and what is left in the folder."""

from __future__ import annotations

import dataclasses
import json
import shutil
import warnings

import numpy as np
import pytest
import safetensors.torch
import torch

import nearkin
from nearkin.errors import BusyError, DataError, OutputError, RecipeError
from nearkin.notices import Notice, notices_told_to
from nearkin.runs.data import open_run_data
from nearkin.runs.evaluate import evaluate_run
from nearkin.runs.final import train_final
from nearkin.runs.folder import WRITTEN, RunFolder
from nearkin.runs.lock import sole_writer_of
from nearkin.runs.run import run
from nearkin.runs.soup import soup
from nearkin.runs.trained import load_run
from nearkin.training.batch_statistics import renew_batch_statistics
from nearkin.training.build import training_transform_of
from nearkin.training.checkpoint import encoder_weights
from nearkin.training.state import Silent

FROZEN = "encoder.freeze_batch_norm=true"
BASE = {"R@1", "MAP@R"}


@pytest.fixture(scope="module")
def runs(squares):
    """Runs that began alike; ``live`` ones with batch-norm that follows its batches."""
    _, train = squares
    vcpa = ("objective.name=vcpa", "objective.tau=1.0")
    return {
        "anchor": train("soup anchor", FROZEN),
        "shorter": train("soup shorter", FROZEN, "training.max_steps=2"),
        "vcpa": train("soup vcpa", FROZEN, *vcpa),
        "live": train("anchor-0"),
        "live vcpa": train("vcpa", *vcpa),
        "other seed": train("anchor-1", "training.seed=1"),
    }


def weights_of(path, which="best"):
    return encoder_weights(RunFolder(path), which)


def statistics(weights):
    return {name: value for name, value in weights.items() if name.endswith(("running_mean", "running_var"))}


def test_the_weights_are_the_mean_of_a_run_and_of_itself_two_steps_before(runs, tmp_path):
    made = soup([runs["anchor"], runs["shorter"]], tmp_path / "soup", which="last", device="cpu")
    found, one, two = (
        weights_of(tmp_path / "soup"),
        weights_of(runs["anchor"], "last"),
        weights_of(runs["shorter"], "last"),
    )
    assert set(found) == set(one)
    moved = 0
    for name, value in found.items():
        if value.is_floating_point():
            expected = (one[name].double() + two[name].double()) / 2
            torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-9)
            moved += not torch.allclose(one[name], two[name], rtol=1e-4)
    assert moved > 5, "the two steps made a difference"
    assert made.checkpoint == "last"
    assert made.batch_norm == "frozen, so its statistics stay"
    assert made.different_starts == []


def test_the_order_of_the_runs_makes_no_difference(runs, tmp_path):
    paths = [runs["anchor"], runs["shorter"], runs["vcpa"]]
    for name, given in (("one", paths), ("two", [paths[2], paths[0], paths[1]])):
        soup(given, tmp_path / name, device="cpu")
    one, two = weights_of(tmp_path / "one"), weights_of(tmp_path / "two")
    for name, value in one.items():
        if value.is_floating_point():
            torch.testing.assert_close(two[name], value, rtol=1e-6, atol=1e-9)


def test_best_and_last_weights_are_what_they_say(runs, tmp_path):
    """Of runs whose best weights were moved, so that they are surely not the last."""
    paths = []
    for name in ("anchor", "vcpa"):
        paths.append(tmp_path / name)
        shutil.copytree(runs[name], paths[-1])
        file = paths[-1] / "encoder.safetensors"
        with safetensors.safe_open(file, framework="pt") as opened:
            about = opened.metadata()
        weights = safetensors.torch.load_file(file)
        safetensors.torch.save_file(weights | {"head.bias": weights["head.bias"] + 1}, file, about)
    for which in ("best", "last"):
        soup(paths, tmp_path / which, which=which, device="cpu")
        one, two = (weights_of(path, which)["head.bias"].double() for path in paths)
        found = weights_of(tmp_path / which)["head.bias"].double()
        torch.testing.assert_close(found, (one + two) / 2, rtol=1e-6, atol=1e-9)
        assert (found.mean() > 0.5) == (which == "best")
    assert RunFolder(tmp_path / "best").scores().conditions.selection == "each run at its best R@1 on the test classes"
    assert RunFolder(tmp_path / "last").scores().conditions.selection == "each run at its last epoch"


def test_it_is_scored_as_evaluate_scores_it_beside_its_runs(runs, tmp_path):
    paths = [runs["anchor"], runs["vcpa"]]
    made = soup(paths, tmp_path / "soup", device="cpu")
    again = evaluate_run(tmp_path / "soup", device="cpu")
    assert made.test == pytest.approx(again.scores)
    assert RunFolder(tmp_path / "soup").scores().test == pytest.approx(again.scores)
    assert again.conditions == "mean of the weights of several runs"
    for part, path in zip(made.parts, paths, strict=True):
        alone = evaluate_run(path, device="cpu").scores
        assert part.run == str(path)
        assert set(part.test) >= BASE
        assert part.test == pytest.approx({name: alone[name] for name in part.test})
    assert [part.name for part in made.parts] == ["proxy_anchor", "vcpa"]


def test_the_folder_says_what_it_is(runs, tmp_path):
    made = soup([runs["anchor"], runs["vcpa"]], tmp_path / "soup", device="cpu")
    folder = RunFolder(tmp_path / "soup")
    assert folder.is_soup
    assert folder.soup() == made
    record = json.loads(folder.soup_file.read_text())
    assert (record["checkpoint"], [part["objective"] for part in record["parts"]]) == ("best", ["proxy_anchor", "vcpa"])
    assert folder.recipe() == RunFolder(runs["anchor"]).recipe()
    scores = folder.scores()
    assert scores.soup_of == [str(runs["anchor"]), str(runs["vcpa"])]
    assert scores.conditions.objective == "soup of proxy_anchor, vcpa"
    assert scores.conditions.weights == "mean of the weights of 2 runs"
    assert not scores.chosen_on_test, "no published figure is of a soup"
    assert scores.untrained == RunFolder(runs["anchor"]).scores().untrained
    assert folder.stored_split.content_hash == RunFolder(runs["anchor"]).stored_split.content_hash
    environment = folder.environment()
    assert set(environment.parameters) == {"encoder"}
    assert environment.data == RunFolder(runs["anchor"]).environment().data
    others = {file.name for file in folder.path.iterdir()} - set(WRITTEN)
    assert others <= {".lock"}, "all that is written is cleared away by --overwrite"
    assert not RunFolder(runs["anchor"]).is_soup
    assert RunFolder(runs["anchor"]).soup() is None


def test_it_is_a_model_like_any_other(runs, tmp_path):
    soup([runs["anchor"], runs["vcpa"]], tmp_path / "soup", device="cpu")
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    model = nearkin.load(tmp_path / "soup", device="cpu")
    assert model.encode(list(images)).shape == (3, 5)
    assert model.identity not in {nearkin.load(runs[name], device="cpu").identity for name in ("anchor", "vcpa")}
    assert len(model.held_out().vectors) == 20
    assert len(model.training()) == 35
    whitened = nearkin.load([tmp_path / "soup", runs["anchor"]], device="cpu", whiten=2)
    assert whitened.encode(list(images)).shape == (3, 2)


def test_batch_norm_that_was_not_frozen_is_computed_anew(runs, tmp_path):
    paths = [runs["live"], runs["live vcpa"]]
    told = []
    made = soup(paths, tmp_path / "soup", device="cpu", watch=lambda *step: told.append(step))
    assert made.batch_norm == "statistics computed anew over 35 training images"
    assert ("batch-norm's statistics", 0, 35) in told
    assert ("batch-norm's statistics", 35, 35) in told
    found, one, two = (weights_of(path) for path in (tmp_path / "soup", *paths))
    torch.testing.assert_close(found["head.weight"], (one["head.weight"] + two["head.weight"]) / 2)
    for name, value in statistics(found).items():
        assert not torch.allclose(value, (one[name] + two[name]) / 2, rtol=1e-3), name
    # Of the same weights and images they come out the same again.
    loaded = load_run(tmp_path / "soup", device="cpu")
    data = open_run_data(loaded.folder, loaded.recipe)
    with torch.no_grad():
        for norm in (module for module in loaded.encoder.modules() if hasattr(module, "running_mean")):
            norm.running_mean += 1
    transform = training_transform_of(loaded.recipe.data, loaded.encoder)
    rows = data.protocol.train_rows
    renew_batch_statistics(loaded.encoder, data.images.images, transform, rows, batch_size=12)
    for name, value in statistics(loaded.encoder.state_dict()).items():
        torch.testing.assert_close(value, found[name], rtol=1e-4, atol=1e-6)


def test_one_run_whose_batch_norm_was_live_is_enough_to_compute_it_anew(runs, tmp_path):
    made = soup([runs["anchor"], runs["live"]], tmp_path / "soup", device="cpu")
    assert made.batch_norm.startswith("statistics computed anew")


def test_frozen_batch_norm_stays(runs, tmp_path):
    soup([runs["anchor"], runs["vcpa"]], tmp_path / "soup", device="cpu")
    before = statistics(weights_of(runs["anchor"]))
    assert before
    for name, value in statistics(weights_of(tmp_path / "soup")).items():
        torch.testing.assert_close(value, before[name])


def test_runs_that_began_otherwise_are_averaged_with_a_word_on_it(runs, tmp_path):
    said = []
    with notices_told_to(said.append):
        made = soup([runs["live"], runs["other seed"]], tmp_path / "soup", device="cpu")
    assert [text for text in said if "usually worthless" in text] == list(made.different_starts)
    assert len(made.different_starts) == 1
    folder = RunFolder(tmp_path / "soup")
    assert folder.soup().different_starts == made.different_starts
    assert folder.scores().conditions.weights == "mean of the weights of 2 runs (seeds 0, 1)"
    assert folder.scores().untrained is None, "each had its own"
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        soup([runs["anchor"], runs["vcpa"]], tmp_path / "alike", device="cpu")


def test_all_are_seen_as_the_first_was_scored(runs, squares, tmp_path):
    _, train = squares
    flipped = train("soup flipped", FROZEN, "protocol.flip=true", "objective.name=proxy_nca")
    said = []
    with notices_told_to(said.append):
        made = soup([flipped, runs["anchor"]], tmp_path / "soup", device="cpu")
    assert [text for text in said if "seen as that was" in text and str(runs["anchor"]) in text]
    mirrored = evaluate_run(runs["anchor"], device="cpu", flip=True).scores
    assert made.parts[1].test == pytest.approx({name: mirrored[name] for name in made.parts[1].test})
    assert mirrored["MAP@R"] != pytest.approx(evaluate_run(runs["anchor"], device="cpu").scores["MAP@R"])
    scores = RunFolder(tmp_path / "soup").scores()
    tested = "embeddings averaged with those of mirror images"
    assert scores.conditions.selection == f"each run at its best R@1 on the test classes; {tested}"


@pytest.mark.parametrize("kind", ["frozen", "live"])
def test_final_models_make_a_soup_without_a_score(runs, tmp_path, kind):
    finals = []
    for name in ("anchor", "vcpa") if kind == "frozen" else ("live", "live vcpa"):
        train_final(runs[name], Silent(), output=tmp_path / name, device="cpu")
        finals.append(tmp_path / name)
    made = soup(finals, tmp_path / "soup", device="cpu")
    anew = "statistics computed anew over 55 training images"
    assert made.batch_norm == ("frozen, so its statistics stay" if kind == "frozen" else anew)
    assert (made.test, [part.test for part in made.parts]) == (None, [None, None])
    assert RunFolder(tmp_path / "soup").scores().test is None
    assert nearkin.load(tmp_path / "soup", device="cpu").dim == 5
    with pytest.raises(DataError, match="trained on 4 of the 4 classes"):
        soup([runs["anchor"], finals[1]], tmp_path / "leak", device="cpu")


def test_parts_without_weights_are_named_before_an_image_is_read(runs, tmp_path, monkeypatch):
    shutil.copytree(runs["vcpa"], tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / "checkpoints")
    (tmp_path / "bare" / "encoder.safetensors").unlink()
    monkeypatch.setattr("nearkin.runs.soup.open_run_data", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(DataError, match="bare has no checkpoint"):
        soup([runs["anchor"], tmp_path / "bare"], tmp_path / "soup", device="cpu")
    assert not (tmp_path / "soup").exists()


def test_a_folder_that_holds_something_is_not_written_to(runs, tmp_path):
    paths = [runs["anchor"], runs["vcpa"]]
    before = {file.name: file.read_bytes() for file in runs["anchor"].iterdir() if file.is_file()}
    with pytest.raises(RecipeError, match="holds a run already: give another folder with -o"):
        soup(paths, runs["anchor"])
    assert {file.name: file.read_bytes() for file in runs["anchor"].iterdir() if file.is_file()} == before
    soup(paths, tmp_path / "soup", device="cpu")
    with pytest.raises(RecipeError, match="holds a soup already"):
        soup(paths, tmp_path / "soup")
    (tmp_path / "file").touch()
    with pytest.raises(RecipeError, match="is a file"):
        soup(paths, tmp_path / "file")
    with pytest.raises(BusyError), sole_writer_of(tmp_path / "held"):
        soup(paths, tmp_path / "held")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "notes.txt").write_text("mine")
    soup(paths, tmp_path / "own", device="cpu")
    assert (tmp_path / "own" / "notes.txt").read_text() == "mine"


def test_a_disk_that_fills_up_leaves_no_half_soup(runs, tmp_path, monkeypatch):
    def full(*_):
        raise OutputError("no room")

    monkeypatch.setattr(RunFolder, "write_recipe", full)
    with pytest.raises(OutputError):
        soup([runs["anchor"], runs["vcpa"]], tmp_path / "soup", device="cpu")
    assert not (tmp_path / "soup").exists()


def test_it_is_not_trained_further(runs, tmp_path):
    soup([runs["anchor"], runs["vcpa"]], tmp_path / "soup", device="cpu")
    folder, recipe = RunFolder(tmp_path / "soup"), RunFolder(runs["anchor"]).recipe()
    for resume in (True, False):
        with pytest.raises(RecipeError, match=r"soup is a soup, .* no training to continue"):
            run(recipe, folder, Silent(), resume=resume)
    with pytest.raises(RecipeError, match=r"was not trained: make a final model of each of its runs \(.*, .*\)"):
        train_final(tmp_path / "soup", Silent())
    run(recipe, folder, Silent(), overwrite=True)
    assert not folder.is_soup
    assert folder.scores().soup_of == ()


def test_it_has_no_checkpoints_and_says_so(runs, tmp_path):
    soup([runs["anchor"], runs["vcpa"]], tmp_path / "soup", device="cpu")
    with pytest.raises(DataError, match=r"is a soup: .* no checkpoints. Leave out --checkpoint"):
        load_run(tmp_path / "soup", which="last")
    file = tmp_path / "soup" / "encoder.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(DataError, match="make it anew with nearkin soup"):
        load_run(tmp_path / "soup")


def test_a_damaged_record_is_one_line(runs, tmp_path):
    soup([runs["anchor"], runs["vcpa"]], tmp_path / "soup", device="cpu")
    folder = RunFolder(tmp_path / "soup")
    for text in ("{", "[]", "{}", '{"parts": [{}]}', '{"parts": 3}'):
        folder.soup_file.write_text(text)
        with pytest.raises(DataError, match=r"soup.json cannot be read .* encoder.safetensors can still be used"):
            folder.soup()
    assert evaluate_run(folder.path, device="cpu").scores.keys() >= BASE


def test_images_that_have_moved_are_looked_for_by_way_of_the_runs(runs, squares, tmp_path):
    soup([runs["anchor"], runs["vcpa"]], tmp_path / "soup", device="cpu")
    folder = RunFolder(tmp_path / "soup")
    recipe = folder.recipe().but({"data.source": str(tmp_path / "gone.csv")})
    folder.write_recipe(recipe)
    with pytest.raises(DataError, match=r"tell the runs that it is a soup of .* make it anew"):
        evaluate_run(folder.path, device="cpu")


def test_the_root_of_the_benchmarks_can_be_given(runs, tmp_path):
    soup([runs["anchor"], runs["vcpa"]], tmp_path / "soup", device="cpu", data_root=tmp_path)
    recipe = RunFolder(tmp_path / "soup").recipe()
    assert recipe.data.root == str(tmp_path)
    assert dataclasses.replace(recipe.data, root=None) == dataclasses.replace(
        RunFolder(runs["anchor"]).recipe().data, root=None
    )
