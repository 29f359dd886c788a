"""Rows of published tables are run, kept and read back; what cannot be run is left alone with its reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import nearkin
from nearkin.errors import DataError
from nearkin.report.table import markdown
from nearkin.studies import reproduce as module
from nearkin.studies import study as study_module
from nearkin.studies.papers import Settings
from nearkin.studies.reproduce import reproduce
from nearkin.studies.tables import Column

MLRC = Path(__file__).parents[1] / "assets" / "records" / "mlrc.json"
FOLDS = ("protocol.name=mlrc", "training.max_steps=2")


@pytest.fixture
def small(tiny, tmp_path):
    """A published table whose rows have recipes for tiny photos; ``lost`` names those whose photos are not there."""

    def make(name, rows, *changes, seeds=1, lost=()):
        options = {"data": ["cub"], "settings": Settings(weights="none"), "folder": tmp_path / "out"}
        study = reproduce(name, rows=rows, seeds=seeds, **options, train=False)

        def shrink(row):
            if row.command is None:
                return row
            own = row.recipe.as_mapping()
            source = ["data.source=./nowhere"] if row.name in lost else []
            recipe = nearkin.training.recipe_check.load_recipe(
                {**tiny(*changes, *source).as_mapping(), "objective": own["objective"], "method": own["method"]}
            )
            scored = {"recall_at": (1, 2, 4, 8), "ndcg_at": (2, 4, 8)}
            recipe = replace(recipe, protocol=replace(recipe.protocol, **scored))
            return replace(row, recipe=recipe, problem=None)

        study.wanted = [shrink(row) for row in study.wanted]
        study.rows = [row for row in study.wanted if row.problem is None]
        return study

    return make


def results_of(study):
    return {result.row.name: result for result in study.results}


def test_rows_are_run_once_and_stand_next_to_the_published_values(small, monkeypatch):
    study = small("mpa/table-4", ["proxy_anchor", "mpa"], "training.max_steps=1", seeds=2)
    assert study.plan()[-1].startswith("Plan: 4 runs for mpa/table-4, 0 of them finished")
    outcomes = study.run()
    assert [(outcome.seed, outcome.status) for outcome in outcomes] == [(seed, "finished") for seed in (0, 0, 1, 1)]
    monkeypatch.setattr(study_module, "run", lambda *_, **__: pytest.fail("finished runs are kept"))
    study.run()
    results, recall = results_of(study), Column("R@1")
    labels = [column.heading for column in study.columns()["cub"]]
    assert labels == ["R@1", "R@2", "R@4", "R@8", "nDCG@2", "nDCG@4", "nDCG@8", "MAP@R"]
    folder = study.folder / "runs" / results["mpa"].row.path
    scores = [json.loads((folder / f"seed-{seed}" / "scores.json").read_text()) for seed in (0, 1)]
    mean = 50 * (scores[0]["test"]["R@1"] + scores[1]["test"]["R@1"])
    assert results["mpa"].difference(recall) == pytest.approx(mean - 69.2)
    files = study.write()
    assert [file.name for file in files] == ["table-4.md", "table-4.csv", "table-4.json", "table-4.png"]
    table = study.table()
    assert files[0].read_text(encoding="utf-8") == markdown(table)
    assert "From scratch" in " ".join(table.conditions)
    written = json.loads(files[2].read_text(encoding="utf-8"))
    assert [row["status"] for row in written["rows"]] == ["finished"] * 2


def test_a_row_that_fails_or_cannot_be_run_says_why(small):
    study = small("mpa/table-4", ["mpa", "proxy_anchor"], "training.max_steps=1", lost=["mpa"])
    outcomes = study.run()
    assert sorted(outcome.status for outcome in outcomes) == ["finished", "skipped"]
    assert study.failure(outcomes)[1] == 3
    assert {name: result.status for name, result in results_of(study).items()} == {
        "proxy_anchor": "finished",
        "mpa": "skipped",
    }
    assert any("nowhere" in note for note in study.table().notes)
    lacking = small("ccp/table-4", ["libc"])
    assert lacking.run() == []
    assert lacking.failure([])[1] == 3
    (result,) = results_of(lacking).values()
    assert (result.status, result.row.problem) == ("skipped", "nearkin has no LIBC")
    assert result.published[Column("R@1")].value == 70.3
    assert result.difference(Column("R@1")) is None


def test_reality_checks_are_rows_and_one_that_cannot_be_scored_does_not_stop_the_others(small, monkeypatch):
    genuine = module.score_models

    def score_models(models, *arguments):
        if models[0].recipe.objective.name == "triplet":
            raise DataError("tested on other images")
        genuine(models, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, "score_models", score_models)
        study = small("ccp/table-6", ["triplet", "c2"], *FOLDS)
        outcomes = study.run()
    assert [outcome.status for outcome in outcomes] == ["finished"] * 4 + ["failed"]
    assert study.failure(outcomes) == ("1 of 5 runs did not finish: tested on other images", 3)
    results = results_of(study)
    assert (results["c2"].repeats, results["c2"].status) == (1, "finished")
    assert 0 < results["c2"].value(Column("MAP@R", "concatenated", 512)).mean <= 1
    assert results["triplet"].seeds == []
    study.run()
    assert results_of(study)["triplet"].status == "finished"


def test_a_reality_check_has_each_model_alone_and_all_concatenated(small):
    study = small("ccp/table-6", ["c2"], "protocol.name=mlrc", seeds=2)
    place = study.folder / "runs" / study.rows[0].path
    names = ("R@1", "P@R", "MAP@R")
    alone = {"mean": 0.6, "spread": None, "values": [0.5, 0.7], "interval": None}
    together = {"mean": 0.7, "spread": 0.01, "interval": [0.69, 0.71]}
    record = json.loads(MLRC.read_text()) | {"hardware": "a machine"}
    record |= {"separate": dict.fromkeys(names, alone), "concatenated": dict.fromkeys(names, together)}
    place.mkdir(parents=True)
    (place / "mlrc.json").write_text(json.dumps(record))
    (c2,) = results_of(study).values()
    columns = study.columns()["cub"]
    assert [(column.heading, round(100 * c2.value(column).mean)) for column in columns] == [
        ("128-d P@1", 60),
        ("128-d P@R", 60),
        ("128-d MAP@R", 60),
        ("512-d P@1", 70),
        ("512-d P@R", 70),
        ("512-d MAP@R", 70),
    ]
    assert c2.difference(Column("P@1", "concatenated", 512)) == pytest.approx(70 - 67.49)
    assert (c2.repeats, c2.seeds, c2.condition("hardware")) == (2, [0, 1, 2, 3], ["a machine"])
    assert c2.test_by_run("R@1") == {0: 0.5, 1: 0.7}


def test_columns_without_published_values_are_those_the_table_names(small):
    varied = small("vcpa/figure-7", ["vcpa-tau-0.01"])
    assert [column.heading for column in varied.columns()["cub"]] == ["R@1", "MAP@R"]
    assert {panel.x for panel in varied.panels()} == {"τ"}


def test_a_table_in_one_call(photos, tmp_path):
    tiny = ("data.image_size=8", "encoder.dim=4", "training.epochs=1", "training.max_steps=1", "training.device=cpu")
    settings = Settings("small", overrides=(*tiny, "protocol.test_share=0.35", "training.seed=3"))
    study = nearkin.reproduce(
        "mpa/table-7", data=[str(photos)], rows=["mpa-proxies_per_class-1"], settings=settings, folder=tmp_path / "out"
    )
    assert list(study.seeds) == [3], "the first is the recipe's"
    table = study.table()
    assert {(record["status"], record["seeds"][0]) for record in table.records} == {("finished", "3")}
    assert (tmp_path / "out" / "table-7.png").exists()
