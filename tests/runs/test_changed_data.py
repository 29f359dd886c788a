"""Images that come, go, move or change after a run began: what was trained on stays known, and nothing goes unsaid."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from PIL import Image
from tests.rows import Rows

from nearkin.errors import DataError, Notice, RecipeError
from nearkin.report.figures.neighbours import draw_neighbours
from nearkin.runs.evaluate import evaluate_run
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.studies.study import Row
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer

pytestmark = pytest.mark.filterwarnings("ignore::nearkin.errors.Notice")

QUICK = {
    "data": {"transform": "mild", "image_size": 16, "workers": 1},
    "encoder": {"backbone": "small", "dim": 4},
    "objective": {"name": "proxy_anchor"},
    "training": {"epochs": 4, "batch_size": 8, "learning_rate": 1e-3, "device": "cpu"},
    "protocol": {"name": "conventional", "test_share": 0.34},
}


class Killed(Exception):
    pass


class KillAfter(Observer):
    def on_step(self, state, loss, images):
        if state.step == 9:
            raise Killed


def recipe_for(photos, *overrides):
    return load_recipe(QUICK, [f"data.source={json.dumps(str(photos))}", *overrides])


def changed_source(folder, photos):
    return RunFolder(folder).recipe().with_changes({"data.source": str(photos)})


def test_kinds_that_were_added_do_not_make_trained_ones_unseen(trained, photos, add_kinds, kinds):
    before = evaluate_run(trained)
    tested = kinds(trained, "test")
    add_kinds(photos, *(f"{letter} new" for letter in "abcdefg"))
    with pytest.warns(Notice, match=r"28 images of 7 new classes came after the run began: left out \(a new, b"):
        after = evaluate_run(trained)
    assert after["scores"] == before["scores"]
    assert (after["images"], after["classes"]) == (16, len(tested)) == (16, 2)
    with pytest.warns(Notice, match="7 new classes"):
        assert draw_neighbours(RunFolder(trained)) is not None


def test_renamed_kinds_and_moved_files_are_the_same_images(trained, photos):
    before = evaluate_run(trained)
    for number, kind in enumerate(sorted(photos.iterdir(), reverse=True)):
        kind.rename(photos / f"{number} renamed")
    with pytest.warns(Notice, match="48 images in another class than when the run began"):
        assert evaluate_run(trained)["scores"] == before["scores"]


def test_test_images_that_are_gone_are_counted(trained, photos, kinds):
    first, second = (photos / kinds(trained, "test")[0] / f"Bild {number} ä.png" for number in (0, 1))
    first.unlink()
    shutil.copyfile(photos / kinds(trained, "test")[1] / "Bild 0 ä.png", second)
    with pytest.warns(Notice, match=r"2 of 16 test images missing or changed .*scored without them"):
        assert evaluate_run(trained)["images"] == 14


def test_a_run_resumes_with_its_images_and_classes_whatever_became_of_their_names(photos, tmp_path, add_kinds, kinds):
    whole, broken = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    run(recipe_for(photos), whole, Observer())
    with pytest.raises(Killed):
        run(recipe_for(photos), broken, KillAfter())
    trains = kinds(broken.path, "train")
    (photos / trains[0]).rename(photos / "zzz")
    (photos / trains[-1]).rename(photos / "000")
    add_kinds(photos, "a new one", "and another")
    moved = photos.rename(photos.with_name("moved"))
    with pytest.warns(Notice, match=r"2 new classes.*left out"):
        run(recipe_for(moved), RunFolder(broken.path), Observer(), resume=True)
    a, b = (torch.load(folder.last_checkpoint, weights_only=True) for folder in (whole, broken))
    for part in ("encoder", "objective"):
        assert all(torch.equal(a[part][name], b[part][name]) for name in a[part]), part
    assert [row["R@1"] for row in a["history"]] == [row["R@1"] for row in b["history"]]
    assert whole.scores()["test"] == broken.scores()["test"]
    assert RunFolder(broken.path).recipe().data.source == str(moved), "from now on it is looked for there"
    assert evaluate_run(broken.path)["images"] == 16


def test_a_run_does_not_resume_without_an_image_it_trains_on(photos, tmp_path, kinds):
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(Killed):
        run(recipe_for(photos), folder, KillAfter())
    saved = folder.last_checkpoint.read_bytes()
    image = photos / kinds(folder.path, "train")[0] / "Bild 3 ä.png"
    Image.new("RGB", (20, 20)).save(image)
    for what in ("changed", "missing"):
        with pytest.raises(DataError, match=rf"1 of 32 training images {what} \(.*Bild 3 ä\.png\)"):
            run(recipe_for(photos), RunFolder(folder.path), resume=True)
        assert folder.last_checkpoint.read_bytes() == saved
        image.unlink(missing_ok=True)


def test_a_finished_run_is_told_where_its_images_are_now(trained, photos, tmp_path, nearkin, add_kinds):
    moved = photos.rename(tmp_path / "moved photos")
    with pytest.raises(
        DataError, match=r"own photos.*have moved, say where to: nearkin train .*--resume data\.source="
    ):
        evaluate_run(trained)
    code, _, err = nearkin(
        "train",
        trained / "recipe.yaml",
        "-o",
        trained,
        "--resume",
        "--no-figure",
        f"data.source={json.dumps(str(moved))}",
    )
    assert code == 0, err
    assert f"so data.source is {moved} from now on" in err
    assert evaluate_run(trained)["images"] == 16
    add_kinds(tmp_path / "other", *"abcdef")
    with pytest.raises(DataError, match=r"32 of 32 training images missing"):
        run(changed_source(trained, tmp_path / "other"), RunFolder(trained), resume=True)


def test_a_run_works_from_another_working_directory(photos, tmp_path, monkeypatch):
    weights = tmp_path / "weights.pth"
    from nearkin.encoders import build_encoder

    torch.save(build_encoder("small").backbone.state_dict(), weights)
    monkeypatch.chdir(tmp_path)
    options = ["encoder.weights=weights.pth", "training.max_steps=2"]
    scores = run(recipe_for("own photos", *options), RunFolder("run"), Observer())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert evaluate_run("../run")["scores"] == scores["test"]
    assert run(RunFolder("../run").recipe(), RunFolder("../run"), Observer(), resume=True) == scores
    shutil.move(weights, tmp_path / "w.pth")
    moved = ["encoder.weights=../w.pth", "training.max_steps=2"]
    with pytest.warns(Notice, match=r"encoder\.weights is .*w\.pth from now on"):
        assert run(recipe_for(photos, *moved), RunFolder("../run"), Observer(), resume=True) == scores
    torch.save(build_encoder("small").backbone.state_dict(), "others.pth")
    with pytest.raises(RecipeError, match="begun with other weights"):
        run(
            recipe_for(photos, "encoder.weights=others.pth", options[1]),
            RunFolder("../run"),
            Observer(),
            resume=True,
        )


def test_a_study_says_that_its_runs_had_other_images(photos, tmp_path, add_kinds):
    rows = [
        Row(name, name, recipe_for(photos, "training.max_steps=1", f"objective.alpha={n}"))
        for n, name in ((8, "a"), (9, "b"))
    ]
    Rows(rows[:1], tmp_path / "study").run()
    add_kinds(photos, "a new one")
    with pytest.warns(Notice, match=r"images of .*own photos changed between .*/a/seed-0 and .*/b/seed-0"):
        Rows(rows, tmp_path / "study").run()
