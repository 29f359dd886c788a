"""What is said of the data before a run trains."""

from __future__ import annotations

import json
import shutil
import warnings

import numpy as np
import pytest
from PIL import Image

from nearkin.data.cache import ArrayImages, OpenedImages
from nearkin.data.folder import folder_table
from nearkin.data.table import ImageTable
from nearkin.errors import DataError
from nearkin.evaluation.protocol import Protocol
from nearkin.recipe import ProtocolSection
from nearkin.report.data_report import data_report_text
from nearkin.runs import data as run_data
from nearkin.runs.data import Part, Repeated, _parts, describe_data, open_data, report_on
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.recipes import load_recipe

TINY = {
    "data": {"transform": "mild", "image_size": 8, "workers": 1},
    "encoder": {"backbone": "small", "dim": 2},
    "training": {"epochs": 1, "max_steps": 1, "batch_size": 8, "device": "cpu"},
    "protocol": {"name": "conventional", "test_share": 0.35},
}


class Watcher:
    steps = 0

    def on_step(self, state, loss, images):
        self.steps += 1

    def on_evaluation(self, state, row):
        pass


def recipe_for(source, *overrides):
    return load_recipe(TINY, [f"data.source={json.dumps(str(source))}", *overrides])


def report_for(source, *overrides):
    recipe = recipe_for(source, *overrides)
    return report_on(recipe, open_data(recipe.data))


def kinds_of(photos, split):
    """ClassFolders of the photos that the split chose, in the order of the table."""
    recipe = recipe_for(photos)
    protocol = Protocol(recipe.protocol, folder_table(photos))
    rows = protocol.train_rows if split == "train" else protocol.test.query
    return [protocol.table.class_names[label] for label in np.unique(protocol.table.labels[rows])]


def test_classes_images_and_parts(photos):
    (photos / "kiwi" / "Bild 0 ä.png").unlink()
    report = report_for(photos)
    assert (report.name, report.images, report.classes) == ("own photos", 47, 6)
    assert report.smallest == ("kiwi", 7)
    assert report.largest[1] == 8
    training, test = report.parts
    assert (training.name, training.classes) == ("training", 4)
    assert (test.name, test.classes, test.unseen) == ("test", 2, True)
    assert training.images + test.images == 47
    text = data_report_text(report).plain
    assert "own photos: 47 images of 6 classes, from 7 (kiwi) to 8 (" in text
    assert "2 classes" in text
    assert "classes never seen in training" in text
    assert "left out" not in text
    assert "warning" not in text


def test_a_run_announces_once_before_its_first_step(photos, tmp_path):
    told = []
    watcher = Watcher()
    folder = RunFolder(tmp_path / "run")
    run(recipe_for(photos), folder, watcher, announce=lambda report: told.append((report, watcher.steps)))
    ((report, steps),) = told
    assert steps == 0
    assert report == report_for(photos)
    run(recipe_for(photos), folder, watcher, resume=True, announce=lambda _: pytest.fail("a finished run says nothing"))


def test_left_out_files_are_in_the_report_and_in_the_record(photos, tmp_path):
    shutil.copy(photos / "kiwi" / "Bild 1 ä.png", photos / "cover.png")
    (photos / "kiwi" / "clip.mov").write_bytes(b"x")
    told = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(recipe_for(photos), RunFolder(tmp_path / "run"), Watcher(), announce=told.append)
    assert [each.what for each in told[0].left_out] == ["images", ".mov"]
    text = data_report_text(told[0]).plain
    assert "left out:\n  1 image (in no class folder): 'cover.png'\n  1 .mov (videos): 'kiwi/clip.mov'" in text
    record = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert record["data"]["left_out"] == [str(each) for each in told[0].left_out]


def test_too_few_classes_are_announced_before_they_are_refused(photos, tmp_path):
    for kind in ("kiwi", "rote Ente", "weiße Taube"):
        for file in (photos / kind).iterdir():
            file.rename(file.with_suffix(".mov"))
    told = []
    with pytest.raises(DataError, match="3 classes"):
        run(recipe_for(photos), RunFolder(tmp_path / "run"), Watcher(), announce=told.append)
    assert told[0].left_out[1].count == 24
    assert told[0].parts == ()


def test_the_same_picture_in_training_and_test_is_a_leak(photos):
    trains, tests = kinds_of(photos, "train")[0], kinds_of(photos, "test")[0]
    Image.open(photos / trains / "Bild 0 ä.png").resize((60, 60)).save(photos / tests / "copy.png")
    assert kinds_of(photos, "test")[0] == tests, "one more image does not change the split"
    repeated = report_for(photos).repeated
    assert repeated.leaks == Repeated(1, (((f"{trains}/Bild 0 ä.png", "training"), (f"{tests}/copy.png", "test")),))
    assert (repeated.two_classes.count, repeated.copies.count) == (0, 0)
    text = data_report_text(report_for(photos)).plain
    assert "warning: 1 picture both trained on and scored" in text
    assert f"'{trains}/Bild 0 ä.png' (training) = '{tests}/copy.png' (test)" in text


def test_the_same_picture_in_two_classes_of_one_part_is_a_question_of_labels(photos):
    one, other = kinds_of(photos, "train")[:2]
    shutil.copy(photos / one / "Bild 2 ä.png", photos / other / "copy.png")
    repeated = report_for(photos).repeated
    assert (repeated.leaks.count, repeated.two_classes.count, repeated.copies.count) == (0, 1, 0)
    assert "warning: 1 picture in two classes" in data_report_text(report_for(photos)).plain


def test_copies_within_a_class_matter_where_it_is_scored(photos):
    for kind in (kinds_of(photos, "train")[0], kinds_of(photos, "test")[0]):
        shutil.copy(photos / kind / "Bild 3 ä.png", photos / kind / "copy.png")
    repeated = report_for(photos).repeated
    assert (repeated.leaks.count, repeated.two_classes.count, repeated.copies.count) == (0, 0, 1)
    assert "note: 1 picture twice in a class that is scored" in data_report_text(report_for(photos)).plain


def test_benchmarks_are_not_compared_and_large_sets_say_so(photos, monkeypatch):
    recipe = recipe_for("glyphs")
    pixels = np.zeros((8, 8, 8), np.uint8)
    table = ImageTable.build("glyphs", pixels, list("aabbccdd"), splits=["train"] * 4 + ["test"] * 4)
    assert report_on(recipe, OpenedImages(table, ArrayImages(pixels))).repeated is None
    monkeypatch.setattr(run_data, "MAX_IMAGES", 10)
    report = report_for(photos)
    assert not report.repeated.complete
    assert "too many images" in data_report_text(report).plain


def test_rows_that_the_protocol_does_not_use_are_named():
    pixels = np.arange(6 * 64, dtype=np.uint16).astype(np.uint8).reshape(6, 8, 8)
    splits = ["train", "train", "train", "validation", "test", "test"]
    table = ImageTable.build("toy", pixels, list("aabccc"), splits=splits)
    protocol = Protocol(ProtocolSection(name="conventional"), table)
    report = describe_data(OpenedImages(table, ArrayImages(pixels)), _parts(protocol), compare=False)
    assert report.parts[-1] == Part("not used", 1, 1, True)
    assert report.single == 1
    assert "not used" in data_report_text(report).plain


def test_without_the_overview_only_what_needs_attention_is_said(photos):
    assert not data_report_text(report_for(photos), overview=False).plain
    (photos / "x.heic").touch()
    assert data_report_text(report_for(photos), overview=False).plain.startswith("left out:\n")
