from __future__ import annotations

import csv
import io
import json

import pytest
from matplotlib.figure import Figure
from nearkin.report.comparison import (
    base_lines,
    chosen_lines,
    comparison_csv,
    comparison_markdown,
    comparison_table,
    conditions,
    families,
    last_lines,
    score_lines,
    warnings_of,
    write_comparison,
)
from rich.console import Console

from nearkin.report import comparison


def figure(*values, spread=None):
    return {"mean": sum(values) / len(values), "spread": spread, "values": list(values)}


def entry(name, recall, spread, *, base=None, against=None, **changes):
    values = (recall - 0.01, recall + 0.01) if spread is not None else (recall,)
    row = {
        "name": name,
        "title": name.replace("_", "-"),
        "base": base,
        "budget": "10 epochs, batch 128, adamw",
        "seeds": list(range(len(values))),
        "problems": [],
        "metrics": {
            "R@1": figure(*values, spread=spread),
            "MAP@R": figure(recall / 2, spread=spread),
            "covering_radius": figure(0.5, spread=spread),
        },
        "last": {},
        "step_ms": figure(12.34, spread=spread and 1.0),
        "side_by_side": [1],
        "recipes": ["abc"],
        "data": ["toy"],
        "protocol": ["validation"],
        "selection": ["best MAP@R on the validation classes"],
        "test_classes": ["classes never seen in training"],
        "hardware": ["CPU"],
    }
    if against is not None:
        row["against"] = {"R@1": dict(zip(("difference", "spread", "verdict"), against, strict=True))}
    return row | changes


@pytest.fixture
def summary():
    return [
        entry("C2_CCP", 0.70, 0.004, base="C2", against=(0.05, 0.01, "above")),
        entry("triplet", 0.60, None),
        entry("C2", 0.65, 0.012),
        entry("C2_XBM", 0.649, 0.012, base="C2", against=(-0.001, 0.02, "within the spread")),
        entry("VCPA", 0.3, 0.01, base="not_shown"),
    ]


def shown(summary, width=80):
    console = Console(file=io.StringIO(), width=width)
    console.print(comparison_table(summary))
    return console.file.getvalue()


def test_a_method_stands_below_its_base(summary):
    assert [(row["name"], row["depth"]) for row in families(summary)] == [
        ("triplet", 0),
        ("C2", 0),
        ("C2_CCP", 1),
        ("C2_XBM", 1),
        ("VCPA", 0),
    ]


def test_cells_are_mean_and_spread_and_one_seed_has_none(summary):
    heading, triplet, c2, *_ = score_lines(summary)
    assert heading == ["", "n", "R@1", "MAP@R", "covering radius", "ms/step"]
    assert triplet == ["triplet", "1", "60.0", "30.0", "0.500", "12.3"]
    assert c2 == ["C2", "2", "65.0 ± 1.2", "32.5 ± 1.2", "0.500 ± 0.012", "12.3 ± 1.0"]
    assert last_lines(summary) == [[""]]


def test_one_seed_is_said_once_and_nowhere_shown_as_a_missing_spread(summary):
    alone = [entry("triplet", 0.60, None), entry("C2", 0.65, None)]
    for text in (shown(alone), comparison_markdown(alone)):
        assert "±" not in text
        assert " ".join(text.split()).count("One seed, so no spread.") == 1
    assert "over n seeds, none with one" in conditions(summary)[1]
    assert "over n seeds." in conditions(summary[2:4])[1]


def test_differences_to_the_base_carry_a_mark(summary):
    assert base_lines(summary) == [
        ["", "base", "R@1"],
        ["C2-CCP", "C2", "+5.0 ▲"],
        ["C2-XBM", "C2", "−0.1 ≈"],
    ]
    summary[0]["against"]["R@1"]["verdict"] = None
    assert base_lines(summary)[1] == ["C2-CCP", "C2", "+5.0"]


def test_the_terminal_table_fits_eighty_columns_and_says_its_conditions(summary):
    text = shown(summary)
    assert "C2-CCP" in text
    assert "70.0±0.4" in text
    assert "…" not in text, "nothing is cut off"
    flat = " ".join(text.split())
    for said in ("validation protocol", "best MAP@R on the validation classes", "seeds 0, 1", "10 epochs", "CPU"):
        assert said in flat
    assert max(map(len, text.splitlines())) <= 80


def test_the_conventional_protocol_shows_best_beside_last(summary):
    for row in summary:
        row["last"] = {"R@1": figure(0.55, spread=0.02), "MAP@R": figure(0.2, spread=0.02)}
    heading, first, *_ = last_lines(summary)
    assert heading == ["", "best R@1", "last R@1", "best MAP@R", "last MAP@R"]
    assert first == ["triplet", "60.0", "55.0 ± 2.0", "30.0", "20.0 ± 2.0"]
    assert "Best and last epoch" in shown(summary)
    assert "Best and last epoch" in comparison_markdown(summary)


def test_mixed_conditions_and_missing_runs_are_said(summary):
    assert warnings_of(summary[2:4]) == []
    summary[0]["hardware"] = ["GPU"]
    summary[1]["protocol"] = ["conventional"]
    summary[2]["side_by_side"] = [4]
    summary[3]["problems"] = [{"status": "failed", "reason": "the loss became nan", "seed": 2}]
    said = "\n".join(warnings_of(summary))
    assert "Mixed hardware: CPU (triplet, C2, C2-XBM, VCPA); GPU (C2-CCP)." in said
    assert "Mixed protocols: conventional (triplet)" in said
    assert "do not compare ms/step" in said
    assert "failed: C2-XBM seed 2: the loss became nan" in said
    assert "Not every row has the same seeds" in said
    assert "up to 4 runs at a time" in conditions(summary)[0]
    assert "the loss became nan" in " ".join(shown(summary).split())
    assert "the loss became nan" in comparison_markdown(summary)


def test_csv_has_the_figures_with_all_their_digits(summary):
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(comparison_csv(summary)))}
    assert float(rows["C2_XBM"]["R@1"]) == pytest.approx(0.649)
    assert rows["triplet"]["R@1 spread"] == ""
    assert rows["C2_CCP"]["R@1 verdict"] == "above"
    assert float(rows["C2_XBM"]["R@1 minus base"]) == pytest.approx(-0.001)
    assert rows["C2"]["protocol"] == "validation"


def test_markdown_tables_are_whole(summary):
    lines = [line for line in comparison_markdown(summary).splitlines() if line.startswith("|")]
    assert lines[0] == "|  | n | R@1 | MAP@R | covering radius | ms/step |"
    assert all(line.count("|") == 7 for line in lines[:7])


def test_files_and_the_picture(summary, tmp_path, monkeypatch):
    drawn = []
    genuine = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), genuine(self, *a, **k)))
    files = write_comparison(summary, tmp_path / "study")
    assert [file.name for file in files] == [f"comparison.{ending}" for ending in ("md", "csv", "json", "png")]
    assert files[3].read_bytes().startswith(b"\x89PNG")
    kept = json.loads(files[2].read_text())
    assert [row["name"] for row in kept["rows"]] == ["triplet", "C2", "C2_CCP", "C2_XBM", "VCPA"]
    assert len(kept["conditions"]) == 2
    recall, precision = drawn[0].axes
    labels = [label.get_text() for label in recall.get_yticklabels()]
    assert labels == ["triplet (1 of 2 seeds)", "C2", "    C2-CCP", "    C2-XBM", "VCPA"]
    dots = [container.lines[0].get_xydata()[0].tolist() for container in recall.containers]
    assert dots == [pytest.approx(dot) for dot in ([60, 0], [65, 1], [70, 2], [64.9, 3], [30, 4])]
    assert precision.get_title() == "MAP@R (%)"
    bottom, top = recall.get_ylim()
    assert bottom > top, "the first row is at the top"


def test_nothing_finished_is_still_a_table(summary, tmp_path):
    empty = {"seeds": [], "metrics": {}, "step_ms": None, "side_by_side": [], "recipes": []}
    empty |= {key: [] for key in ("data", "protocol", "selection", "test_classes", "hardware")}
    empty["problems"] = [{"status": "skipped", "reason": "CUB is not there", "seed": 0}]
    summary = [row | empty for row in summary[1:3]]
    files = write_comparison(summary, tmp_path)
    assert [file.name for file in files] == ["comparison.md", "comparison.csv", "comparison.json"]
    text = " ".join(shown(summary).split())
    assert "No run has finished" in text
    assert "skipped: triplet seed 0, C2 seed 0: CUB is not there" in text
    assert comparison.title_of(summary) == "Comparison on no finished run"


def chosen(name, *validation, test, score="MAP@R"):
    return entry(
        name,
        0.5,
        None,
        chosen={"score": score, "validation": figure(*validation), "test": figure(*test)},
        best_epochs=[3.0, 4.5][: len(validation)],
    )


def test_what_chose_the_epoch_is_shown_with_the_epochs():
    rows = [chosen("C2", 0.5, 0.6, test=(0.2, 0.3)), entry("triplet", 0.4, None)]
    assert chosen_lines(rows) == [["", "validation MAP@R", "epochs"], ["C2", "55.0", "3, 4.5"]]
    assert "How the epoch was chosen" in comparison_markdown(rows)
    assert "How the epoch was chosen" in shown(rows)
    assert "How the epoch was chosen" not in comparison_markdown(rows[1:])


@pytest.mark.parametrize(
    ("test", "said"), [((1, 2, 3, 4, 5, 6, 7, 8), False), ((8, 7, 6, 5, 4, 3, 2, 1), True), ((1,) * 8, False)]
)
def test_validation_classes_that_order_the_runs_otherwise_are_named(test, said):
    rows = [chosen(f"row{k}", k / 10, test=(value / 10,)) for k, value in enumerate(test)]
    lines = [line for line in warnings_of(rows) if "validation classes" in line]
    assert len(lines) == said
    if said:
        assert "these 8 runs" in lines[0]
        assert "rank correlation of MAP@R -1.00" in lines[0]
        assert "protocol.validation_share" in lines[0]
    assert not any("validation classes" in line for line in warnings_of(rows[:7])), "too few to say"


def test_different_scores_are_not_correlated():
    rows = [chosen(f"row{k}", k / 10, test=(-k / 10,), score="MAP@R" if k else "R@1") for k in range(9)]
    assert not any("validation classes" in line for line in warnings_of(rows))
