"""Rows are run, kept, continued and read back; what cannot be run is left alone and says why."""

from __future__ import annotations

import json

import pytest

from nearkin.errors import DataError
from nearkin.report import formats
from nearkin.studies import study as study_module
from nearkin.studies.reproduce import Settings, reproduction
from nearkin.studies.reproduce.results import Column

FOLDS = ("protocol.name=mlrc", "protocol.folds=2", "protocol.test_share=0.35", "training.max_steps=2")


def test_rows_are_run_once_and_stand_beside_the_published_figures(tiny, results_of, monkeypatch):
    study = tiny("mpa/table-4", ["mpa", "proxy_anchor"], seeds=2)
    outcomes = study.run()
    assert [(outcome.seed, outcome.status) for outcome in outcomes] == [(seed, "finished") for seed in (0, 0, 1, 1)]
    monkeypatch.setattr(study_module, "run", lambda *_, **__: pytest.fail("finished runs are kept"))
    study.run()

    anchor, mpa = results_of(study)
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
    folder = study.folder / "runs" / mpa.planned.folder_in(study.folder / "runs")
    scores = [json.loads((folder / f"seed-{seed}" / "scores.json").read_text()) for seed in (0, 1)]
    mean = 50 * (scores[0]["test"]["R@1"] + scores[1]["test"]["R@1"])
    assert mpa.ours[recall].mean == pytest.approx(mean)
    assert mpa.last[recall].values == pytest.approx([100 * each["last"]["R@1"] for each in scores])
    assert mpa.difference(recall) == pytest.approx(mean - 69.2)
    assert anchor.difference(recall) == pytest.approx(anchor.ours[recall].mean - 68.6)
    assert mpa.conditions["protocol"] == ["conventional"]
    assert "test classes" in mpa.conditions["selection"][0]
    assert (mpa.seeds, mpa.status, mpa.problem) == ([0, 1], "finished", None)


def test_everything_is_written(tiny):
    study = tiny("mpa/table-4", ["mpa"], "training.max_steps=1")
    study.run()
    files = study.write()
    assert [file.name for file in files] == ["table-4.md", "table-4.csv", "table-4.json", "table-4.png"]
    (table,) = study.tables()
    assert files[0].read_text(encoding="utf-8") == formats.markdown(table)
    written = json.loads(files[2].read_text(encoding="utf-8"))
    assert [row["status"] for row in written["rows"]] == ["finished"]
    assert study.record()["figures"] == written["figures"]


def test_weights_that_are_not_there_are_said_before_anything_is_run(tiny):
    study = tiny("mpa/table-4", ["mpa"], "encoder.weights=nowhere.pth")
    with pytest.raises(DataError, match=r"encoder\.weights names 'nowhere\.pth', which is not a file"):
        study.run()


def test_a_row_that_fails_is_recorded_and_the_others_go_on(tiny, results_of):
    study = tiny("mpa/table-4", ["mpa", "mpa_ap", "proxy_anchor"], "training.max_steps=1", lost=["mpa", "mpa_ap"])
    outcomes = study.run()
    assert sorted(outcome.status for outcome in outcomes) == ["finished", "skipped", "skipped"]
    assert study.failure(outcomes)[1] == 3
    for row in results_of(study):
        if row.planned.row.name == "proxy_anchor":
            assert row.finished
        else:
            assert row.status == "skipped"
            assert "nowhere" in row.problem
            assert not row.finished


def test_rows_with_a_problem_are_not_run(tiny, results_of):
    study = tiny("ccp/table-4", ["libc"])
    assert study.run() == []
    assert study.failure([]) == ("no row could be run here; the table says why", 3)
    (row,) = results_of(study)
    assert (row.status, row.problem) == ("not in nearkin", "nearkin has no LIBC")
    assert row.published[Column("R@1")].value == 70.3
    assert row.difference(Column("R@1")) is None


def test_an_untrained_network_is_scored(tiny, results_of):
    study = tiny("vcpa/figure-3", ["features", "random_head"], "training.epochs=0")
    study.run()
    rows = results_of(study)
    assert {row.planned.row.name for row in rows} >= {"features", "random_head"}
    for row in rows:
        assert row.finished, row.problem
        assert 0 < row.ours[Column("R@1")].mean < 100


def test_models_of_all_reality_checks_are_trained_in_one_pool(tiny, results_of, monkeypatch):
    calls = []
    genuine = reproduction.run_all

    def run_all(runs, *, jobs, **options):
        calls.append(([planned.label for planned in runs], jobs))
        return genuine(runs, jobs=1, **options)

    monkeypatch.setattr(reproduction, "run_all", run_all)
    study = tiny("ccp/table-6", ["c2", "triplet", "proxy_anchor"], *FOLDS, lost=["triplet"])
    outcomes = study.run(jobs=3)
    ((labels, jobs),) = calls
    assert jobs == 3
    assert len(labels) == 4
    assert {label.partition(" on cub, ")[2] for label in labels} == {
        "fold 0 of 0–1, repeat 0, seed 0",
        "fold 1 of 0–1, repeat 0, seed 1",
    }
    assert [(outcome.status, outcome.exit_code) for outcome in outcomes] == [("finished", 0)] * 4 + [("skipped", 3)] * 2
    by_name = {each.planned.row.name: each for each in results_of(study)}
    assert (by_name["c2"].repeats, by_name["c2"].problem) == (1, None)
    assert 0 < by_name["proxy_anchor"].ours[Column("MAP@R", "concatenated", 512)].mean <= 100
    assert by_name["triplet"].status == "skipped"
    assert "nowhere" in by_name["triplet"].problem
    # Its photos are back: only its models are trained, and nothing is said of it any more.
    trained = []
    run = study_module.run
    monkeypatch.setattr(study_module, "run", lambda recipe, *a, **k: (trained.append(recipe), run(recipe, *a, **k)))
    study = tiny("ccp/table-6", ["c2", "triplet", "proxy_anchor"], *FOLDS)
    assert {outcome.status for outcome in study.run()} == {"finished"}
    assert [recipe.objective.name for recipe in trained] == ["triplet"] * 2
    assert all(each.problem is None and each.finished for each in results_of(study))


def test_models_that_cannot_be_scored_together_do_not_keep_the_other_rows_back(tiny, results_of, monkeypatch):
    genuine = reproduction.score_models

    def score_models(models, *arguments):
        if models[0].recipe.objective.name == "triplet":
            raise DataError("tested on other images")
        genuine(models, *arguments)

    monkeypatch.setattr(reproduction, "score_models", score_models)
    study = tiny("ccp/table-6", ["triplet", "c2"], *FOLDS)
    outcomes = study.run()
    assert [outcome.status for outcome in outcomes] == ["finished"] * 4 + ["failed"]
    assert study.failure(outcomes) == ("1 of 5 runs did not finish: tested on other images", 3)
    by_name = {each.planned.row.name: each for each in results_of(study)}
    assert (by_name["c2"].finished, by_name["triplet"].finished) == (True, False)
    assert (by_name["triplet"].status, by_name["triplet"].problem) == ("not scored", "tested on other images")
    assert any("not scored: tested on other images" in note for note in study.tables()[0].notes)


def test_a_table_in_one_call(photos, tmp_path):
    small = ("data.image_size=8", "encoder.dim=4", "training.epochs=1", "training.max_steps=1", "training.device=cpu")
    settings = Settings("small", overrides=(*small, "protocol.test_share=0.35", "training.seed=3"))
    study = reproduction.reproduce(
        "mpa/table-7", data=[str(photos)], rows=["mpa-proxies_per_class-1"], settings=settings, folder=tmp_path / "out"
    )
    assert study.seeds == [3], "the first is the recipe's"
    (table,) = study.tables()
    assert {record["status"] for record in table.records} == {"finished"}
    assert {record["seeds"][0] for record in table.records} == {"3"}
    assert (tmp_path / "out" / "table-7.md").exists()
