from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from rich.console import Console

from nearkin.recipe import Recipe
from nearkin.report.tuning import (
    best_recipe,
    remarks,
    three_seeds,
    trials_csv,
    tuning_markdown,
    tuning_table,
    write_tuning,
)
from nearkin.studies.tune import Plan, Trial, Tuning, read_space

PLANE = ("method.pull=1e-6..1:log", "method.proxies_per_class=1..7")


@pytest.fixture
def make(tmp_path):
    """Builds a search from ``(status, score, *values)`` of its trials."""

    def build(trials, space=PLANE, **settings):
        recipe = Recipe.load("glyphs/ccp")
        plan = Plan(recipe, read_space(space, recipe), **settings)
        made = []
        for number, (status, score, *values) in enumerate(trials):
            point = dict(zip((dimension.key for dimension in plan.space), values, strict=True))
            known = {"scores": [score], "epochs": [7.0]} if status == "finished" else {"reason": f"it {status}"}
            made.append(Trial(number, status, point, score, seconds=60.0, **known))
        conditions = {"data": "glyphs", "selection": "best MAP@R on the validation classes", "hardware": "CPU"}
        (tmp_path / "my search").mkdir(exist_ok=True)
        return Tuning(plan, tmp_path / "my search", made, conditions)

    return build


@pytest.fixture
def some(make):
    return make(
        [
            ("finished", 0.412345678901, 0.001, 4),
            ("pruned", 0.2, 0.5, 1),
            ("finished", 0.45, 1e-5, 7),
            ("diverged", None, 0.9, 2),
            ("finished", 0.4, 0.01, 2),
        ],
        pruner="median",
    )


def test_table_and_markdown_show_the_best_first_with_their_conditions(some, capsys):
    Console(width=100).print(tuning_table(some))
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.strip() and line.split()[0].isdigit() and len(line.split()) == 5]
    assert rows == [["2", "45.0", "7", "1e-05", "7"], ["0", "41.2", "7", "0.001", "4"], ["4", "40.0", "7", "0.01", "2"]]
    said = " ".join(" ".join(lines).split())
    for text in (
        "5 trials: 3 finished, 1 pruned, 1 diverged; tpe sampler, seed 0, median pruner; validation protocol, best "
        "MAP@R on the validation classes; seed 0 alone, so no spread; 10 epochs; CPU.",
        "The test classes have not been looked at.",
        "The best method.proxies_per_class lies at an end of its range method.proxies_per_class=1..7",
        "Trial 3 diverged: it diverged",
    ):
        assert text in said
    assert "method.pull lies at an end" not in said
    page = tuning_markdown(some)
    assert "| 2 | 45.0 | 7 | 1e-05 | 7 |\n| 0 | 41.2 | 7 | 0.001 | 4 |\n" in page
    assert three_seeds(some) in page


def test_the_end_of_a_logarithmic_range_is_measured_by_its_logarithm(make):
    assert not remarks(make([("finished", 0.5, 0.02, 4)])), "two per cent of the way, yet far along in logarithm"
    assert len(remarks(make([("finished", 0.5, 1.2e-6, 4)]))) == 1
    assert not remarks(make([("finished", 0.5, 1e-6, 1)], ["method.pull=1e-6,1e-5", "method.proxies_per_class=1,2"]))


def test_csv_has_every_trial_with_all_digits(some):
    rows = list(csv.DictReader(io.StringIO(trials_csv(some))))
    assert [row["trial"] for row in rows] == list("01234")
    assert [row["status"] for row in rows] == ["finished", "pruned", "finished", "diverged", "finished"]
    assert rows[0]["MAP@R"] == rows[0]["scores"] == "0.412345678901"
    assert (rows[3]["MAP@R"], rows[3]["reason"]) == ("", "it diverged")
    assert float(rows[2]["method.pull"]) == 1e-5


def test_the_best_is_a_recipe_that_loads(some):
    text = best_recipe(some)
    first, second, third = text.splitlines()[:3]
    assert first == "# glyphs with contrastive and ccp: best of 5 trials, MAP@R 45.0 % on validation classes"
    assert second == f"# nearkin train '{some.folder / 'best.yaml'}'"
    assert not third.startswith("#")
    (some.folder / "best.yaml").write_text(text)
    best, base = Recipe.load(some.folder / "best.yaml").as_mapping(), some.plan.recipe.as_mapping()
    assert best["method"] == base["method"] | {"pull": 1e-5, "proxies_per_class": 7}
    assert {key: best[key] for key in best if key != "method"} == {key: base[key] for key in base if key != "method"}


def many(make, space=PLANE, **settings):
    rng = np.random.default_rng(0)
    points = [(10 ** rng.uniform(-6, 0), int(rng.integers(1, 8))) for _ in range(12)]
    trials = [
        ("finished", 0.5 - 0.01 * (np.log10(pull) + 3) ** 2 - 0.005 * (k - 4) ** 2, pull, k) for pull, k in points
    ]
    return make([*trials, ("pruned", 0.2, 0.5, 1), ("diverged", None, 0.9, 2)], space, **settings)


@pytest.mark.parametrize(
    ("case", "pictures"),
    [
        ("none", []),
        ("one", ["history.png", "parameters.png", "plane.png"]),
        ("many", ["history.png", "parameters.png", "plane.png"]),
        ("grid", ["history.png", "parameters.png", "plane.png"]),
        ("choices", ["history.png", "parameters.png"]),
    ],
)
def test_written_files(make, case, pictures):
    lists = ("method.pull=0,1e-4,1e-2", "method.proxies_per_class=1,2")
    tuning = {
        "none": lambda: make([("diverged", None, 0.5, 3)]),
        "one": lambda: make([("finished", 0.5, 0.5, 3)]),
        "many": lambda: many(make),
        "grid": lambda: make([("finished", 0.5, 0.0, 1), ("pruned", 0.4, 0.0, 2)], lists, sampler="grid"),
        "choices": lambda: make([("finished", 0.5, "adam"), ("finished", 0.4, "sgd")], ["training.optimiser=adam,sgd"]),
    }[case]()
    files = write_tuning(tuning)
    expected = ["tuning.md", "trials.csv", *(["best.yaml"] if case != "none" else []), *pictures]
    assert [file.name for file in files] == expected
    for file in files:
        assert file.stat().st_size > 0
        if file.suffix == ".png":
            assert file.read_bytes().startswith(b"\x89PNG")
