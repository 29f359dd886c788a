"""A comparison as a Python function, on photographs that take a second to learn."""

from __future__ import annotations

import csv
import io
import json

import pytest
from rich.console import Console

import nearkin
from nearkin.errors import DataError, RecipeError
from nearkin.report.formats import csv_text, markdown
from nearkin.runs.folder import RunFolder
from nearkin.studies import study
from nearkin.studies.compare import Comparison, compare
from nearkin.studies.study import planned_runs

TINY = """
data: {transform: mild, image_size: 8, workers: 1}
encoder: {backbone: small, dim: 4}
training: {epochs: 2, max_steps: 2, batch_size: 8, images_per_class: 2, device: cpu}
protocol: {name: conventional, test_share: 0.35}
"""
ROWS = """
recipe: tiny.yaml
rows:
  anchor: {title: Anchor, objective: {name: proxy_anchor}}
  longer: {title: Longer, base: anchor, budget: {max_steps: 3}}
"""


@pytest.fixture
def files(tmp_path, photos, monkeypatch):
    """The options for a comparison of two rows, of which one has another budget."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    (tmp_path / "mine.compare.yml").write_text(ROWS)
    return {"data": str(photos), "rows_from": "mine.compare.yml", "folder": "study"}


def test_a_function_trains_and_writes_what_the_command_does(files, tmp_path, monkeypatch):
    assert nearkin.compare is compare
    said = Console(file=io.StringIO(), width=200)
    found = compare(**files, seeds=2, console=said)
    assert "run 4 of 4" in said.file.getvalue()
    folder = tmp_path / "study"
    assert [RunFolder(folder / f"longer/seed-{seed}").scores().steps for seed in (0, 1)] == [3, 3]
    assert sorted(path.suffix for path in folder.glob("comparison.*")) == [".csv", ".json", ".md", ".png"]
    (table,) = found.tables()
    assert (folder / "comparison.md").read_text() == markdown(table)
    assert (folder / "comparison.csv").read_bytes().decode() == csv_text(table)
    kept = json.loads((folder / "comparison.json").read_text())
    assert kept["folder"] == "study"
    assert kept["rows"] == json.loads(json.dumps(found.record()["rows"]))
    assert [(result.row.name, result.seeds) for result in found.results] == [("anchor", [0, 1]), ("longer", [0, 1])]
    own = [RunFolder(folder / f"anchor/seed-{seed}").scores().test["R@1"] for seed in (0, 1)]
    assert found.results[0].test("R@1").mean == pytest.approx(sum(own) / 2)

    def refuse(*_, **__):
        raise AssertionError("nothing should be trained")

    monkeypatch.setattr(study, "run", refuse)
    assert compare(**files, seeds=2).record()["rows"] == found.record()["rows"]


def test_another_budget_is_said_in_the_table_and_options_for_all_rows_win(files):
    found = compare(**files, seeds=1)
    (table,) = found.tables()
    assert table.parts[0].columns[-1] == "budget"
    assert [line.cells[-1] for line in table.parts[0].lines] == [
        "2 epochs, at most 2 steps, batch 8, adamw",
        "2 epochs, at most 3 steps, batch 8, adamw",
    ]
    assert table.notes[0].startswith("Mixed budgets: ")
    assert all(row["budget"] for row in csv.DictReader(io.StringIO(csv_text(table))))
    same = compare(**files | {"folder": "same"}, seeds=1, changes=["training.max_steps=1"]).tables()[0]
    assert "budget" not in same.parts[0].columns
    assert not any("budgets" in note for note in same.notes)


def test_a_run_that_fails_leaves_a_table_that_says_so(files, monkeypatch, tmp_path):
    def fail(*_, **__):
        raise DataError("the disk with kiwi.png is gone")

    monkeypatch.setattr(study, "run", fail)
    compare(**files, seeds=1)
    assert "kiwi.png" in (tmp_path / "study" / "comparison.md").read_text()
    assert not (tmp_path / "study" / "comparison.png").exists()


def test_mistakes_are_told_before_anything_is_run(files, tmp_path):
    with pytest.raises(RecipeError, match="did you mean 'anchor'"):
        compare(**files, rows=["ancor"])
    with pytest.raises(RecipeError, match="needs seeds"):
        compare(**files, seeds=0)
    assert not (tmp_path / "study").exists()


def test_what_is_held_with_another_recipe_needs_overwrite(files):
    compare(**files, seeds=1, rows=["anchor"])
    with pytest.raises(RecipeError, match=r"training.batch_size was 8, is 6.*--overwrite"):
        compare(**files, seeds=1, rows=["anchor"], changes=["training.batch_size=6"])
    anew = compare(**files, seeds=1, rows=["anchor"], changes=["training.batch_size=6"], overwrite=True)
    assert anew.results[0].row.recipe.training.batch_size == 6
    assert anew.results[0].seeds == [0]


def test_the_same_call_has_the_same_folder():
    def folder(*changes, row="proxy_anchor"):
        return Comparison("glyphs", rows=[row], changes=changes).folder

    assert folder() == folder() == folder(row="vcpa"), "rows are added to it"
    assert folder().name.startswith("compare-glyphs-")
    assert folder("training.epochs=3") != folder()
    assert folder("objective.alpha=3") != folder()


def test_rows_that_finished_earlier_stay_in_the_table(tmp_path):
    rows = {row.name: row for row in Comparison("glyphs", folder=tmp_path).rows}
    others = Comparison("glyphs", folder=tmp_path, changes=["training.learning_rate=1"]).rows
    for row in (rows["proxy_anchor"], rows["triplet"], next(row for row in others if row.name == "mpa")):
        (planned,) = planned_runs([row], tmp_path, [0])
        planned.folder.begin(planned.recipe).write_scores({"test": {"R@1": 0.5}})
    asked = Comparison("glyphs", folder=tmp_path, rows=["vcpa"], seeds=1)
    assert [planned.row.name for planned in asked.runs()] == ["vcpa"]
    assert [result.row.name for result in asked.results] == ["proxy_anchor", "vcpa", "triplet"]
    assert asked.tables()[0].notes[-1] == "Left out, run with another recipe: mpa."


def test_the_listing_says_what_each_row_changes(files):
    table = Comparison(**files).listing()
    assert [line.cells for line in table.parts[0].lines] == [
        ("anchor", "–", "Anchor: proxy_anchor"),
        ("longer", "anchor", "Longer: proxy_anchor, training.max_steps=3"),
    ]
    assert table.conditions == ("The same for all: small, 4 dimensions, step schedule, validation protocol.",)
    alone = Comparison(**files, rows=["anchor"]).listing().conditions[0]
    assert "4 dimensions, 2 epochs, at most 2 steps, batch 8, adamw, step schedule" in alone
    assert table.records[1]["recipe"]["training"]["max_steps"] == 3


def test_rows_without_a_base_are_held_against_the_row_that_is_named(files):
    assert [row.base for row in Comparison(**files).rows] == [None, "anchor"]
    assert [row.base for row in Comparison(**files, against="longer").rows] == ["longer", None]
    with pytest.raises(RecipeError, match=r"no row 'loger': did you mean 'longer'"):
        Comparison(**files, against="loger")
