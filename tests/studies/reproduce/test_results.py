"""What the folders of a table's rows hold, beside the published figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nearkin.runs.scores import Scores
from nearkin.studies.reproduce.results import Column, columns_of, measured
from nearkin.training.recipes import load_recipe

MLRC = Path(__file__).parents[2] / "assets" / "records" / "mlrc.json"


@pytest.fixture
def with_check(tiny):
    """A table one of whose rows has a reality check in its folder: each model alone 60 %, all together 70 ± 1."""

    def make(name, row):
        study = tiny(name, [row], "protocol.name=mlrc", seeds=2)
        (planned,) = study.asked[0].rows
        place = study.folder / "runs" / planned.folder_in(study.folder / "runs")
        names = ("R@1", "P@R", "MAP@R")
        alone = {"mean": 0.6, "spread": None, "interval": None}
        together = {"mean": 0.7, "spread": 0.01, "interval": [0.69, 0.71]}
        record = json.loads(MLRC.read_text()) | {"hardware": "a machine"}
        record |= {"separate": dict.fromkeys(names, alone), "concatenated": dict.fromkeys(names, together)}
        place.mkdir(parents=True)
        (place / "mlrc.json").write_text(json.dumps(record))
        return study

    return make


def test_a_reality_check_has_each_model_alone_and_all_together(with_check, results_of):
    (c2,) = results_of(with_check("ccp/table-6", "c2"))
    assert [(column.label, round(c2.ours[column].mean)) for column in c2.ours] == [
        ("128-d P@1", 60),
        ("128-d P@R", 60),
        ("128-d MAP@R", 60),
        ("512-d P@1", 70),
        ("512-d P@R", 70),
        ("512-d MAP@R", 70),
    ]
    assert c2.difference(Column("P@1", "concatenated", 512)) == pytest.approx(70 - 67.49)
    assert c2.ours[Column("MAP@R", "concatenated", 512)].interval == pytest.approx((69.0, 71.0))
    assert (c2.repeats, c2.seeds, c2.status) == (2, [0, 1, 2, 3], "finished")
    assert c2.conditions["hardware"] == ["a machine"]


def test_a_reality_check_by_another_name_of_the_score(with_check, results_of):
    (isa,) = results_of(with_check("isa/table-2", "proxy_isa"))
    assert isa.difference(Column("R@1", "concatenated", 512)) == pytest.approx(70 - 68.1)


def test_nothing_is_known_of_a_row_that_was_not_run(tiny, results_of):
    (row,) = results_of(tiny("mpa/table-4", ["mpa"]))
    assert (row.status, row.problem, row.finished, row.ours) == ("not run", None, False, {})


def test_columns_without_published_figures_are_those_the_table_names(tiny):
    (part,) = tiny("vcpa/figure-7", ["vcpa-tau-0.01"]).asked
    assert [column.label for column in columns_of(part.table, part.rows)["cub"]] == ["R@1", "MAP@R"]


@pytest.mark.parametrize(("steps", "best", "wanted"), [(40_000, 10_000, 25.0), (20_000, 10_000, 20.0)])
def test_steps_are_counted_to_where_the_paper_would_have_stopped(steps, best, wanted):
    recipe = load_recipe({}, ["training.evaluate_every_steps=250"])
    assert measured(Scores(steps=steps, best={"step": best}), Column("ksteps"), recipe) == wanted
