from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from nearkin.studies.compare.picture import draw_comparison


@pytest.fixture
def drawn(monkeypatch):
    """Every picture that was saved."""
    figures = []
    genuine = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), genuine(self, *a, **k)))
    return figures


def test_a_dot_for_every_row_below_its_base(results, tmp_path, drawn):
    (file,) = draw_comparison(results, tmp_path / "comparison.png")
    assert file.read_bytes().startswith(b"\x89PNG")
    recall, precision = drawn[0].axes
    labels = [label.get_text() for label in recall.get_yticklabels()]
    assert labels == ["triplet (1 of 2 seeds)", "C2", "    C2-CCP", "    C2-XBM", "VCPA"]
    dots = [container.lines[0].get_xydata()[0].tolist() for container in recall.containers]
    assert dots == [pytest.approx(dot) for dot in ([60, 0], [65, 1], [70, 2], [64.9, 3], [30, 4])]
    assert precision.get_title() == "MAP@R (%)"
    bottom, top = recall.get_ylim()
    assert bottom > top, "the first row is at the top"
    (band,) = recall.collections[:1]
    assert band.get_paths()[0].get_extents().extents == pytest.approx([63.8, 0.6, 66.2, 3.4]), "from C2 to its methods"


def test_nothing_is_drawn_without_a_finished_run(write_row, tmp_path):
    rows = [write_row("triplet", [], problems=[("skipped", "CUB is not there")])]
    assert draw_comparison(rows, tmp_path / "comparison.png") == []
    assert not (tmp_path / "comparison.png").exists()
