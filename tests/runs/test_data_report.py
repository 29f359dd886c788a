"""The report on the data before a run trains."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from nearkin.data.cache import ArrayImages, OpenedImages
from nearkin.data.folder import read_folder
from nearkin.data.table import ImageTable
from nearkin.errors import DataError
from nearkin.evaluation.protocol import Protocol
from nearkin.runs import data as run_data
from nearkin.runs.data import Part, Repeated, open_data, report_on
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer

TINY = {
    "data": {"transform": "mild", "image_size": 8, "workers": 1},
    "encoder": {"backbone": "small", "dim": 2},
    "training": {"epochs": 1, "max_steps": 1, "batch_size": 8, "device": "cpu"},
    "protocol": {"name": "conventional", "test_share": 0.35},
}


def recipe_for(source):
    return load_recipe(TINY, [f"data.source={json.dumps(str(source))}"])


def report_for(source):
    recipe = recipe_for(source)
    return report_on(recipe, open_data(recipe.data))


def kinds_of(photos, split):
    """Names of the classes that the split chose, in the order of the table."""
    protocol = Protocol(recipe_for(photos).protocol, read_folder(photos))
    rows = protocol.train_rows if split == "train" else protocol.test.query
    return [protocol.table.class_names[label] for label in np.unique(protocol.table.labels[rows])]


def repeated_counts(photos):
    repeated = report_for(photos).repeated
    return repeated.leaks.count, repeated.two_classes.count, repeated.copies.count


def test_a_run_announces_its_data_once_before_its_first_step(photos, tmp_path):
    (photos / "kiwi" / "Bild 0 ä.png").unlink()
    shutil.copy(photos / "kiwi" / "Bild 1 ä.png", photos / "cover.png")
    (photos / "kiwi" / "clip.mov").write_bytes(b"x")
    reports, steps = [], []

    class Watcher(Observer):
        def on_step(self, state, loss, images):
            steps.append(len(reports))

    folder = RunFolder(tmp_path / "run")
    run(recipe_for(photos), folder, Watcher(), announce=reports.append)
    (report,) = reports
    assert steps == [1]
    assert report == report_for(photos)
    assert (report.name, report.images, report.classes) == ("own photos", 47, 6)
    assert (report.smallest, report.largest[1]) == (("kiwi", 7), 8)
    training, test = report.parts
    assert (training.name, training.classes) == ("training", 4)
    assert (test.name, test.classes, test.unseen) == ("test", 2, True)
    assert training.images + test.images == 47
    assert [files.what for files in report.left_out] == ["images", ".mov"]
    assert folder.environment().data.left_out == [str(files) for files in report.left_out]
    run(recipe_for(photos), folder, resume=True, announce=lambda _: pytest.fail("a finished run announces nothing"))


def test_too_few_classes_are_announced_before_they_are_refused(photos, tmp_path):
    for kind in ("kiwi", "rote Ente", "weiße Taube"):
        for file in (photos / kind).iterdir():
            file.rename(file.with_suffix(".mov"))
    reports = []
    with pytest.raises(DataError, match="3 classes"):
        run(recipe_for(photos), RunFolder(tmp_path / "run"), announce=reports.append)
    assert [files.count for files in reports[0].left_out] == [24]
    assert reports[0].parts == ()


def test_repeated_pictures_are_leaks_wrong_labels_or_copies(photos):
    (one, other), tests = kinds_of(photos, "train")[:2], kinds_of(photos, "test")[0]
    assert repeated_counts(photos) == (0, 0, 0)
    Image.open(photos / one / "Bild 0 ä.png").resize((60, 60)).save(photos / tests / "copy.png")
    assert kinds_of(photos, "test")[0] == tests, "one more image does not change the split"
    leaks = report_for(photos).repeated.leaks
    assert leaks == Repeated(1, (((f"{one}/Bild 0 ä.png", "training"), (f"{tests}/copy.png", "test")),))
    shutil.copy(photos / one / "Bild 2 ä.png", photos / other / "copy.png")
    assert repeated_counts(photos) == (1, 1, 0)
    for kind in (one, tests):
        shutil.copy(photos / kind / "Bild 3 ä.png", photos / kind / "twice.png")
    assert repeated_counts(photos) == (1, 1, 1), "copies in a class that trains do no harm"


def test_benchmarks_are_not_compared_and_large_sets_say_so(photos, monkeypatch):
    pixels = np.arange(6 * 64, dtype=np.uint16).astype(np.uint8).reshape(6, 8, 8)
    splits = ["train", "train", "train", "validation", "test", "test"]
    table = ImageTable.build("glyphs", pixels, list("aabccc"), splits=splits)
    report = report_on(recipe_for("glyphs"), OpenedImages(table, ArrayImages(pixels)))
    assert report.repeated is None
    assert report.parts[-1] == Part("not used", 1, 1, True), "the conventional protocol has no validation classes"
    assert report.single == 1
    monkeypatch.setattr(run_data, "MAX_IMAGES", 10)
    assert not report_for(photos).repeated.complete
