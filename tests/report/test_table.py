"""One table with all that a table may have, in every format."""

from __future__ import annotations

import csv
import html.parser
import io
import re

import pytest
from rich.console import Console

from nearkin.report.table import (
    FORMATS,
    Line,
    Part,
    Table,
    csv_text,
    html_table,
    latex,
    latex_escape,
    markdown,
    signed,
    terminal,
)

HOSTILE = 'a|b_c & 5 % <b title="x">\nof $x$ [y] {z} \\ # ~ ^'
TABLE = Table(
    f"Scores of {HOSTILE}",
    (
        Part(
            ("", "scores", "n", "R@1", "covering radius", "hardware"),
            (
                Line((HOSTILE, "best evaluation", "2", "60.0 ± 14.1", "–", "abacus"), begins_group=True),
                Line(("", "published: CCP, table IV", "", "69.7", "–", "as published"), "published"),
                Line(("VCPA", "best evaluation", "1", "61.2", "0.500", "abacus"), begins_group=True),
            ),
            texts=2,
            numbers=3,
        ),
        Part.of(("", "base", "R@1"), [("VCPA", HOSTILE, "+1.2 ▲"), ("C2", "VCPA", "−0.3 ≈")], title="To base", texts=2),
    ),
    conditions=("validation protocol; seeds 0, 1", "Mean ± sample standard deviation."),
    notes=("Not finished:\nruns/a_b | x.",),
    records=({"title": HOSTILE, "R@1": 0.6, "values": [0.5, 0.7]}, {"title": "VCPA", "note": None}),
)


def cells_of(line):
    """What stands between the bars of a line of Markdown that are not escaped."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_markdown():
    lines = markdown(TABLE).splitlines()
    assert lines[0].startswith("# Scores of ")
    assert lines[1] == "", "a title is one line"
    first, second = lines.index("|---|---|---:|---:|---:|---|"), lines.index("|---|---|---:|")
    assert cells_of(lines[first - 1]) == ["", "scores", "n", "R@1", "covering radius", "hardware"]
    assert {len(cells_of(line)) for line in lines[first : first + 4]} == {6}
    assert cells_of(lines[first + 1])[0] == r"a\|b_c & 5 % &lt;b title=" + r'"x"> of $x$ [y] {z} \\ # ~ ^'
    assert cells_of(lines[first + 2])[1:4] == ["published: CCP, table IV", "", "69.7"]
    assert lines[second - 3] == "## To base"
    assert cells_of(lines[second + 2]) == ["C2", "VCPA", "−0.3 ≈"]
    said = [*TABLE.conditions, "## Notes", "- Not finished: runs/a_b | x."]
    assert [line for line in lines[second + 3 :] if line] == said


def test_code_in_markdown_is_shown_as_it_stands():
    table = Table("", (Part.of(("name",), [("`hf:<model>` of <b>",), ("``a|<b>`` `<c>",)]),))
    first, second = (cells_of(line)[0] for line in markdown(table).splitlines()[-2:])
    assert (first, second) == ("`hf:<model>` of &lt;b>", r"``a\|<b>`` `&lt;c>")


def test_latex():
    text = latex(TABLE)
    assert text.startswith("% needs \\usepackage{booktabs}\n% Not finished: runs/a_b | x.\n")
    assert re.findall(r"\\begin\{tabular\}\{(\w+)\}", text) == ["llrrrl", "llr"]
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 2
    bodies = re.findall(r"\\toprule\n(.*?)\\bottomrule", text, re.DOTALL)
    for body, columns in zip(bodies, (6, 3), strict=True):
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {columns}
    assert bodies[0].count(r"\midrule") == 2, "below the headings, and before the second group"
    assert bodies[1].count(r"\midrule") == 1
    assert r"60.0 $\pm$ 14.1" in bodies[0]
    assert r"+1.2 $\blacktriangle$" in bodies[1]
    assert r"$-$0.3 $\approx$" in bodies[1]
    first, second = re.findall(r"\\caption\{(.*)\}", text)
    assert first.endswith("validation protocol; seeds 0, 1. Mean $\\pm$ sample standard deviation.")
    assert ". To base. validation protocol" in second
    assert text.isascii()


def test_every_character_that_latex_reads_is_escaped():
    escaped = latex_escape(HOSTILE)
    bare = re.sub(r"\\(text\w+\{\}|[{}$&#_%])|\{\[\}|\{\]\}", "", escaped)
    assert not set(bare) & set("\\{}$&#_%~^<>[]\n")
    assert latex_escape("τ → λ × σ … ▼") == (
        r"$\tau$ $\rightarrow$ $\lambda$ $\times$ $\sigma$ \dots{} $\blacktriangledown$"
    )


def test_csv_has_the_records_and_nothing_else():
    rows = list(csv.reader(io.StringIO(csv_text(TABLE))))
    assert rows == [["title", "R@1", "values", "note"], [HOSTILE, "0.6", "0.5; 0.7", ""], ["VCPA", "", "", ""]]
    assert csv_text(Table("", ())).strip() == ""


@pytest.mark.parametrize("width", [80, 160])
def test_the_terminal(width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="standard")
    console.print(terminal(TABLE))
    text = console.file.getvalue()
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert max(map(len, plain.splitlines())) <= width
    for said in ("60.0±14.1", "69.7", "To base", "+1.2 ▲", "validation protocol; seeds 0, 1", "Not finished:"):
        assert said in plain
    assert "[y]" in plain, "no markup is read from cells"
    assert re.search(r"\x1b\[36m[^\x1b]*69\.7", text), "published lines are cyan"
    assert re.search(r"\x1b\[32m\+1\.2 ▲", text)
    assert re.search(r"\x1b\[33mNot finished", text)


def test_html_is_escaped_and_marks_numbers_groups_and_published_lines():
    page = html_table(TABLE.parts[0], caption=HOSTILE, css="scores")
    assert "<b title" not in page
    read = _Reader()
    read.feed(page)
    assert read.open == [], "every tag is closed"
    assert read.text["caption"] == [HOSTILE]
    assert read.text["th"][:6] == ["", "scores", "n", "R@1", "covering radius", "hardware"]
    assert read.text["th"][6:] == [HOSTILE, "", "VCPA"]
    assert [row.get("class") for row in read.attributes["tr"]] == [None, "first", "published", "first"]
    assert [cell.get("class") for cell in read.attributes["td"][:5]] == [None, "number", "number", "number", None]
    assert [cell["scope"] for cell in read.attributes["th"]] == ["col"] * 6 + ["row"] * 3
    assert read.attributes["table"] == [{"class": "scores"}]
    assert "<caption>" not in html_table(TABLE.parts[0])


def test_an_empty_table_is_one_in_every_format():
    empty = Table("", (Part.of(("a", "b"), []),))
    assert markdown(empty) == "| a | b |\n|---|---:|\n"
    assert r"\toprule" in latex(empty)
    assert "<tbody></tbody>" in html_table(empty.parts[0])
    assert set(FORMATS) == {"md", "latex", "csv"}


def test_a_difference_has_its_sign():
    assert [signed(value, 2) for value in (0.0, 1.005, -3.14159)] == ["+0.00", "+1.00", "−3.14"]


class _Reader(html.parser.HTMLParser):
    """Text and attributes by tag, and the tags that are still open."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.attributes = [], {}, {}

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.attributes.setdefault(tag, []).append(dict(attrs))
        self.text.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text[self.open[-1]][-1] += data


def test_a_page_draws_bars_behind_fractions_and_sorts_by_all_their_digits():
    lines = (Line(("a", "2", "12.3"), fractions=(None, None, 0.12345678)), Line(("b", "3", "–")))
    first, second = html_table(Part(("class", "n", "R@1"), lines)).split("<tbody>")[1].split("</tr>")[:2]
    assert '<td class="number bar" data-value="0.123457" style="--share:12.3%">12.3</td>' in first
    assert "<td class=number>2</td>" in first
    assert second.endswith("<td class=number>3</td><td class=number>–</td>")


@pytest.mark.parametrize(
    ("texts", "numbers", "expected"),
    [(1, None, [False, True, True, True]), (2, 1, [False, False, True, False]), (0, None, [True] * 4)],
)
def test_which_columns_are_numbers(texts, numbers, expected):
    part = Part(("a", "b", "c", "d"), (), texts=texts, numbers=numbers)
    assert [part.is_number(column) for column in range(4)] == expected


def test_plain_lines_have_no_style():
    part = Part.of(["a", "b"], [["x", "1"]], title="Heading", texts=2)
    assert part == Part(("a", "b"), (Line(("x", "1")),), title="Heading", texts=2)
    assert (part.lines[0].style, part.lines[0].begins_group) == ("", False)
