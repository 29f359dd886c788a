"""The picture of confidences shows what was measured."""

from __future__ import annotations

import numpy as np
from PIL import Image

from nearkin.index.calibration import Bin, Calibration
from nearkin.report import reliability
from nearkin.report.reliability import draw_reliability


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
