from __future__ import annotations

import json
import math
import signal

import pytest

from nearkin.errors import InterruptedRunError, RecipeError, TrainingError
from nearkin.recipe import Recipe
from nearkin.runs.folder import RunFolder
from nearkin.studies import study
from nearkin.studies.study import (
    Row,
    difference,
    figure,
    outcome_of,
    planned_runs,
    rank_correlation,
    run_study,
    summarise,
)
from nearkin.training.observers import ConsoleObserver

TINY = {
    "data": {"transform": "mild", "image_size": 8, "workers": 1},
    "encoder": {"backbone": "small", "dim": 4},
    "training": {"epochs": 2, "max_steps": 4, "batch_size": 8, "device": "cpu", "learning_rate": 1e-3},
    "objective": {"name": "proxy_anchor"},
    "protocol": {"name": "conventional", "test_share": 0.5},
}


@pytest.fixture
def make_row(photos):
    def make(name, *overrides, base=None):
        recipe = Recipe.from_mapping(TINY, [f"data.source={json.dumps(str(photos))}", *overrides])
        return Row(name, name.upper(), recipe, base)

    return make


@pytest.fixture
def forbid_training(monkeypatch):
    def forbid():
        def refuse(*_, **__):
            raise AssertionError("nothing should be trained")

        monkeypatch.setattr(study, "run", refuse)

    return forbid


def test_every_row_and_seed_has_a_folder_and_finished_runs_are_kept(make_row, tmp_path, forbid_training):
    rows = [make_row("a"), make_row("b", "objective.name=mpa", "objective.proxies_per_class=2")]
    outcomes = run_study(rows, tmp_path / "study", [0, 7])
    assert [(o.row, o.seed, o.status) for o in outcomes] == [
        ("a", 0, "finished"),
        ("b", 0, "finished"),
        ("a", 7, "finished"),
        ("b", 7, "finished"),
    ]
    for name, objective in (("a", "proxy_anchor"), ("b", "mpa")):
        scores = json.loads((tmp_path / "study" / name / "seed-7" / "scores.json").read_text())
        assert (scores["objective"], scores["seed"], scores["steps"]) == (objective, 7, 4)
    forbid_training()
    assert run_study(rows, tmp_path / "study", [0, 7]) == outcomes
    assert len(run_study(rows, tmp_path / "study", [0, 7], only_rows=["b"])) == 2


def test_an_interruption_loses_nothing(make_row, tmp_path, monkeypatch):
    rows = [make_row("a"), make_row("b", "objective.name=vcpa")]
    genuine = ConsoleObserver.on_step

    def stop_in_b(self, state, loss, images):
        genuine(self, state, loss, images)
        if state.recipe.objective.name == "vcpa" and state.step == 3:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(ConsoleObserver, "on_step", stop_in_b)
        with pytest.raises(InterruptedRunError, match=r"1 of 2 runs finished.*The same command goes on"):
            run_study(rows, tmp_path / "study", [0])
    begun = planned_runs(rows, tmp_path / "study", [0])[1]
    assert (outcome_of(begun).status, outcome_of(begun).reason) == ("unfinished", "begun, not finished")
    run_study(rows, tmp_path / "study", [0])
    run_study(rows, tmp_path / "straight", [0])
    for name in ("a", "b"):
        ours, straight = (RunFolder(tmp_path / folder / name / "seed-0").scores() for folder in ("study", "straight"))
        assert ours["test"] == straight["test"]
        assert ours["last"]["loss"] == straight["last"]["loss"]


def test_what_cannot_be_run_is_recorded_and_the_rest_goes_on(make_row, tmp_path, monkeypatch):
    rows = [
        make_row("missing", "data.source=./nowhere"),
        make_row("diverges"),
        make_row("overflows", "training.learning_rate=1e30"),
        make_row("fine"),
    ]
    genuine = study.run

    def run(recipe, folder, *arguments, **options):
        if "diverges" in str(folder.path):
            raise TrainingError("the loss became nan at step 3")
        return genuine(recipe, folder, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(study, "run", run)
        missing, diverges, overflows, fine = run_study(rows, tmp_path / "study", [0])
    assert (missing.status, missing.exit_code) == ("skipped", 3)
    assert "nowhere" in missing.reason
    assert (diverges.status, diverges.exit_code) == ("failed", 5)
    assert diverges.reason == "the loss became nan at step 3"
    assert overflows.status == "failed"
    assert "finite" in overflows.reason or "the loss became" in overflows.reason
    assert (fine.status, fine.reason) == ("finished", None)
    kept = json.loads((tmp_path / "study" / "missing" / "seed-0" / "study.json").read_text())
    assert kept["status"] == "skipped"
    summary = {row["name"]: row for row in summarise(rows, tmp_path / "study", [0])}
    assert summary["missing"]["seeds"] == []
    assert summary["missing"]["problems"][0]["reason"] == missing.reason
    assert summary["fine"]["problems"] == []
    # What was missing may be there now: the next call tries again.
    rows[0] = make_row("missing")
    assert run_study(rows, tmp_path / "study", [0], only_rows=["missing"])[0].status == "finished"


def test_another_recipe_is_an_error_that_names_the_key_and_overwrite_runs_only_what_changed(make_row, tmp_path):
    run_study([make_row("a"), make_row("b")], tmp_path / "study", [0])
    before = (tmp_path / "study" / "a" / "seed-0" / "scores.json").stat().st_mtime_ns
    rows = [make_row("a"), make_row("b", "objective.alpha=16")]
    with pytest.raises(RecipeError, match=r"objective\.alpha was None, is 16\.0.*--overwrite"):
        run_study(rows, tmp_path / "study", [0])
    with pytest.raises(RecipeError, match="--overwrite"):
        summarise(rows, tmp_path / "study", [0])
    run_study(rows, tmp_path / "study", [0], overwrite=True)
    assert RunFolder(tmp_path / "study" / "b" / "seed-0").recipe().objective.options == {"alpha": 16.0}
    assert (tmp_path / "study" / "a" / "seed-0" / "scores.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("objective.alpha=-1", "row 'b'.*alpha must be positive"),
        ("method.name=ccp", r"row 'b'.*set method\.steps_per_problem"),
        ("training.device=tpu", "row 'b'.*unknown device"),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_refused_before_anything_is_run(make_row, tmp_path, override, said):
    objective = "objective.name=vcpa" if "alpha" in override else "objective.name=contrastive"
    with pytest.raises(RecipeError, match=said):
        run_study([make_row("a"), make_row("b", objective, override)], tmp_path / "study", [0])
    assert not (tmp_path / "study").exists()


def test_mistakes_in_names_seeds_and_jobs(make_row, tmp_path):
    rows = [make_row("proxy_anchor"), make_row("vcpa")]
    with pytest.raises(RecipeError, match="did you mean 'proxy_anchor'"):
        run_study(rows, tmp_path, [0], only_rows=["proxy_ancor"])
    with pytest.raises(RecipeError, match="different names"):
        run_study([rows[0], rows[0]], tmp_path, [0])
    for seeds in ([], [1, 1]):
        with pytest.raises(RecipeError, match="seeds"):
            run_study(rows, tmp_path, seeds)
    with pytest.raises(RecipeError, match="jobs"):
        run_study(rows, tmp_path, [0], jobs=0)


def test_two_at_a_time_give_the_scores_of_one_at_a_time(make_row, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rows = [make_row("a"), make_row("broken", "data.source=./nowhere")]
    a, broken = run_study(rows, tmp_path / "two", [3], jobs=2)
    assert (a.status, a.side_by_side) == ("finished", 2)
    assert (broken.status, broken.exit_code) == ("skipped", 3)
    assert broken.reason.startswith("there is no folder")
    run_study(rows[:1], tmp_path / "one", [3])
    two, one = (RunFolder(tmp_path / folder / "a" / "seed-3").scores() for folder in ("two", "one"))
    assert two["test"] == pytest.approx(one["test"], abs=1e-3)
    assert (two["steps"], two["seed"]) == (4, 3)


def write_run(row, seed, folder, *, recall, last=None, step_ms=10.0, hardware="CPU"):
    """A finished run with scores of one's own."""
    planned = next(p for p in planned_runs([row], folder, [seed]))
    planned.folder.begin(planned.recipe)
    test = {"R@1": recall, "MAP@R": recall / 2, "nDCG@8": recall / 4, "covering_radius": 10 * recall}
    planned.folder.write_scores(
        {
            "data": "toy",
            "protocol": planned.recipe.protocol.name,
            "selection": "best R@1 on the test classes",
            "test_classes": "classes never seen in training",
            "seed": seed,
            "hardware": hardware,
            "recipe": planned.recipe.fingerprint(),
            "epochs": 2.0,
            "cost": {"step_ms": step_ms},
            "untrained": {"R@1": 0.1, "MAP@R": 0.05},
            "test": test,
            "best": {"epoch": 1.0, "R@1": recall, "MAP@R": 1 - recall},
            "last": {"epoch": 2.0, "R@1": last or recall, "MAP@R": 0.2},
        }
    )


def test_figures_are_means_and_sample_standard_deviations(make_row, tmp_path):
    base, ours, single = make_row("base"), make_row("ours", base="base"), make_row("single", base="base")
    for seed, recall, last, step_ms in ((0, 0.60, 0.50, 10.0), (1, 0.66, 0.50, 12.0), (2, 0.63, 0.56, 14.0)):
        write_run(base, seed, tmp_path, recall=recall, last=last, step_ms=step_ms)
        write_run(ours, seed, tmp_path, recall=recall + 0.1)
    write_run(single, 1, tmp_path, recall=0.62)
    summary = {row["name"]: row for row in summarise([base, ours, single], tmp_path, [0, 1, 2])}
    # 0.60, 0.66, 0.63: mean 0.63, squared deviations 0.0009 + 0.0009 + 0, divided by two: 0.0009, root 0.03.
    assert summary["base"]["metrics"]["R@1"]["mean"] == pytest.approx(0.63)
    assert summary["base"]["metrics"]["R@1"]["spread"] == pytest.approx(0.03)
    assert summary["base"]["metrics"]["MAP@R"]["spread"] == pytest.approx(0.015)
    assert summary["base"]["metrics"]["nDCG@8"]["mean"] == pytest.approx(0.1575)
    assert summary["base"]["metrics"]["covering_radius"]["spread"] == pytest.approx(0.3)
    # Last epoch 0.50, 0.50, 0.56: mean 0.52, squared deviations 0.0004 + 0.0004 + 0.0016, halved 0.0012.
    assert summary["base"]["last"]["R@1"]["mean"] == pytest.approx(0.52)
    assert summary["base"]["last"]["R@1"]["spread"] == pytest.approx(0.0012**0.5)
    assert summary["base"]["step_ms"]["mean"] == pytest.approx(12.0)
    assert summary["base"]["step_ms"]["spread"] == pytest.approx(2.0)
    assert "against" not in summary["base"]
    against = summary["ours"]["against"]["R@1"]
    assert against["difference"] == pytest.approx(0.1)
    assert against["spread"] == pytest.approx(0.03 * 2**0.5)
    assert against["verdict"] == "above"
    assert summary["single"]["seeds"] == [1]
    assert summary["single"]["metrics"]["R@1"]["spread"] is None
    assert summary["single"]["against"]["R@1"]["verdict"] is None
    assert [problem["seed"] for problem in summary["single"]["problems"]] == [0, 2]
    assert summary["base"]["protocol"] == ["conventional"]


def test_only_the_conventional_protocol_has_a_last_epoch_beside_the_best(make_row, tmp_path):
    row = make_row("a", "protocol.name=validation")
    write_run(row, 0, tmp_path, recall=0.6)
    assert summarise([row], tmp_path, [0])[0]["last"] == {}


def test_only_validation_classes_have_a_score_that_chose_the_epoch(make_row, tmp_path):
    chosen = make_row("a", "protocol.name=validation")
    named = make_row("b", "protocol.name=validation", "protocol.select_by=R@1")
    on_test = make_row("c")
    for row in (chosen, named, on_test):
        write_run(row, 0, tmp_path, recall=0.6)
        write_run(row, 1, tmp_path, recall=0.5)
    first, second, third = (row["chosen"] for row in summarise([chosen, named, on_test], tmp_path, [0, 1]))
    assert first["score"] == "MAP@R"
    assert first["validation"]["values"] == pytest.approx([0.4, 0.5])
    assert first["test"]["values"] == pytest.approx([0.3, 0.25])
    assert second["score"] == "R@1"
    assert third == {}


def test_ranks_of_equal_values_are_shared():
    # Ranks 0.5, 0.5, 2, 3 and 0, 1, 2, 3: covariance 4.5 over the root of 4.5 · 5.
    assert rank_correlation([1, 1, 4, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert math.isnan(rank_correlation([1, 1], [1, 2]))


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [(0.70, "within the spread"), (0.75, "within the spread"), (0.76, "above"), (0.64, "below")],
)
def test_within_the_spread_means_at_most_the_root_of_both_variances(ours, verdict):
    # 0.03 and 0.04: root of 0.0009 + 0.0016 is 0.05, a hair more so that rounding does not decide.
    assert difference({"mean": ours, "spread": 0.03}, {"mean": 0.70, "spread": 0.04001})["verdict"] == verdict


def test_no_value_is_no_figure():
    assert figure([]) is None
    assert difference(figure([]), figure([1.0])) is None
