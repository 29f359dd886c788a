from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from nearkin.report.formats import csv_text, markdown, terminal
from nearkin.runs.scores import EnsembleScores
from nearkin.studies.mlrc.tables import mlrc_table


def result(repeats=1, **changes):
    def figures(mean, interval):
        value = {"mean": mean, "spread": None, "values": [mean], "interval": interval if repeats > 1 else None}
        return dict.fromkeys(("R@1", "P@R", "MAP@R"), value)

    model = {"repeat": 0, "fold": 1, "seed": 6, "epoch": 1.5, "chosen_by": 0.75, "seconds": 4.0}
    model |= {"recipe": "0a1b2c3d", "selection": "best MAP@R on the held-out class fold 1", "hardware": "Some GPU"}
    record = {
        "protocol": "mlrc",
        "selection": "best MAP@R on the held-out class fold of each model",
        "select_by": "MAP@R",
        "folds": 4,
        "repeats": repeats,
        "data": "cub",
        "test_classes": "classes never seen in training",
        "objective": "contrastive",
        "method": "ccp",
        "backbone": "resnet50",
        "dim": 128,
        "concatenated_dim": 512,
        "separate": figures(0.5912, [0.58, 0.6024]),
        "concatenated": figures(0.66, [0.655, 0.665]),
        "combinations": {"scored": min(256, repeats**4), "possible": repeats**4},
        "training_conditions": None,
        "seeds": list(range(4 * repeats)),
        "hardware": "Some GPU",
        "recipe": "0a1b2c3d",
        "models": [
            {**model, "scores": {"R@1": 0.6, "P@R": 0.3, "MAP@R": 0.2}},
            {**model, "epoch": None, "chosen_by": None, "scores": {"R@1": 0.5, "P@R": 0.3, "MAP@R": 0.2}},
        ],
    }
    return EnsembleScores.from_record(record | changes)


def mlrc_markdown(found):
    return markdown(mlrc_table(found, models=True))


def test_every_figure_comes_with_what_it_holds_for():
    text = mlrc_markdown(result(repeats=10))
    assert text.startswith("# MLRC on cub: contrastive with ccp, classes never seen in training\n")
    assert "| separate | 128 | 59.12 ± 1.12 | 59.12 ± 1.12 | 59.12 ± 1.12 |" in text
    assert "| concatenated | 512 | 66.00 ± 0.50 |" in text
    for said in ("mlrc protocol, best MAP@R on the held-out", "10 repeats, seeds 0–39", "Some GPU", "recipe 0a1b2c3d"):
        assert said in text
    assert "256 drawn from the 10,000 combinations" in text
    assert "| 0 | 1 | 6 | 1.5 | 75.00 | 60.00 | 30.00 | 20.00 |" in text
    assert "| 0 | 1 | 6 | – | – | 50.00 |" in text


def test_one_repeat_has_no_interval_and_all_combinations_are_called_so():
    text = mlrc_markdown(result())
    assert "59.12 |" in text
    assert "One repeat has no confidence interval." in text
    assert "combinations" not in text
    assert "all 16 combinations" in mlrc_markdown(result(repeats=2))


def test_small_data_and_wrong_labels_are_part_of_the_conditions():
    said = "10 % of the training images of each class"
    assert said in mlrc_markdown(result(training_conditions=said))


@pytest.mark.parametrize("repeats", [1, 3])
def test_the_terminal_shows_the_same(repeats):
    console = Console(width=80, file=io.StringIO())
    console.print(terminal(mlrc_table(result(repeats))))
    text = console.file.getvalue()
    assert ("59.12±1.12" in text) == (repeats > 1)
    assert "Some GPU" in text
    assert "Models" not in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("repeats", [1, 3])
def test_csv_has_a_line_for_every_score_with_all_its_digits(repeats):
    rows = list(csv.DictReader(io.StringIO(csv_text(mlrc_table(result(repeats))))))
    assert [(row["what"], row["dim"], row["metric"]) for row in rows] == [
        (what, dim, name)
        for what, dim in (("separate", "128"), ("concatenated", "512"))
        for name in ("R@1", "P@R", "MAP@R")
    ]
    assert (float(rows[0]["mean"]), float(rows[0]["values"])) == (0.5912, 0.5912)
    assert rows[0].get("interval") == ("0.58; 0.6024" if repeats > 1 else None)
