"""``nearkin plot`` as a person or a script meets it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nearkin as package
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer


def train(folder, data, *overrides):
    mapping = {
        "data": {"source": str(data), "transform": "digits", "image_size": 8, "workers": 1, "cache": "memory"},
        "encoder": {"backbone": "small", "dim": 5},
        "training": {"epochs": 9, "max_steps": 3, "batch_size": 12, "device": "cpu", "evaluate_every_steps": 1},
    }
    run(load_recipe(mapping, overrides), RunFolder(folder), Observer())
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("command")
    rng = np.random.default_rng(0)
    for name in (
        "_under",
        "5 $ and 6 $",
        "ä ö ü",
        "漢字",
        "four",
        "five",
        "six",
        "a name that is longer than a caption",
    ):
        (root / "data" / name).mkdir(parents=True)
        centre = rng.uniform(0, 255, (8, 8, 3))
        for index in range(3):
            pixels = (centre + rng.normal(0, 30, centre.shape)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / "data" / name / f"{index}.png")
    train(root / "vcpa", root / "data", "objective.name=vcpa", "objective.tau=1.0")
    ccp = ["objective.name=contrastive", "training.sampler=balanced", "protocol.covering=true", "method.name=ccp"]
    options = ["method.steps_per_problem=2", "method.proxies_per_class=2", "method.pool_size=2"]
    train(root / "ccp", root / "data", *ccp, *options)
    return root


@pytest.fixture
def copied(made, tmp_path):
    for name in ("vcpa", "ccp"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path


def test_everything_that_one_run_has_to_show(nearkin, copied):
    code, out, err = nearkin("plot", copied / "vcpa")
    assert code == 0, err
    names = ("curves", "map", "uncertainty", "certainty", "neighbours")
    files = {f"{name}.png" for name in names}
    assert {file.name for file in (copied / "vcpa" / "plots").iterdir()} == files
    assert out.splitlines() == [str(copied / "vcpa" / "plots" / line.rsplit("/")[-1]) for line in out.splitlines()]
    assert len(out.splitlines()) == len(files)
    for name in files:
        assert Image.open(copied / "vcpa" / "plots" / name).size[0] > 500
    assert "not drawn: covering: " in err
    assert "reliability: " in err, "of too few images"
    assert "Traceback" not in err


def test_several_runs_share_axes_and_keep_their_own_pictures_apart(nearkin, copied):
    output = copied / "both"
    only = "curves,map,uncertainty,covering,neighbours"
    code, out, err = nearkin("plot", copied / "vcpa", copied / "ccp", "-o", output, "--only", only, "--json")
    assert code == 0, err
    result = json.loads(out)
    names = {file.name for file in output.iterdir()}
    assert {str(output / name) for name in names} == set(result["written"])
    shared = {"curves", "covering", "neighbours"}
    own = {f"map-{run}" for run in ("vcpa", "ccp")}
    assert names == {f"{name}.png" for name in shared | own | {"uncertainty-vcpa"}}
    missing = {(item["figure"], item["run"]) for item in result["not_drawn"]}
    expected = {("uncertainty", "ccp"), ("covering", "vcpa")}
    assert missing == {(picture, str(copied / run)) for picture, run in expected}
    assert not (copied / "vcpa" / "plots").exists()


def test_the_same_command_writes_the_same_bytes(nearkin, copied):
    def files(folder, only, kind, seed=0):
        output = copied / folder
        code, _, err = nearkin(
            "plot", copied / "ccp", "-o", output, "--only", only, "--format", kind, "--seed", seed, "--classes", 3
        )
        assert code == 0, err
        return {file.name: file.read_bytes() for file in output.iterdir()}

    maps = files("a", "map", "svg")
    assert files("b", "map", "svg") == maps
    assert files("c", "map", "svg", seed=1)["map.svg"] != maps["map.svg"]
    assert files("d", "curves,covering", "pdf") == files("e", "covering, curves", "pdf")


def test_a_run_whose_data_is_gone_still_has_its_curves(nearkin, copied):
    recipe = copied / "ccp" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("/data\n", "/moved\n"))
    code, out, err = nearkin("plot", copied / "ccp")
    assert code == 0, err
    assert {line.rsplit("/")[-1] for line in out.splitlines()} == {"curves.png", "covering.png"}
    (line,) = [line for line in err.splitlines() if "map" in line]
    assert line.startswith("not drawn: certainty, map, ")
    assert "/moved'" in line
    assert "--data" in line
    assert "Traceback" not in err


def test_images_that_have_moved_are_found_where_they_are_said_to_be(nearkin, made, copied):
    recipe = copied / "ccp" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("/data\n", "/moved\n"))
    code, out, err = nearkin("plot", copied / "ccp", "--only", "map", "--data", made / "data")
    assert (code, err) == (0, "")
    assert out.split() == [str(copied / "ccp" / "plots" / "map.png")]


def test_pictures_of_a_study_carry_the_names_of_their_rows(nearkin, copied):
    for name in ("vcpa", "ccp"):
        (copied / "study" / f"row_{name}").mkdir(parents=True)
        shutil.move(copied / name, copied / "study" / f"row_{name}" / "seed-0")
    runs = [copied / "study" / f"row_{name}" / "seed-0" for name in ("vcpa", "ccp")]
    code, out, err = nearkin("plot", *runs, "-o", copied / "both", "--only", "map", "--format", "svg")
    assert code == 0, err
    names = ["map-row_vcpa-seed-0.svg", "map-row_ccp-seed-0.svg"]
    assert [line.rsplit("/")[-1] for line in out.splitlines()] == names
    code, _, err = nearkin("plot", copied / "study")
    assert code == 3
    assert "is not a run but holds 2" in err
    assert str(runs[1]) in err


def test_nothing_drawn_is_a_failure_with_its_reason(nearkin, copied):
    code, out, err = nearkin("plot", copied / "ccp", "--only", "uncertainty")
    assert code == 3
    assert out == ""
    assert "not drawn: uncertainty: " in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["vcpa", "ccp"], 2, "--output"),
        (["vcpa", "--only", "curve"], 2, "did you mean 'curves'"),
        (["vcpa", "--format", "gif"], 2, "'gif'"),
        (["vcpa", "--classes", "1"], 2, "--classes"),
        (["vcpa", "--seed", "-1"], 2, "--seed"),
        (["vcpa", "--checkpoint", "first"], 2, "'first'"),
        (["none"], 3, "no run at"),
        (["vcpa", "-o", "vcpa/recipe.yaml"], 2, "is a file"),
        (["vcpa", "-o", "vcpa/recipe.yaml/plots"], 3, "cannot write vcpa/recipe.yaml/plots"),
    ],
)
def test_mistakes_are_found_before_anything_is_drawn(nearkin, copied, monkeypatch, arguments, code, said):
    monkeypatch.chdir(copied)
    got, out, err = nearkin("plot", *arguments)
    assert got == code, err
    assert said in " ".join(err.split())
    assert out == ""
    assert not (copied / "vcpa" / "plots").exists()


def test_the_same_run_twice_is_one_run(nearkin, copied, monkeypatch):
    monkeypatch.chdir(copied)
    code, out, err = nearkin("plot", "ccp", "./ccp", "--only", "covering")
    assert code == 0, err
    assert out.split() == ["ccp/plots/covering.png"]


ADDED = '''
"""How long a run's recipe is."""

from nearkin.report.figure_style import new_figure


def draw_run(run):
    return new_figure(1 + len(run.recipe.to_yaml()) / 1e4, 1)
'''


CALLED = """
import contextlib, os, sys
from nearkin import cli
from nearkin.runs.folder import RunFolder
for arguments in ("plot --help", "list plots --markdown", "plot vcpa --only recipe-length --format svg"):
    sys.argv = ["nearkin", *arguments.split()]
    with contextlib.suppress(SystemExit):
        cli.main()
    print("---", flush=True)
print(sorted(os.listdir("vcpa/plots")), "---", sep="\\n")
RunFolder("vcpa").clear()
print(sorted(os.listdir("vcpa/plots")))
"""


def test_a_picture_is_added_by_its_file_alone(copied):
    """It is offered, listed, drawn, and cleared away with its run; what else lies beside it stays."""
    shutil.copytree(Path(package.__file__).parent, copied / "nearkin", ignore=shutil.ignore_patterns("__pycache__"))
    (copied / "nearkin" / "report" / "figures" / "recipe_length.py").write_text(ADDED)
    plots = copied / "vcpa" / "plots"
    plots.mkdir()
    (plots / "recipe-length-old.svg").write_text("mine")
    environment = os.environ | {"PYTHONPATH": str(copied), "COLUMNS": "500"}
    started = [sys.executable, "-c", CALLED]
    done = subprocess.run(started, env=environment, cwd=copied, capture_output=True, text=True, check=True)
    offered, page, drawn, before, after = done.stdout.strip().split("\n---\n")
    assert "recipe-length" in offered
    assert "| `recipe-length` |" in page
    assert drawn == "vcpa/plots/recipe-length.svg"
    assert before == "['recipe-length-old.svg', 'recipe-length.svg']"
    assert after == "['recipe-length-old.svg']"
