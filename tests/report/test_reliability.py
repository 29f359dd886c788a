"""The figure of confidences shows what was measured."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from nearkin.errors import DataError
from nearkin.evaluation import splits
from nearkin.evaluation.confidence import Bin, Confidence, Curve, confidence_among
from nearkin.report.figures import draw_figure, reliability
from nearkin.report.figures.reliability import draw_reliability, reliability_of_run
from nearkin.report.opened_run import OpenedRun, ViewOptions, open_runs

CPU = ViewOptions(device="cpu", classes=4)


def curve(*bins):
    return Curve((1.0,), 0.0, 0.07, 0.12, 0.25, tuple(Bin(*bin) for bin in bins))


def confidence():
    hits, labels = curve((40, 0.1, 0.05), (60, 0.9, 0.8)), curve((20, 0.4, 0.5))
    return Confidence(hits, labels, 0.5, images=200, classes=30, accuracy=0.9, refused=0.1, unknown_refused=0.7)


def test_dots_stand_where_answers_were_right(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(reliability, "save_figure", lambda figure, file, dpi: drawn.append(figure))
    draw_reliability(tmp_path / "reliability.png", confidence())
    (axes,) = drawn[0].axes
    assert np.allclose(axes.lines[1].get_xydata(), [[10, 5], [90, 80]])
    assert np.allclose(axes.lines[2].get_xydata(), [[40, 50]])
    assert "0.120" in axes.lines[1].get_label()
    assert "200 images of 30 classes" in drawn[0].get_supxlabel()


def test_it_is_a_picture(tmp_path):
    draw_reliability(tmp_path / "r.png", confidence())
    assert np.asarray(Image.open(tmp_path / "r.png")).std() > 5


def test_test_classes_are_measured_among_themselves(four_runs):
    run = OpenedRun(four_runs[0], CPU)
    rows = run.test_rows
    expected = confidence_among(
        run.embed(rows).numpy(), run.data.table.labels[rows], np.arange(len(rows)), run.trained.encoder.distance
    )
    assert reliability_of_run(run) == expected
    ((_, figure),) = draw_figure("reliability", open_runs([four_runs[0]], CPU))
    dots = figure.axes[0].lines[1].get_xydata()
    assert np.allclose(dots, [[100 * bin.confidence, 100 * bin.right] for bin in expected.hit.bins])


def test_without_test_classes_held_out_images_are_measured(squares, monkeypatch):
    monkeypatch.setattr(splits, "FEWEST_TO_HOLD_OUT", 2)
    _, train = squares
    run = OpenedRun(train("held out", "protocol.name=everything", "protocol.holdout_share=0.5"), CPU)
    found = reliability_of_run(run)
    assert found.images == len(run.protocol.holdout) > 20


def test_what_there_is_too_little_of_is_named(trained):
    with pytest.raises(DataError, match="from 16 images that did not train: it takes 3 classes, got 2"):
        reliability_of_run(OpenedRun(trained, CPU))


def test_a_run_without_anything_held_out_has_none(squares):
    _, train = squares
    run = OpenedRun(train("all", "protocol.name=everything", "protocol.holdout_share=0"), CPU)
    with pytest.raises(DataError):
        reliability_of_run(run)
