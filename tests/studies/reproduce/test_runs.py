"""Rows are run, kept, continued and read back; what cannot be run is left alone and says why."""

from __future__ import annotations

import json
import sys
import types

import pytest
from nearkin.studies.reproduce.runs import Column, carry_out, columns_of, lines_of, measured

from nearkin.errors import DataError
from nearkin.recipe import Recipe
from nearkin.studies import study


def test_rows_are_run_once_and_stand_beside_the_published_figures(tiny_rows, tmp_path, monkeypatch):
    table, rows = tiny_rows("mpa/table-4", ["mpa", "proxy_anchor"])
    outcomes = carry_out(table, rows, tmp_path, [0, 1])
    assert [outcome.status for outcome in outcomes] == ["finished"] * 4
    monkeypatch.setattr(study, "run", lambda *_, **__: pytest.fail("finished runs are kept"))
    carry_out(table, rows, tmp_path, [0, 1])

    anchor, mpa = lines_of(table, rows, tmp_path, [0, 1])
    assert [column.label for column in mpa.ours] == [
        "R@1",
        "R@2",
        "R@4",
        "R@8",
        "nDCG@2",
        "nDCG@4",
        "nDCG@8",
        "MAP@R",
    ]
    recall = Column("R@1")
    folder = tmp_path / "runs" / mpa.row.folder_name
    scores = [json.loads((folder / f"seed-{seed}" / "scores.json").read_text()) for seed in (0, 1)]
    mean = 50 * (scores[0]["test"]["R@1"] + scores[1]["test"]["R@1"])
    assert mpa.ours[recall]["mean"] == pytest.approx(mean)
    assert mpa.last[recall]["values"] == pytest.approx([100 * each["last"]["R@1"] for each in scores])
    assert mpa.difference(recall) == pytest.approx(mean - 69.2)
    assert anchor.difference(recall) == pytest.approx(anchor.ours[recall]["mean"] - 68.6)
    assert mpa.conditions["protocol"] == ["conventional"]
    assert "test classes" in mpa.conditions["selection"][0]
    assert (mpa.seeds, mpa.status, mpa.problem) == ([0, 1], "finished", None)


def test_weights_that_are_not_there_are_said_before_anything_is_run(tiny_rows, tmp_path):
    table, rows = tiny_rows("mpa/table-4", ["mpa"], "encoder.weights=nowhere.pth")
    with pytest.raises(DataError, match=r"encoder\.weights names 'nowhere\.pth', which is not a file"):
        carry_out(table, rows, tmp_path, [0])


def test_a_row_that_fails_is_recorded_and_the_others_go_on(tiny_rows, tmp_path):
    table, rows = tiny_rows("mpa/table-4", ["mpa", "mpa_ap"], "data.source=./nowhere")
    outcomes = carry_out(table, rows, tmp_path, [0])
    assert {outcome.status for outcome in outcomes} == {"skipped"}
    for line in lines_of(table, rows, tmp_path, [0]):
        assert line.status == "skipped"
        assert "nowhere" in line.problem
        assert not line.finished


def test_rows_with_a_problem_are_not_run(tiny_rows, tmp_path):
    table, rows = tiny_rows("ccp/table-4", ["libc"])
    assert carry_out(table, rows, tmp_path, [0]) == []
    (line,) = lines_of(table, rows, tmp_path, [0])
    assert (line.status, line.problem) == ("not in nearkin", "nearkin has no LIBC")
    assert line.published[Column("R@1")].value == 70.3
    assert line.difference(Column("R@1")) is None


def test_nothing_is_known_of_a_row_that_was_not_run(tiny_rows, tmp_path):
    table, rows = tiny_rows("mpa/table-4", ["mpa"])
    (line,) = lines_of(table, rows, tmp_path, [0])
    assert (line.status, line.problem, line.finished, line.ours) == ("not run", None, False, {})


def test_an_untrained_network_is_scored(tiny_rows, tmp_path):
    table, rows = tiny_rows("vcpa/figure-3", ["features", "random_head"], "training.epochs=0")
    carry_out(table, rows, tmp_path, [0])
    for line in lines_of(table, rows, tmp_path, [0]):
        assert line.finished, line.problem
        assert 0 < line.ours[Column("R@1")]["mean"] < 100


@pytest.fixture
def reality_check(monkeypatch):
    """A reality check that trains nothing; returns the calls."""
    calls = []

    def run_mlrc(recipe, folder, *, repeats, jobs, console):
        calls.append((recipe, folder, repeats, jobs))
        if recipe.objective.name == "triplet":
            raise DataError("the data are gone")
        scores = {name: {"mean": 0.6, "spread": None, "interval": None} for name in ("R@1", "P@R", "MAP@R")}
        better = {name: {"mean": 0.7, "spread": 0.01, "interval": [0.69, 0.71]} for name in scores}
        result = {"protocol": "mlrc", "selection": "best MAP@R on the held-out fold", "repeats": repeats}
        result |= {"separate": scores, "concatenated": better, "dim": 128, "concatenated_dim": 512}
        result |= {"hardware": "a machine", "seeds": [0, 1, 2, 3], "recipe": "0a1b2c3d"}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mlrc.json").write_text(json.dumps(result))
        return result

    monkeypatch.setitem(sys.modules, "nearkin.studies.mlrc", types.SimpleNamespace(run_mlrc=run_mlrc))
    return calls


def test_a_reality_check_has_each_model_alone_and_all_together(tiny_rows, tmp_path, reality_check):
    table, rows = tiny_rows("ccp/table-6", ["c2", "triplet"], "protocol.name=mlrc")
    outcomes = carry_out(table, rows, tmp_path, [0, 1], jobs=3)
    assert [(outcome.status, outcome.exit_code) for outcome in outcomes] == [("finished", 0), ("skipped", 3)]
    assert [call[2:] for call in reality_check] == [(2, 3), (2, 3)]
    c2, triplet = lines_of(table, rows, tmp_path, [0, 1])
    assert [(column.label, round(c2.ours[column]["mean"])) for column in c2.ours] == [
        ("128-d P@1", 60),
        ("128-d P@R", 60),
        ("128-d MAP@R", 60),
        ("512-d P@1", 70),
        ("512-d P@R", 70),
        ("512-d MAP@R", 70),
    ]
    assert c2.difference(Column("P@1", "concatenated", 512)) == pytest.approx(70 - 67.49)
    assert c2.ours[Column("MAP@R", "concatenated", 512)]["interval"] == pytest.approx([69.0, 71.0])
    assert (c2.repeats, c2.conditions["hardware"]) == (2, ["a machine"])
    assert (triplet.status, triplet.problem) == ("skipped", "the data are gone")


def test_a_reality_check_by_another_name_of_the_score(tiny_rows, tmp_path, reality_check):
    table, rows = tiny_rows("isa/table-2", ["proxy_isa"], "protocol.name=mlrc")
    carry_out(table, rows, tmp_path, [0])
    (line,) = lines_of(table, rows, tmp_path, [0])
    assert line.difference(Column("R@1", "concatenated", 512)) == pytest.approx(70 - 68.1)


def test_columns_without_published_figures_are_those_the_table_names(tiny_rows):
    table, rows = tiny_rows("vcpa/figure-7", ["vcpa-tau-0.01"])
    assert [column.label for column in columns_of(table, rows)["cub"]] == ["R@1", "MAP@R"]


@pytest.mark.parametrize(("steps", "best", "wanted"), [(40_000, 10_000, 25.0), (20_000, 10_000, 20.0)])
def test_steps_are_counted_to_where_the_paper_would_have_stopped(steps, best, wanted):
    recipe = Recipe.from_mapping({}, ["training.evaluate_every_steps=250"])
    assert measured({"steps": steps, "best": {"step": best}}, Column("ksteps"), recipe) == wanted
