"""The table of a study, from runs that were not trained but written down."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from nearkin.evaluation.statistics import Statistic
from nearkin.report.published import look_up
from nearkin.report.table import csv_text, markdown, terminal
from nearkin.studies.figures import Panel, draw
from nearkin.studies.study import Row
from nearkin.studies.tables import (
    Column,
    compared_with_base,
    conditions_of,
    families,
    study_record,
    study_table,
    value_text,
    warnings_of,
)
from nearkin.training.recipe_check import load_recipe


def part(results, title=""):
    """Headings and cells of one part of the table; None where there is no such part."""
    for each in study_table("A study", results).parts:
        if each.title == title:
            return [list(each.columns), *(list(line.cells) for line in each.lines)]
    return None


def differences(results):
    (found,) = [each for each in study_table("", results).parts if "difference" in each.columns]
    return [list(line.cells) for line in found.lines]


def test_scores_are_means_and_sample_standard_deviations(write_row):
    tests = [{"R@1": value, "MAP@R": value / 2} for value in (0.60, 0.66, 0.63)]
    last = [{"R@1": value} for value in (0.50, 0.50, 0.56)]
    cost = [{"step_ms": value} for value in (10.0, 12.0, 14.0)]
    on_test = ["protocol.name=conventional"]
    result = write_row("a", tests, overrides=on_test, last=last, cost=cost, problems=[("failed", "nan")], at_once=4)
    # 0.60, 0.66, 0.63: mean 0.63, squared deviations 0.0009 + 0.0009 + 0, divided by two: 0.0009, root 0.03.
    assert result.test("R@1").mean == pytest.approx(0.63)
    assert result.test("R@1").spread == pytest.approx(0.03)
    assert result.test("R@2") is None
    # Last epoch 0.50, 0.50, 0.56: mean 0.52, squared deviations 0.0004 + 0.0004 + 0.0016, halved 0.0012.
    assert result.last("R@1").spread == pytest.approx(0.0012**0.5)
    assert result.value(Column("ms/batch")).mean == pytest.approx(12.0)
    assert (result.seeds, result.at_once, result.status) == ([0, 1, 2], [4], "some failed")
    assert result.validated("R@1") is None, "the test classes chose the epoch"
    assert result.condition("protocol") == ["conventional"]
    assert result.condition("training_conditions") == []
    chosen = write_row("b", tests, best=[{"R@1": value, "epoch": 3.0} for value in (0.4, 0.5, 0.6)])
    validation, test = chosen.validated("R@1")
    assert (validation.values, test.values) == (pytest.approx((0.4, 0.5, 0.6)), pytest.approx((0.6, 0.66, 0.63)))
    assert chosen.last("R@1") is None


def test_a_method_stands_below_its_base_with_mean_and_spread(results):
    assert [(result.row.name, depth) for result, depth in families(results)] == [
        ("triplet", 0),
        ("C2", 0),
        ("C2_CCP", 1),
        ("C2_XBM", 1),
        ("VCPA", 0),
    ]
    heading, triplet, c2, ccp, *_ = part(results)
    assert heading == ["", "n", "R@1", "MAP@R", "covering radius", "ms/step"]
    assert triplet == ["triplet", "1", "60.0", "30.0", "0.500", "12.3"]
    assert c2 == ["C2", "2", "65.0 ± 1.2", "32.5 ± 1.2", "0.500 ± 0.012", "12.3 ± 0.0"]
    assert ccp[0] == "· C2-CCP"
    assert value_text(Statistic(284.23), Column("ms/step")) == "284"
    assert value_text(None, Column("ms/step")) == "–"


def test_differences_have_a_mark_an_interval_and_seeds_that_would_decide(results, write_row):
    rows = differences(results[:1] + results[2:4])
    # Pairs 0.05 ∓ 0.008/√2: standard error 0.008/√2, times 12.706 with one degree of freedom.
    assert rows[0] == ["C2-CCP", "C2", "R@1", "+5.0 ≈", "−2.2 to +12.2", "1"]
    assert rows[2][:4] == ["C2-XBM", "C2", "R@1", "−0.1 ▼"]
    base = write_row("base", [{"R@1": value} for value in (0.60, 0.61, 0.62)])
    better = write_row("better", [{"R@1": value} for value in (0.65, 0.66, 0.68)], base="base")
    level = write_row("level", [{"R@1": value} for value in (0.62, 0.60, 0.6101)], base="base")
    # Pairs 0.05, 0.05, 0.06: mean 0.0533 ± 4.303 · 0.00577/√3; and 0.02, −0.01, −0.0099.
    assert differences([base, better, level]) == [
        ["better", "base", "R@1", "+5.3 ▲", "+3.9 to +6.8", "–"],
        ["level", "base", "R@1", "+0.0 ≈", "−4.3 to +4.3", "more than 50"],
    ]
    assert "▲" in conditions_of([base, better, level])[-1]
    longer = write_row("longer", [{"R@1": value} for value in (0.70, 0.71, 0.72)], base="C2")
    assert compared_with_base(longer, [results[2], longer]).differences["R@1"].paired is False
    single = write_row("one", [{"R@1": 0.7}], base="C2")
    assert differences([results[2], single]) == [["one", "C2", "R@1", "+5.0", "–", "–"]]


def test_a_row_without_a_base_is_compared_with_the_first(results):
    compared = {result.row.name: compared_with_base(result, results) for result in results}
    assert compared["triplet"] is None, "it is the first of the table"
    assert compared["C2"].base == "triplet"
    assert compared["C2_XBM"].base == "C2"
    assert compared["VCPA"] is None, "its base is not there"


def test_every_format_holds_the_same_and_the_terminal_fits_eighty_columns(results):
    table = study_table("Comparison on toy", results)
    console = Console(file=io.StringIO(), width=80)
    console.print(terminal(table))
    shown = console.file.getvalue()
    assert "70.0±0.4" in shown
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    flat = " ".join(shown.split())
    for condition in ("validation protocol, best MAP@R on the validation classes", "seeds 0, 1", "10 epochs", "CPU"):
        assert condition in flat
    lines = [line for line in markdown(table).splitlines() if line.startswith("|")]
    assert lines[0] == "|  | n | R@1 | MAP@R | covering radius | ms/step |"
    records = {(each["row"], each["metric"]): each for each in csv.DictReader(io.StringIO(csv_text(table)))}
    assert float(records["C2_XBM", "R@1"]["mean"]) == pytest.approx(0.649)
    assert records["triplet", "R@1"]["spread"] == ""
    ccp = records["C2_CCP", "R@1"]
    assert (ccp["verdict"], ccp["compared with"], ccp["more seeds"]) == ("undecided", "C2", "1")
    assert float(ccp["interval low"]) == pytest.approx(0.05 - 12.7062 * 0.008 / 2**0.5, abs=1e-5)
    record = json.loads(json.dumps(study_record(Path("study"), table, results)))
    assert [row["name"] for row in record["rows"]] == [result.row.name for result in results]
    assert (record["rows"][0]["base"], record["rows"][0]["seeds"]) == ("C2", [0, 1])
    assert record["rows"][0]["recipe"]["objective"]["name"] == "proxy_anchor"
    assert len(record["scores"]) == len(records)


def test_mixed_conditions_and_missing_runs_are_named(results, write_row):
    assert warnings_of(results[2:4]) == []
    score = [{"R@1": 0.6}] * 2
    changed = [
        write_row("on_gpu", score, base="C2", hardware="GPU"),
        write_row("chosen", score[:1], protocol="conventional"),
        write_row("crowded", score, at_once=4),
        write_row("longer", score, overrides=["training.epochs=30"]),
        write_row("broken", score, problems=[("failed", "the loss became nan")]),
    ]
    text = "\n".join(warnings_of(changed))
    assert "CPU (chosen, crowded, longer, broken); GPU (on-gpu)" in text
    assert "conventional (chosen)" in text
    assert "30 epochs, batch 128, adamw (longer)" in text
    assert "do not compare ms/step" in text
    assert "failed: broken seed 2: the loss became nan" in text
    assert "Not every row has the same seeds" in text
    assert "up to 4 runs at a time" in conditions_of(changed)[0]
    heading, *lines = part(changed)
    assert heading[-1] == "budget"
    assert {line[0]: line[-1] for line in lines}["longer"] == "30 epochs, batch 128, adamw"
    averaged = write_row("averaged", score, weights="weights averaged")
    assert "; weights averaged (averaged);" in conditions_of([changed[2], averaged])[0]


def test_nothing_finished_is_still_a_table(write_row):
    results = [write_row(name, [], problems=[("skipped", "CUB is not there")]) for name in ("triplet", "C2")]
    table = study_table("", results)
    assert table.conditions == ("No run has finished.",)
    assert table.notes == ("skipped: triplet seed 0, C2 seed 0: CUB is not there",)
    assert [line.cells[:2] for line in table.parts[0].lines] == [("triplet", "skipped"), ("C2", "skipped")]


def test_what_chose_the_epoch_is_shown(write_row):
    tests = [[{"R@1": -k / 10, "MAP@R": k / 10}] for k in range(2)]
    best = [{"R@1": k / 10, "MAP@R": k / 20, "epoch": 3.0} for k in range(2)]
    rows = [write_row(f"row{k}", test, best=best[k]) for k, test in enumerate(tests)]
    heading, _, second = part(rows, "How the epoch was chosen")
    assert heading == ["", "validation R@1", "validation MAP@R", "epochs"]
    assert second == ["row1", "10.0", "5.0", "3"]


@pytest.fixture
def published(write_row):
    """MPA of the MPA paper's table 4, whose R@1 on CUB is 69.2, run twice; and a method that cannot be run."""
    values = tuple(look_up(paper="MPA", table="4", method="MPA"))
    recipe = load_recipe({}, ["protocol.name=conventional"])
    row = Row("mpa", "MPA", recipe, data="cub", published=values, folder="cub/mpa-0a1b2c3d")
    tests = [{"R@1": value, "nDCG@2": 0.6} for value in (0.675, 0.685)]
    ours = write_row("mpa", tests, row=row, last={"R@1": 0.61})
    missing = Row("libc", "LIBC", recipe, data="cub", published=values[:1], problem="nearkin has no LIBC")
    return [ours, write_row("libc", [], row=missing, problems=[("unfinished", "")])]


def test_published_values_stand_below_ours_with_the_difference(published):
    columns = {"cub": [Column("R@1"), Column("nDCG@2")]}
    table = study_table("MPA, table 4", published, columns, ["A remark."])
    (scores,) = table.parts
    assert scores.title == "CUB-200-2011"
    assert [line.cells[:4] for line in scores.lines] == [
        ("MPA", "2", "68.0 ± 0.7", "60.0 ± 0.0"),
        ("", "last epoch", "61.0 ± 0.0", "–"),
        ("", "published", "69.2", "67.3"),
        ("", "difference", "−1.2", "−7.3"),
        ("LIBC", "skipped", "–", "–"),
        ("", "published", "69.2", "–"),
    ]
    assert "Published: BN-Inception, conventional protocol." in table.conditions
    assert table.conditions[-1] == "A remark."
    assert "skipped: LIBC on cub: nearkin has no LIBC" in table.notes
    record = next(each for each in table.records if each["metric"] == "R@1")
    assert (record["published"], record["minus published"]) == (69.2, pytest.approx(-1.2))


@pytest.mark.parametrize(("steps", "best", "wanted"), [(40_000, 10_000, 25.0), (20_000, 10_000, 20.0)])
def test_steps_are_counted_to_where_the_paper_would_have_stopped(write_row, steps, best, wanted):
    every = ["training.evaluate_every_steps=250"]
    result = write_row("a", [{}], overrides=every, steps=steps, best={"step": best})
    assert result.value(Column("ksteps")).mean == wanted


def test_the_figure_has_a_dot_for_every_row_and_diamonds_for_published_values(
    results, published, tmp_path, monkeypatch
):
    drawn = []
    genuine = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), genuine(self, *a, **k)))
    panels = [Panel(name, Column(name), results) for name in ("R@1", "MAP@R", "nDCG@8")]
    (file,) = draw(panels, "Comparison", "caption", tmp_path / "comparison.png")
    assert file.read_bytes().startswith(b"\x89PNG")
    recall, precision = drawn[0].axes
    assert precision.get_title() == "MAP@R"
    labels = [label.get_text() for label in recall.get_yticklabels()]
    assert labels == ["triplet (1 of 2 runs)", "C2", "    C2-CCP", "    C2-XBM", "VCPA"]
    dots = [container.lines[0].get_xydata()[0].tolist() for container in recall.containers]
    assert dots == [pytest.approx(dot) for dot in ([60, 0], [65, 1], [70, 2], [64.9, 3], [30, 4])]
    band = recall.collections[0].get_paths()[0].get_extents().extents
    assert band == pytest.approx([63.8, 0.6, 66.2, 3.4]), "from C2 to its methods"
    draw([Panel("CUB", Column("R@1"), published)], "", "", tmp_path / "published.png")
    assert drawn[1].axes[0].get_legend_handles_labels()[1] == ["published", "ours"]
    assert draw([Panel("", Column("NMI"), results)], "", "", tmp_path / "none.png") == []


def test_what_is_varied_is_drawn_as_lines(write_row, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: drawn.append(self))
    rows = []
    for k, recall in ((1, 0.68), (4, 0.69), (8, 0.70)):
        values = tuple(look_up(paper="MPA", table="7", method=f"MPA K={k}"))
        row = Row(f"mpa-{k}", f"MPA, K={k}", load_recipe({}), published=values, at={"K": k}, series="MPA")
        rows.append(write_row("mpa", [{"R@1": recall}], row=row))
    rows.append(write_row("pa", [{"R@1": 0.66}], row=Row("pa", "PA", load_recipe({}), series="PA")))
    for even, ticks in ((False, [1, 4, 8]), (True, [0, 1, 2])):
        draw([Panel("CUB", Column("R@1"), rows, "K", even=even)], "", "", tmp_path / "x.png")
        (axis,) = drawn[-1].axes
        handles, labels = axis.get_legend_handles_labels()
        assert sorted(labels) == ["MPA", "MPA, published", "PA"]
        by_label = dict(zip(labels, handles, strict=True))
        assert by_label["MPA"].lines[0].get_xdata().tolist() == ticks
        assert by_label["MPA"].lines[0].get_ydata() == pytest.approx([68, 69, 70])
        assert by_label["MPA, published"].get_ydata() == pytest.approx([68.4, 69.0, 69.1])
        assert [text.get_text() for text in axis.get_xticklabels()] == ["1", "4", "8"]
