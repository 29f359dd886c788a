"""What people read: ours beside the published figures, the difference, the conditions, and what is missing."""

from __future__ import annotations

import csv
import io
import json

import pytest
from rich.console import Console

from nearkin.evaluation.statistics import Statistic
from nearkin.report import formats
from nearkin.studies.reproduce.results import Column
from nearkin.studies.reproduce.rows import Settings
from nearkin.studies.reproduce.tables import caption, notes, reproduction_record, reproduction_table

NOTHING = Settings(weights="none")


def cells(table, lines):
    """The heading and the lines of a table's only part."""
    (part,) = reproduction_table(table, lines, NOTHING).parts
    return [list(part.columns), *(list(line.cells) for line in part.lines)]


def test_ours_stands_above_the_published_figure_and_the_difference(made_up):
    table, lines = made_up("mpa/table-4", shift=-1.25)
    rows = cells(table, lines)
    assert rows[0] == ["", "", "R@1", "R@2", "R@4", "R@8", "nDCG@2", "nDCG@4", "nDCG@8", "MAP@R"]
    at = [row[0] for row in rows].index("MPA")
    assert [row[:3] for row in rows[at : at + 3]] == [
        ["MPA", "ours", "68.0 ± 0.5"],
        ["", "published", "69.2"],
        ["", "difference", "−1.2"],
    ]


def test_the_last_epoch_stands_beside_a_figure_that_was_chosen_on_the_test_classes(made_up):
    table, lines = made_up("mpa/table-4")
    lines[0].last[Column("R@1")] = Statistic(61.5)
    rows = cells(table, lines)
    assert rows[2][1:4] == ["last epoch", "61.5", "–"]


def test_the_caption_says_what_every_figure_holds_for(made_up):
    table, lines = made_up("vcpa/table-1", data=["cub"])
    text = " ".join(caption(table, lines, Settings(backbone="resnet50", overrides=("training.epochs=3",))))
    assert "conventional protocol, best R@1 on the test classes; seeds 0, 1; a machine." in text
    assert "Published: BN-Inception, conventional protocol." in text
    assert "Another backbone: resnet50 instead of BN-Inception (--backbone)." in text
    assert "Changed in every row: training.epochs=3." in text
    assert "From scratch" in " ".join(caption(table, lines, NOTHING))


def test_reasons_are_numbered_in_the_table_and_told_once(made_up):
    table, lines = made_up("ccp/table-4", data=["cub"])
    for line in lines[:1]:
        line.seeds, line.ours, line.status, line.problem = [], {}, "skipped", "CUB is not here"
    rows = cells(table, lines)
    assert rows[1][:3] == ["ProxyAnchor", "skipped (1)", "–"]
    assert rows[2][:3] == ["", "published", "69.7"]
    assert ["LIBC", "not in nearkin (4)", "–"] in [row[:3] for row in rows]
    told = notes(lines)
    assert told[0] == "(1) ProxyAnchor on cub: skipped: CUB is not here"
    assert told[3] == "(4) LIBC on cub: not in nearkin: nearkin has no LIBC"


def test_markdown_csv_and_json_agree(made_up):
    table, lines = made_up("ccp/table-6", data=["cub"], shift=0.5)
    ours = reproduction_table(table, lines, NOTHING)
    text = formats.markdown(ours)
    assert text.startswith("# CCP, table 6: Methods by the reality-check protocol on CUB and Cars196\n")
    assert "|  |  | 128-d P@1 | 128-d P@R | 128-d MAP@R | 512-d P@1 |" in text
    records = list(csv.DictReader(io.StringIO(formats.csv_text(ours))))
    assert len(records) == 13 * 6
    (record,) = (each for each in records if (each["row"], each["metric"], each["dim"]) == ("c2_ccp", "MAP@R", "512"))
    assert (float(record["published"]), float(record["ours"])) == (28.02, pytest.approx(28.52))
    assert float(record["difference"]) == pytest.approx(0.5)
    assert (record["part"], record["hardware"], record["seeds"]) == ("concatenated", "a machine", "0; 1")
    whole = reproduction_record(table, lines, NOTHING)
    assert json.loads(json.dumps(whole))["figures"][0]["published"] == 56.21
    assert whole["rows"][5]["command"].startswith("nearkin mlrc ccp/c2_ccp")
    assert whole["rows"][5]["recipe"]["objective"]["neg_margin"] == 0.3841


def test_the_terminal_shows_it_all_in_eighty_columns(made_up):
    table, lines = made_up("isa/table-1", data=["cub"])
    lines[0].problem = "no room [on] the device"
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(formats.terminal(reproduction_table(table, lines, NOTHING)))
    text = console.export_text()
    assert "Proxy" in text
    assert "69.1±0.5" in text
    assert "+1.0" in text
    assert "no room [on] the device" in text
    assert max(map(len, text.splitlines())) <= 80


def test_without_a_finished_run_the_table_has_the_published_figures_alone(made_up):
    table, lines = made_up("mpa/table-7")
    for line in lines:
        line.seeds, line.ours, line.status = [], {}, "not run"
    rows = cells(table, lines)
    assert [row[1:3] for row in rows[1:3]] == [["not run", "–"], ["published", "68.4"]]
    assert caption(table, lines, NOTHING)[0] == "Ours: no run has finished."
