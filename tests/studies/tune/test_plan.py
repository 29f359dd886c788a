from __future__ import annotations

import json

import pytest

from nearkin.errors import DataError, RecipeError
from nearkin.recipe import Recipe
from nearkin.runs.folder import RunFolder
from nearkin.studies.tune import Plan
from nearkin.studies.tune.plan import check_folder, check_plan, default_tuning_folder, plan_file, validate_plan


@pytest.mark.parametrize("name", ["conventional", "query-gallery", "in-distribution"])
def test_a_protocol_without_validation_classes_is_refused(make_plan, tune, tmp_path, name):
    with pytest.raises(
        RecipeError, match=rf"protocol\.name={name}.*set protocol\.name=validation, or protocol\.name=mlrc"
    ):
        tune(make_plan(changes=[f"protocol.name={name}"]), tmp_path / "search")
    assert not (tmp_path / "search").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sampler": "tpr"}, "sampler must be one of tpe, random, grid, got 'tpr'"),
        ({"pruner": "mean"}, "pruner must be one of median, halving, none, got 'mean'"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"seed": -1}, "seed at least 0"),
        ({"sampler": "grid"}, "a grid goes through values and .* has no end of them"),
    ],
)
def test_what_cannot_be_searched_is_refused(make_plan, settings, said):
    check_plan(make_plan())
    with pytest.raises(RecipeError, match=said):
        check_plan(make_plan(**settings))


def test_a_grid_is_every_combination_and_gone_through_whole(make_plan):
    plan = make_plan("training.batch_size=4,8", "training.optimiser=adam,sgd", sampler="grid")
    keys = ("training.batch_size", "training.optimiser")
    expected = [(4, "adam"), (4, "sgd"), (8, "adam"), (8, "sgd")]
    assert [tuple(point[key] for key in keys) for point in plan.grid()] == expected
    assert [plan.trials(asked) for asked in (None, 3, 9)] == [4, 3, 4]
    assert [make_plan().trials(asked) for asked in (None, 30)] == [20, 30]
    given = (plan.recipe, plan.space)
    assert Plan.of(*given, "grid", None, 0, 1).pruner == "none"
    assert Plan.of(*given, "tpe", None, 0, 1).pruner == "median"
    assert Plan.of(*given, "grid", "halving", 0, 1).pruner == "halving"


def test_it_is_read_back_as_it_was_written(make_plan, tmp_path):
    plan = make_plan("training.learning_rate=1e-4..1e-1:log", "training.batch_size=4,8", pruner="halving", seeds=2)
    with pytest.raises(DataError, match=r"holds no search, as it has no plan\.json"):
        Plan.read(tmp_path)
    validate_plan(plan, tmp_path)
    assert Plan.read(tmp_path) == plan
    for broken in ("{", "[]", json.dumps(plan.definition() | {"sample": 1})):
        plan_file(tmp_path).write_text(broken)
        with pytest.raises(DataError, match="cannot be read"):
            Plan.read(tmp_path)


def test_a_folder_is_gone_on_with_by_its_own_plan_alone(make_plan, tmp_path):
    (tmp_path / "search").mkdir()
    validate_plan(make_plan(), tmp_path / "search")
    check_folder(make_plan(changes=["data.workers=2"]), tmp_path / "search")
    with pytest.raises(RecipeError, match=r"holds another search .*seeds was 1, is 2.*only --trials and --jobs"):
        check_folder(make_plan(seeds=2), tmp_path / "search")
    RunFolder(tmp_path / "run").begin(Recipe())
    with pytest.raises(RecipeError, match="holds a run: give another folder"):
        validate_plan(make_plan(), tmp_path / "run")


def test_the_usual_folder_is_that_of_the_plan(make_plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    usual = default_tuning_folder(make_plan())
    assert usual.name.startswith("tune-kinds-proxy_anchor-")
    assert default_tuning_folder(make_plan(changes=["data.workers=2"])) == usual
    assert default_tuning_folder(make_plan(seed=1)) != usual
    old = usual.with_name("tune-kinds-proxy_anchor-00000000")
    old.mkdir(parents=True)
    validate_plan(make_plan(), old)
    assert default_tuning_folder(make_plan()) == old
