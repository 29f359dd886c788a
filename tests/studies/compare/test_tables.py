from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from nearkin.report.formats import csv_text, markdown, terminal
from nearkin.studies.compare.tables import (
    against_base,
    comparison_record,
    comparison_table,
    conditions_of,
    families,
    step_text,
    title_of,
    warnings_of,
)


def shown(results, width=80):
    console = Console(file=io.StringIO(), width=width)
    console.print(terminal(comparison_table(results)))
    return console.file.getvalue()


def written(results):
    return markdown(comparison_table(results))


def part(results, title=""):
    """Headings and cells of one part of the table; None where there is no such part."""
    for each in comparison_table(results).parts:
        if each.title == title:
            return [list(each.columns), *(list(line.cells) for line in each.lines)]
    return None


def test_a_method_stands_below_its_base(results):
    assert [(result.row.name, depth) for result, depth in families(results)] == [
        ("triplet", 0),
        ("C2", 0),
        ("C2_CCP", 1),
        ("C2_XBM", 1),
        ("VCPA", 0),
    ]
    assert [line[0] for line in part(results)[1:]] == ["triplet", "C2", "· C2-CCP", "· C2-XBM", "VCPA"]


def test_cells_are_mean_and_spread_and_one_seed_has_none(results):
    heading, triplet, c2, *_ = part(results)
    assert heading == ["", "n", "R@1", "MAP@R", "covering radius", "ms/step"]
    assert triplet == ["triplet", "1", "60.0", "30.0", "0.500", "12.3"]
    assert c2 == ["C2", "2", "65.0 ± 1.2", "32.5 ± 1.2", "0.500 ± 0.012", "12.3 ± 1.2"]
    assert part(results, "Best and last epoch") is None


def test_a_long_step_has_no_tenths_and_a_missing_one_a_dash(write_row):
    assert step_text(write_row("slow", [{"R@1": 0.5}], cost={"step_ms": 284.23}).step_ms) == "284"
    assert step_text(write_row("unknown", [{"R@1": 0.5}], cost={"step_ms": None}).step_ms) == "–"


def test_one_seed_is_said_once_and_nowhere_shown_as_a_missing_spread(results, write_scored):
    alone = [write_scored("alone", 0.60, None), write_scored("other", 0.65, None)]
    for text in (shown(alone), written(alone)):
        assert "±" not in text
        assert " ".join(text.split()).count("One seed, so no spread.") == 1
    assert "over n seeds, none with one" in conditions_of(results)[1]
    assert "over n seeds." in conditions_of(results[2:4])[1]


def test_differences_to_the_base_have_a_mark_an_interval_and_seeds_that_would_decide(results, write_row):
    heading, ccp, ccp_map, xbm, *_ = part(results[:1] + results[2:4], "Against their base")
    assert heading == ["", "held against", "score", "difference", "95\u00a0% interval", "more seeds"]
    # Pairs 0.05 ∓ 0.008/√2: standard error 0.008/√2, times 12.706 with one degree of freedom.
    assert ccp == ["C2-CCP", "C2", "R@1", "+5.0 ≈", "−2.2 to +12.2", "1"]
    assert ccp_map[:3] == ["", "", "MAP@R"]
    assert xbm[:4] == ["C2-XBM", "C2", "R@1", "−0.1 ▼"]
    base = write_row("base", [{"R@1": value} for value in (0.60, 0.61, 0.62)])
    better = write_row("better", [{"R@1": value} for value in (0.65, 0.66, 0.68)], base="base")
    level = write_row("level", [{"R@1": value} for value in (0.62, 0.60, 0.6101)], base="base")
    rows = [base, better, level]
    # Pairs 0.05, 0.05, 0.06: mean 0.0533 ± 4.303 · 0.00577/√3; and 0.02, −0.01, −0.0099.
    _, above, within = part(rows, "Against their base")
    assert above == ["better", "base", "R@1", "+5.3 ▲", "+3.9 to +6.8", "–"]
    assert within == ["level", "base", "R@1", "+0.0 ≈", "−4.3 to +4.3", "more than 50"]
    said = conditions_of(rows)[1]
    assert "▲ above" in said
    assert "seed by seed" in said
    assert "Of 3 seeds the spread is itself a rough guess" in said
    for shape in (shown(rows), written(rows)):
        assert "+3.9 to +6.8" in shape
        assert "more than 50" in " ".join(shape.split())


def test_other_seeds_are_compared_by_welch_and_one_has_no_interval(results, write_row, write_scored):
    longer = write_row("longer", [{"R@1": value} for value in (0.70, 0.71, 0.72)], base="C2")
    assert against_base(longer, [results[2], longer]).differences["R@1"].paired is False
    assert "by Welch's test" in conditions_of([results[2], longer])[1]
    one_seed = write_scored("one", 0.70, None, base="C2")
    assert part([results[2], one_seed], "Against their base")[1] == ["one", "C2", "R@1", "+5.0", "–", "–"]
    assert "▲" not in conditions_of([results[2], one_seed])[1]


def test_a_row_without_a_base_is_held_against_the_first(results):
    held = {result.row.name: against_base(result, results) for result in results}
    assert held["triplet"] is None, "it is the first of the table"
    assert held["C2"].base == "triplet"
    assert held["C2_XBM"].base == "C2"
    assert held["VCPA"] is None, "its base is not there"


def test_the_terminal_table_fits_eighty_columns_and_says_its_conditions(results):
    text = shown(results)
    assert "C2-CCP" in text
    assert "70.0±0.4" in text
    assert "…" not in text, "nothing is cut off"
    flat = " ".join(text.split())
    for said in ("validation protocol", "best MAP@R on the validation classes", "seeds 0, 1", "10 epochs", "CPU"):
        assert said in flat
    assert max(map(len, text.splitlines())) <= 80


def test_the_conventional_protocol_shows_best_beside_last(write_scored):
    last = [{"R@1": 0.55, "MAP@R": 0.2}, {"R@1": 0.57, "MAP@R": 0.2}]
    conventional = ["protocol.name=conventional"]
    results = [
        write_scored("triplet", 0.60, None, overrides=conventional, last=last),
        write_scored("C2", 0.65, 0.012, overrides=conventional, last=last),
    ]
    assert part(results, "Best and last epoch") == [
        ["", "best R@1", "last R@1", "best MAP@R", "last MAP@R"],
        ["triplet", "60.0", "55.0", "30.0", "20.0"],
        ["C2", "65.0 ± 1.2", "56.0 ± 1.4", "32.5 ± 1.2", "20.0 ± 0.0"],
    ]
    assert "Best and last epoch" in shown(results)
    assert "Best and last epoch" in written(results)


def test_mixed_conditions_and_missing_runs_are_said(results, write_scored):
    assert warnings_of(results[2:4]) == []
    changed = [
        write_scored("on_gpu", 0.70, 0.004, base="C2", hardware="GPU"),
        write_scored("chosen", 0.60, None, protocol="conventional"),
        write_scored("crowded", 0.65, 0.012, side_by_side=4),
        write_scored("broken", 0.649, 0.012, base="C2", problems=[("failed", "the loss became nan")]),
        results[4],
    ]
    said = "\n".join(warnings_of(changed))
    assert "Mixed hardware: CPU (chosen, crowded, broken, VCPA); GPU (on-gpu)." in said
    assert "Mixed protocols: conventional (chosen)" in said
    assert "do not compare ms/step" in said
    assert "failed: broken seed 2: the loss became nan" in said
    assert "Not every row has the same seeds" in said
    assert "budgets" not in said
    assert "up to 4 runs at a time" in conditions_of(changed)[0]
    assert "the loss became nan" in " ".join(shown(changed).split())
    assert "the loss became nan" in written(changed)


def test_a_condition_of_some_rows_names_them(write_scored):
    plain, averaged = write_scored("plain", 0.6, 0.01), write_scored("averaged", 0.6, 0.01, weights="weights averaged")
    assert "; weights averaged;" in conditions_of([averaged])[0]
    assert "; weights averaged (averaged);" in conditions_of([plain, averaged])[0]
    assert "averaged" not in conditions_of([plain])[0]


def test_another_budget_has_a_column_and_is_said(results, write_scored):
    assert "budget" not in part(results)[0]
    longer = [*results, write_scored("longer", 0.66, 0.012, base="C2", overrides=["training.epochs=30"])]
    heading, *lines = part(longer)
    assert heading[-1] == "budget"
    budgets = {line[0]: line[-1] for line in lines}
    assert budgets["· longer"] == "30 epochs, batch 128, adamw"
    assert budgets["C2"] == "10 epochs, batch 128, adamw"
    assert warnings_of(longer)[0] == (
        "Mixed budgets: 10 epochs, batch 128, adamw (C2-CCP, triplet, C2, C2-XBM, VCPA); "
        "30 epochs, batch 128, adamw (longer)."
    )
    assert "10 epochs, batch 128, adamw or 30 epochs, batch 128, adamw" in conditions_of(longer)[0]
    assert {record["name"]: record["budget"] for record in comparison_table(longer).records}["longer"].startswith("30 ")
    assert max(map(len, shown(longer).splitlines())) <= 80
    assert "…" not in shown(longer)


def test_csv_has_the_scores_with_all_their_digits(results):
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(csv_text(comparison_table(results))))}
    assert float(rows["C2_XBM"]["R@1"]) == pytest.approx(0.649)
    assert rows["triplet"]["R@1 spread"] == ""
    assert rows["C2_CCP"]["R@1 verdict"] == "undecided"
    assert rows["C2_CCP"]["held against"] == "C2"
    assert float(rows["C2_CCP"]["R@1 interval low"]) == pytest.approx(0.05 - 12.7062 * 0.008 / 2**0.5, abs=1e-5)
    assert rows["C2_CCP"]["R@1 more seeds"] == "1"
    assert float(rows["C2_XBM"]["R@1 minus base"]) == pytest.approx(-0.001)
    assert rows["C2"]["protocol"] == "validation"
    assert rows["C2"]["recipes"] == "abc abc"


def test_the_record_keeps_the_keys_that_programs_read(results):
    record = comparison_record(results)
    assert [(row["name"], row["depth"]) for row in record["rows"]][:3] == [("triplet", 0), ("C2", 0), ("C2_CCP", 1)]
    assert len(record["conditions"]) == 2
    ccp = record["rows"][2]
    assert ccp["metrics"]["R@1"]["mean"] == pytest.approx(0.7)
    assert len(ccp["metrics"]["R@1"]["values"]) == 2
    assert ccp["held_against"] == "C2"
    assert ccp["against"]["R@1"]["verdict"] == "undecided"
    assert ccp["against"]["R@1"]["more_seeds"] == 1
    assert (ccp["against"]["R@1"]["runs"], ccp["against"]["R@1"]["paired"]) == ([2, 2], True)
    assert ccp["against"]["R@1"]["difference"] == pytest.approx(0.05)
    assert (ccp["seeds"], ccp["problems"], ccp["last"], ccp["chosen"]) == ([0, 1], [], {}, {})
    assert ccp["objective"]["name"] == "proxy_anchor"


def test_markdown_tables_are_whole(results):
    lines = [line for line in written(results).splitlines() if line.startswith("|")]
    assert lines[0] == "|  | n | R@1 | MAP@R | covering radius | ms/step |"
    assert all(line.count("|") == 7 for line in lines[:7])


def test_nothing_finished_is_still_a_table(write_row):
    missing = [("skipped", "CUB is not there")]
    results = [write_row(name, [], problems=missing) for name in ("triplet", "C2")]
    text = " ".join(shown(results).split())
    assert "No run has finished" in text
    assert "skipped: triplet seed 0, C2 seed 0: CUB is not there" in text
    assert title_of(results) == "Comparison on no finished run"


def test_what_chose_the_epoch_is_shown_with_the_epochs(write_row):
    best = [{"R@1": 0.5, "epoch": 3.0}, {"R@1": 0.6, "epoch": 4.5}]
    both = write_row("C2", [{"R@1": 0.2}, {"R@1": 0.3}], best=best)
    rows = [both, write_row("triplet", [{"R@1": 0.4}])]
    assert part(rows, "How the epoch was chosen") == [
        ["", "validation R@1", "epochs"],
        ["C2", "55.0 ± 7.1", "3, 4.5"],
    ]
    assert "How the epoch was chosen" in written(rows)
    assert "How the epoch was chosen" in shown(rows)
    assert "How the epoch was chosen" not in written(rows[1:])


def test_the_other_score_of_the_validation_classes_is_shown_too(write_row):
    rows = []
    for k in range(8):
        test = [{"R@1": -k / 10, "MAP@R": k / 10}]
        rows.append(write_row(f"row{k}", test, best={"R@1": k / 10, "MAP@R": k / 20, "epoch": 3.0}))
    heading, _, second, *_ = part(rows, "How the epoch was chosen")
    assert heading == ["", "validation R@1", "validation MAP@R", "epochs"]
    assert second == ["row1", "10.0", "5.0", "3"]
    (line,) = [line for line in warnings_of(rows) if "validation classes" in line]
    assert "rank correlation of R@1 -1.00, of MAP@R 1.00" in line


@pytest.mark.parametrize(
    ("test", "said"), [((1, 2, 3, 4, 5, 6, 7, 8), False), ((8, 7, 6, 5, 4, 3, 2, 1), True), ((1,) * 8, False)]
)
def test_validation_classes_that_order_the_runs_otherwise_are_named(write_row, test, said):
    rows = [write_row(f"row{k}", [{"R@1": value / 10}], best={"R@1": k / 10}) for k, value in enumerate(test)]
    lines = [line for line in warnings_of(rows) if "validation classes" in line]
    assert len(lines) == said
    if said:
        assert "these 8 runs" in lines[0]
        assert "rank correlation of R@1 -1.00" in lines[0]
        assert "protocol.validation_share" in lines[0]
    assert not any("validation classes" in line for line in warnings_of(rows[:7])), "too few to say"


def test_different_scores_are_not_correlated(write_row):
    rows = []
    for k in range(9):
        name = "MAP@R" if k else "R@1"
        choose = [f"protocol.select_by={name}"]
        rows.append(write_row(f"row{k}", [{name: -k / 10}], overrides=choose, best={name: k / 10}))
    assert not any("validation classes put" in line for line in warnings_of(rows))
