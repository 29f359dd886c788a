"""What the listing of recipes promises is what papers print and what result files hold."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path

import pytest

from nearkin.recipe import recipes_folder, shipped_recipes
from nearkin.report.published import look_up
from nearkin.studies.reproduce.expected import ExpectedScore, listed_recipes
from nearkin.studies.reproduce.papers import papers
from nearkin.training.recipes import load_recipe

RESULTS = Path(__file__).resolve().parents[3] / "results"


@pytest.fixture(scope="module")
def listed():
    return {each.name: each for each in listed_recipes()}


def lines_of(file):
    return list(csv.DictReader((recipes_folder() / file).read_text().splitlines()))


def test_every_recipe_has_a_line_and_the_files_name_no_others(listed):
    assert list(listed) == list(shipped_recipes())
    for file in ("run_times.csv", "measured.csv"):
        assert {line["recipe"] for line in lines_of(file)} <= set(listed)


def test_recipes_of_papers_have_scores_a_row_and_run_times(listed):
    for name, each in listed.items():
        if name.partition("/")[0] in papers():
            assert each.row is not None, name
            assert {time.device for time in each.run_times} == {"NVIDIA H200", "2 CPU cores"}, name
            assert (each.source == "published") == bool(each.scores) == (name != "vcpa/moco_pa"), name


@pytest.mark.parametrize(
    ("name", "wanted", "row"),
    [
        ("ccp/c2_ccp", {"paper": "CCP", "table": "VI", "method": "C2-CCP-L"}, "ccp/table-6 --rows c2_ccp"),
        ("isa/proxy_isa", {"paper": "ISA", "table": "1", "method": "ProxyISA"}, "isa/table-1 --rows proxy_isa"),
        ("isa/ms_miner", {"paper": "ISA", "table": "2", "method": "MS+Miner"}, "isa/table-2 --rows ms_miner"),
        ("mpa/mpa", {"paper": "MPA", "table": "4", "method": "MPA"}, "mpa/table-4 --rows mpa"),
        ("profs/t_profs", {"paper": "PROFS", "table": "1", "method": "T-PROFS"}, "profs/table-1 --rows t_profs"),
    ],
)
def test_scores_are_those_of_the_row_that_is_the_recipe(listed, name, wanted, row):
    figures = look_up(**wanted, dataset="cub")
    expected = [ExpectedScore(each.metric, each.value, each.spread, each.dim) for each in figures]
    assert expected
    assert list(listed[name].scores) == expected
    assert listed[name].row == f"nearkin reproduce {row} --data cub"


@pytest.mark.skipif(not RESULTS.is_dir(), reason="a source distribution has no result files")
@pytest.mark.parametrize("name", sorted({line["recipe"] for line in lines_of("measured.csv")}))
def test_measured_scores_are_in_the_result_files(name):
    recipe = load_recipe(name)
    for line in (line for line in lines_of("measured.csv") if line["recipe"] == name):
        contents = [json.loads(file.read_text()) for file in sorted(RESULTS.glob(line["results"]))]
        every = [run for content in contents for run in (content if isinstance(content, list) else [content])]
        runs = [run for run in every if line["row"] in ("", run.get("row")) and line["group"] in ("", run.get("group"))]
        number, of = line["runs"].split()
        assert (len(runs), len({run["seed"] if "seed" in of else run["group"] for run in runs})) == (int(number),) * 2
        for run in runs:
            assert (run["objective"], run["method"]) == (recipe.objective.name, recipe.method.name)
            assert run["protocol"] == recipe.protocol.name
            as_long = run["steps"] == recipe.training.max_steps or run["epochs"] == recipe.training.epochs
            ended_by_itself = recipe.training.early_stop_patience is not None
            assert as_long or ended_by_itself or line["note"], "runs shorter than the recipe's need a note"
        values = [100 * run["test"][line["metric"]] for run in runs]
        assert round(statistics.mean(values), 1) == float(line["value"])
        assert line["spread"] == (f"{statistics.stdev(values):.1f}" if len(values) > 2 else "")


def test_the_command_prints_what_is_listed(listed, nearkin):
    code, out, err = nearkin("recipes", "--json")
    assert code == 0, err
    found = {each["name"]: each for each in json.loads(out)}
    assert list(found) == list(listed)
    assert found["ccp/c1"]["command"] == "nearkin train ccp/c1 encoder.weights=bn_inception.pth"
    assert found["cub/variational_mpa"]["run_times"][0]["seconds"] == 208
    assert "papers/" not in out
    assert "own_photos/small" in nearkin("recipes")[1]
