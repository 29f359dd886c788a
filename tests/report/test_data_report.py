from __future__ import annotations

import dataclasses

import pytest

from nearkin.data.images import NOT_IMAGES, UnreadableImageError
from nearkin.data.table import LeftOut
from nearkin.report.data_report import data_report_text, left_out_text
from nearkin.runs.data import NEW_IMAGES, DataReport, Part, Repeated, RepeatedPictures

REPORT = DataReport(
    "birds",
    images=1210,
    classes=3,
    smallest=("kiwi", 1),
    largest=("owl", 1000),
    single=1,
    parts=(Part("training", 2, 1001), Part("test", 1, 209, unseen=True)),
)


def test_the_overview_counts_and_says_what_each_part_is_for():
    lines = data_report_text(REPORT).plain.splitlines()
    assert lines[0] == "birds: 1,210 images of 3 classes, from 1 (kiwi) to 1,000 (owl) each"
    assert "1 class with a single image" in lines[1]
    assert lines[2].split() == ["training", "2", "classes", "1,001", "images"]
    assert lines[3].split(maxsplit=5) == ["test", "1", "class", "209", "images", "classes never seen in training"]
    assert not data_report_text(REPORT, overview=False).plain


@pytest.mark.parametrize(("classes", "images", "scored"), [(3, 15, True), (3, 14, False), (2, 40, False)])
def test_new_images_are_promised_a_score_only_where_there_are_enough(classes, images, scored):
    parts = (Part("training", classes, 400), Part(NEW_IMAGES, classes, images))
    line = data_report_text(dataclasses.replace(REPORT, parts=parts)).plain.splitlines()[-1]
    few = "too few to be scored: it takes 15 images and 3 classes"
    assert line.endswith("of classes that train; scored, and confidences are learned from them" if scored else few)


def test_the_same_picture_twice_is_a_warning_with_examples_and_how_many_more():
    example = (("owl/1.jpg", "training"), ("tit/1.jpg", "test"))
    report = dataclasses.replace(REPORT, repeated=RepeatedPictures(leaks=Repeated(5, (example,)), complete=False))
    said, shown, more, note = data_report_text(report, overview=False).plain.splitlines()
    assert said.startswith("warning: 5 images both trained on and scored")
    assert shown == "  'owl/1.jpg' (training) = 'tit/1.jpg' (test)"
    assert more == "  … and 4 more"
    assert note.startswith("note: too many images")


def test_pictures_that_were_left_out_come_before_videos_and_other_files_last():
    left_out = [
        LeftOut(1, ".txt", NOT_IMAGES, "a.txt"),
        LeftOut(2, ".mov", "videos", "b.mov"),
        LeftOut(3, ".heic", "no decoder", "c.heic", is_photo=True),
    ]
    lines = left_out_text(left_out).plain.splitlines()
    assert [line.split()[1] for line in lines[1:]] == [".heic", ".mov", ".txt:"]
    assert not left_out_text([]).plain


def test_what_cannot_be_read_is_listed_up_to_a_screenful():
    unreadable = [str(UnreadableImageError(f"{n}.jpg", "empty file")) for n in range(30)]
    others = [LeftOut(2, f".x{n}", "not images", "a") for n in range(12)]
    lines = left_out_text(others, unreadable).plain.splitlines()
    assert len(lines) < 12
    assert lines[1].endswith(", 4 more file types: not images")
    assert lines[2] == "  cannot be read: 0.jpg: empty file"
    assert lines[-1] == "  … and 22 more that cannot be read"
