"""Pictures of tables: drawn with what is there, over what is varied."""

from __future__ import annotations

import json

import pytest
from matplotlib.figure import Figure
from PIL import Image

from nearkin.evaluation.statistics import Statistic
from nearkin.recipe import Recipe
from nearkin.runs.folder import RunFolder
from nearkin.studies.reproduce import figures
from nearkin.studies.reproduce.digits import FILE
from nearkin.studies.reproduce.figures import draw_table
from nearkin.studies.reproduce.rows import Settings


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    saved = []
    genuine = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kw: (saved.append(self), genuine(self, *args, **kw)))
    return saved


@pytest.mark.parametrize(
    "name",
    ["mpa/table-4", "mpa/table-7", "ccp/figure-4", "isa/figure-10", "vcpa/figure-8", "ccp/table-6", "vcpa/table-3"],
)
def test_every_kind_of_table_has_a_picture(made_up, tmp_path, name):
    table, lines = made_up(name)
    (file,) = draw_table(table, lines, Settings(), tmp_path / "pictures")
    assert file.name == f"{table.item.key}.png"
    with Image.open(file) as picture:
        assert picture.width > 500
        assert len(picture.convert("L").histogram()) == 256


def test_points_lie_where_the_figures_are(made_up, tmp_path, drawn):
    table, lines = made_up("mpa/table-7", shift=2.0)
    draw_table(table, lines, Settings(), tmp_path)
    (axis,) = drawn[0].axes
    by_label = dict(zip(axis.get_legend_handles_labels()[1], axis.get_legend_handles_labels()[0], strict=True))
    ours = by_label["MPA"].lines[0]
    assert ours.get_xdata().tolist() == [1, 4, 8, 12, 16]
    assert ours.get_ydata() == pytest.approx([70.4, 71.0, 71.1, 71.3, 69.6])
    assert by_label["MPA, published"].get_ydata() == pytest.approx([68.4, 69.0, 69.1, 69.3, 67.6])


def test_rows_that_do_not_vary_are_lines_across(made_up, tmp_path, drawn):
    table, lines = made_up("vcpa/figure-8", data=["cub"])
    draw_table(table, lines, Settings(), tmp_path)
    (axis,) = drawn[0].axes
    assert axis.get_legend_handles_labels()[1] == ["Proxy-Anchor", "VCPA", "MoCo-PA"]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["0.5", "0.9", "0.99", "0.999", "0.9999"]


def test_two_varied_values_are_a_plane(made_up, tmp_path, drawn):
    table, lines = made_up("ccp/figure-4")
    column = next(iter(lines[0].ours))
    lines[-1].ours[column] = Statistic(99.0)
    lines[0].ours.clear()
    draw_table(table, lines, Settings(), tmp_path)
    grid = drawn[0].axes[0].images[0].get_array()
    assert grid.shape == (7, 5)
    assert grid[6, 4] == 99.0, "the largest λ with the most proxies"
    assert grid.mask[0, 0] or grid[0, 0] != grid[0, 0], "what was not run is empty"


def test_steps_of_sub_problems_come_from_the_runs(made_up, tmp_path, drawn):
    table, lines = made_up("ccp/figure-6b")
    for number, line in enumerate(lines):
        folder = tmp_path / str(number)
        folder.mkdir()
        events = [
            {"step": 100 * k, "kind": "problem", "number": k + 1, "steps_before": 100 * (k > 0)} for k in range(4)
        ]
        (folder / "events.json").write_text(json.dumps(events))
        line.folders = [folder]
    draw_table(table, lines, Settings(), tmp_path)
    (axis,) = drawn[0].axes
    assert sum(bar.get_height() for bar in axis.patches) == 9, "three problems have ended in each of three runs"


def test_curves_are_read_off_the_evaluations(made_up, tmp_path, drawn):
    table, lines = made_up("isa/figure-11")
    for number, line in enumerate(lines):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "evaluations.csv").write_text("epoch,step,R@1\n0,0,0.5\n1,10,0.6\n")
        line.folders = [folder]
    draw_table(table, lines, Settings(), tmp_path)
    (axis,) = drawn[0].axes
    assert [list(line.get_ydata()) for line in axis.lines] == [[50.0, 60.0]] * 4


def test_digits_are_those_of_the_seed_that_they_are_named_after(made_up, tmp_path, monkeypatch):
    table, lines = made_up("ccp/figure-2")
    folders = [RunFolder(tmp_path / "runs" / f"seed-{seed}") for seed in (0, 1, 2)]
    for folder in folders:
        folder.begin(Recipe())
        (folder.path / FILE).write_bytes(b"")
    for folder in folders[1:]:
        folder.write_scores({})
    lines[0].seeds, lines[0].folders = [1, 2], [folder.path for folder in folders]
    shown = {}
    monkeypatch.setattr(figures, "load_moments", lambda file: file.parent.name)
    monkeypatch.setattr(figures, "draw_digits", lambda moments, file, title: shown.update({file.name: moments}) or file)
    draw_table(table, lines[:1], Settings(), tmp_path)
    name = f"figure-2-{lines[0].planned.row.name}"
    assert shown == {f"{name}-seed-1.png": "seed-1", f"{name}-seed-2.png": "seed-2"}


def test_nothing_is_drawn_without_a_run(made_up, tmp_path):
    table, lines = made_up("mpa/table-4")
    for line in lines:
        line.seeds = []
    assert draw_table(table, lines, Settings(), tmp_path) == []
