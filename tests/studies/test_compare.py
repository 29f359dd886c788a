"""A comparison as a Python function, on photographs that take a second to learn."""

from __future__ import annotations

import json
import re

import pytest

import nearkin
from nearkin.errors import DataError, RecipeError
from nearkin.report.table import csv_text, markdown
from nearkin.runs.folder import RunFolder
from nearkin.studies import study
from nearkin.studies.compare import compare

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
  longer: {title: Longer, base: anchor, training: {max_steps: 3}}
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
    comparison = compare(**files, seeds=2)
    folder = tmp_path / "study"
    assert [RunFolder(folder / f"longer/seed-{seed}").scores().steps for seed in (0, 1)] == [3, 3]
    assert sorted(path.suffix for path in folder.glob("comparison.*")) == [".csv", ".json", ".md", ".png"]
    table = comparison.table()
    assert (folder / "comparison.md").read_text() == markdown(table)
    assert (folder / "comparison.csv").read_bytes().decode() == csv_text(table)
    kept = json.loads((folder / "comparison.json").read_text())
    assert [(row["name"], row["seeds"]) for row in kept["rows"]] == [("anchor", [0, 1]), ("longer", [0, 1])]
    own = [RunFolder(folder / f"anchor/seed-{seed}").scores().test["R@1"] for seed in (0, 1)]
    assert comparison.results[0].test("R@1").mean == pytest.approx(sum(own) / 2)
    assert table.parts[0].columns[-1] == "budget"
    assert comparison.next_steps() == ["nearkin plot study/anchor/seed-0"]
    monkeypatch.setattr(study, "run", lambda *_, **__: pytest.fail("nothing should be trained"))
    assert compare(**files, seeds=2).record()["scores"] == comparison.record()["scores"]
    with pytest.raises(RecipeError, match=r"training.batch_size was 8, is 6"):
        compare(**files, seeds=1, rows=["anchor"], changes=["training.batch_size=6"])


def test_a_run_that_fails_leaves_a_table_that_says_so(files, monkeypatch, tmp_path):
    def fail(*_, **__):
        raise DataError("the disk with kiwi.png is gone")

    monkeypatch.setattr(study, "run", fail)
    compare(**files, seeds=1)
    assert "kiwi.png" in (tmp_path / "study" / "comparison.md").read_text()
    assert not (tmp_path / "study" / "comparison.png").exists()


def test_mistakes_are_found_before_anything_is_run(files, tmp_path):
    for mistake in (
        {"rows": ["ancor"]},
        {"seeds": 0},
        {"against": "loger"},
        {"vary": "objective.alpha=1,2"},
        {"ablate": ["objective.alpha=1"]},
    ):
        with pytest.raises(RecipeError):
            compare(**files | mistake)
    assert not (tmp_path / "study").exists()


def test_the_same_call_has_the_same_folder():
    def folder(*changes, row="proxy_anchor", **options):
        rows = None if options else [row]
        return compare("glyphs", rows=rows, changes=changes, **options, train=False).folder

    assert folder() == folder() == folder(row="vcpa"), "rows are added to it"
    assert folder().name.startswith("compare-glyphs-")
    assert len({folder(), folder("training.epochs=3"), folder("objective.alpha=3")}) == 3
    varied = {folder(recipe="glyphs/demo", vary=f"objective.alpha={values}") for values in ("1,2", "1,2", "1,3")}
    assert len(varied) == 2


def test_a_loss_or_method_is_a_row_by_its_name(tmp_path):
    options = {"folder": tmp_path, "seeds": 1, "train": False}
    study = compare("glyphs", rows=["proxy_anchor", "angular", "profs_hncm", "triplet+ccp", "plain"], **options)
    rows = {row.name: row for row in study.rows}
    assert list(rows) == ["proxy_anchor", "profs_hncm", "angular", "triplet+ccp", "plain"]
    parts = {name: (row.recipe.objective.name, row.recipe.method.name, row.base) for name, row in rows.items()}
    assert parts["angular"] == ("angular", "plain", None)
    assert parts["triplet+ccp"] == ("triplet", "ccp", "triplet")
    assert parts["plain"] == ("proxy_anchor", "plain", "proxy_anchor")
    balanced = {name for name, row in rows.items() if row.recipe.training.sampler == "balanced"}
    assert balanced == {"profs_hncm", "angular", "triplet+ccp"}
    missing = [remark for remark in study.remarks if "Add" in remark]
    assert [("triplet" in remark, "contrastive" in remark) for remark in missing] == [(False, True), (True, False)]
    for name in ("angulr", "triplet+cpp", "nothing+ccp"):
        with pytest.raises(RecipeError, match=re.escape(repr(name))):
            compare("glyphs", rows=[name], **options)


def test_the_listing_shows_what_each_row_changes(files):
    table = compare(**files, train=False).listing()
    assert [line.cells for line in table.parts[0].lines] == [
        ("anchor", "–", "Anchor"),
        ("longer", "anchor", "Longer: training.max_steps=3"),
    ]
    assert table.records[1]["recipe"]["training"]["max_steps"] == 3
    assert [row.base for row in compare(**files, against="longer", train=False).rows] == ["longer", None]


def test_values_and_changes_are_rows_of_the_recipe_as_it_is(files):
    options = {"data": files["data"], "recipe": "tiny.yaml", "folder": "study", "seeds": 1}
    varied = compare(**options, vary="objective.alpha=16,32", against="alpha-16", train=False)
    assert [(row.name, row.base) for row in varied.rows] == [("alpha-16", None), ("alpha-32", "alpha-16")]
    assert {row.recipe.protocol.name for row in varied.rows} == {"conventional"}
    ablated = compare(**options, ablate=["training.max_steps=1"], changes=["training.seed=3"])
    assert [(result.row.name, result.seeds) for result in ablated.results] == [("unchanged", [3]), ("max_steps-1", [3])]
    assert [result.scores[0].steps for result in ablated.results] == [2, 1]
