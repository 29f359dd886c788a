"""The picture of confidences shows what was measured."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from nearkin.errors import DataError
from nearkin.index.calibration import Bin, Calibration, fit
from nearkin.report.figures import draw_figure, reliability
from nearkin.report.figures.reliability import draw_reliability, reliability_of_run
from nearkin.report.opened_run import OpenedRun, ViewOptions, open_runs

CPU = ViewOptions(device="cpu", classes=4)


def test_dots_stand_where_hits_were_right(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(reliability, "save_figure", lambda figure, file, dpi: drawn.append(figure))
    bins = (Bin(40, 0.1, 0.05), Bin(60, 0.9, 0.8))
    draw_reliability(tmp_path / "reliability.png", Calibration(1.0, 0.0, "200 images", 100, 0.12, 0.25, bins))
    curve, counts = drawn[0].axes
    assert np.allclose(curve.lines[1].get_xydata(), [[10, 5], [90, 80]])
    assert [bar.get_height() for bar in counts.patches] == [40, 60]
    assert "0.120" in curve.get_title()


def test_it_is_a_picture(tmp_path):
    draw_reliability(tmp_path / "r.png", Calibration(1.0, 0.0, "20 images", 20, 0.1, 0.2, (Bin(20, 0.5, 0.4),)))
    assert np.asarray(Image.open(tmp_path / "r.png")).std() > 5


@pytest.fixture(scope="module")
def validated(squares):
    """A run that holds validation classes out, and so fits on those what it measures on the test classes."""
    _, train = squares
    return train("validated", "protocol.name=validation", "protocol.validation_share=0.4")


def plain(vectors, labels, curve):
    """Confidences of the ten nearest of each vector, and whether they are right, one by one."""
    said, right = [], []
    for i, vector in enumerate(vectors.astype(np.float64)):
        similar = [(float(vector @ other), j) for j, other in enumerate(vectors.astype(np.float64)) if j != i]
        for score, j in sorted(similar, key=lambda each: (-each[0], each[1]))[:10]:
            said.append(1 / (1 + np.exp(-(curve.slope * score + curve.intercept + curve.shift))))
            right.append(float(labels[j] == labels[i]))
    return np.array(said), np.array(right)


def test_validation_classes_give_the_curve_and_test_classes_measure_it(validated):
    run = OpenedRun(validated, CPU)
    found = reliability_of_run(run)
    held, labels = run.protocol.validation.rows, run.data.table.labels
    own = fit(run.embed(held).numpy(), labels[held], "cosine", "")
    assert (found.slope, found.intercept) == pytest.approx((own.slope, own.intercept))
    rows = run.test_rows
    assert len(rows) > len(held)
    assert found.shift < 0  # among more classes a hit of the same similarity is less often right
    said, right = plain(run.embed(rows).numpy(), labels[rows], found)
    assert found.hits == len(right)
    assert found.brier == pytest.approx(np.mean((said - right) ** 2), abs=1e-6)
    assert found.brier_of_share == pytest.approx(right.mean() * (1 - right.mean()))
    assert f"{len(held)} images of {len(np.unique(labels[held]))} validation classes;" in found.source
    assert f"scored on {len(rows)} images of {len(np.unique(labels[rows]))} test classes" in found.source
    assert "seen in training" not in found.source


def test_without_validation_classes_it_is_the_curve_of_an_index(four_runs):
    run = OpenedRun(four_runs[0], CPU)
    found = reliability_of_run(run)
    labels = run.data.table.labels[run.test_rows]
    own = fit(run.embed(run.test_rows).numpy(), labels, "cosine", "")
    assert (found.brier, found.slope, found.hits) == pytest.approx((own.brier, own.slope, own.hits))
    assert "validation" not in found.source
    assert "a curve from other classes than its own" in found.source


def test_classes_that_were_trained_on_are_said_to_be(squares):
    root, train = squares
    lines = (root / "squares.csv").read_text(encoding="utf-8").splitlines()
    lines = [line.replace("split", "part", 1) if i == 0 else line for i, line in enumerate(lines)]
    (root / "no split.csv").write_text("\n".join(lines), encoding="utf-8")
    source = f"data.source={json.dumps(str(root / 'no split.csv'))}"
    run = OpenedRun(train("seen", "protocol.name=in-distribution", source), CPU)
    assert "test classes seen in training" in reliability_of_run(run).source


def test_a_run_without_anything_held_out_has_none(squares):
    _, train = squares
    run = OpenedRun(train("all", "protocol.name=everything"), CPU)
    with pytest.raises(DataError):
        reliability_of_run(run)


def test_the_figure_of_a_run(validated):
    runs = open_runs([validated], CPU)
    ((_, figure),) = draw_figure("reliability", runs)
    found = reliability_of_run(runs[0])
    dots = figure.axes[0].lines[1].get_xydata()
    assert np.allclose(dots, [[100 * each.confidence, 100 * each.right] for each in found.reliability])
    assert f"{found.brier:.3f}" in figure.axes[0].get_title()
    assert "validation classes" in figure.get_supxlabel()
