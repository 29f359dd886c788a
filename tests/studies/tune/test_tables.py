"""A search as people and programs read it."""

from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from nearkin.report import formats
from nearkin.studies.tune.tables import best_recipe, remarks, tuning_table
from nearkin.training.recipes import load_recipe


@pytest.fixture
def some(made_up):
    return made_up(
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
    Console(width=100).print(formats.terminal(tuning_table(some)))
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
    assert "method.proximal_weight lies at an end" not in said
    page = formats.markdown(tuning_table(some))
    assert "| 2 | 45.0 | 7 | 1e-05 | 7 |\n| 0 | 41.2 | 7 | 0.001 | 4 |\n" in page


def test_the_end_of_a_logarithmic_range_is_measured_by_its_logarithm(made_up):
    assert not remarks(made_up([("finished", 0.5, 0.02, 4)])), "two per cent of the way, yet far along in logarithm"
    assert len(remarks(made_up([("finished", 0.5, 1.2e-6, 4)]))) == 1
    assert not remarks(
        made_up([("finished", 0.5, 1e-6, 1)], ["method.proximal_weight=1e-6,1e-5", "method.proxies_per_class=1,2"])
    )


def test_csv_has_every_trial_with_all_digits(some):
    rows = list(csv.DictReader(io.StringIO(formats.csv_text(tuning_table(some)))))
    assert [row["trial"] for row in rows] == list("01234")
    assert [row["status"] for row in rows] == ["finished", "pruned", "finished", "diverged", "finished"]
    assert rows[0]["R@1"] == rows[0]["scores"] == "0.412345678901"
    assert (rows[3]["R@1"], rows[3]["reason"]) == ("", "it diverged")
    assert float(rows[2]["method.proximal_weight"]) == 1e-5


def test_the_best_is_a_recipe_that_loads(some):
    text = best_recipe(some)
    first, second, third = text.splitlines()[:3]
    assert first == "# glyphs with contrastive and ccp: best of 5 trials, R@1 45.0 % on validation classes"
    assert second == f"# nearkin train '{some.folder / 'best.yaml'}'"
    assert not third.startswith("#")
    (some.folder / "best.yaml").write_text(text)
    best, base = load_recipe(some.folder / "best.yaml").as_mapping(), some.plan.recipe.as_mapping()
    assert best["method"] == base["method"] | {"proximal_weight": 1e-5, "proxies_per_class": 7}
    assert {key: best[key] for key in best if key != "method"} == {key: base[key] for key in base if key != "method"}
