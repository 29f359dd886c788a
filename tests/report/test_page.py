"""The report as text: what it shows against what the runs left, and that nothing in it can do harm."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest

from nearkin.data.table import split_class_name
from nearkin.errors import DataError, RecipeError
from nearkin.report import page
from nearkin.report.opened_run import ViewOptions
from nearkin.report.page import classes_table, differences_section, write_report
from nearkin.report.query_results import ClassScore
from nearkin.report.run_groups import gather_runs

CPU = ViewOptions(device="cpu", classes=4)


class Read(HTMLParser):
    """Elements, text, and the content of scripts of a page, as a browser would take them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.inside = [], [], None
        self.scripts = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        else:
            self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    def sections(self):
        return [attributes["id"] for attributes in self.all("section")]


@pytest.fixture(scope="session")
def whole(four_runs, tmp_path_factory):
    """A report on four runs: the file's text, what was written about it, and the page read."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    _, missing = write_report(four_runs, file, view=CPU)
    text = file.read_text(encoding="utf-8")
    return text, missing, Read(text)


def test_every_section_that_applies_is_there_and_no_other(whole, four_runs, tmp_path):
    _, missing, read = whole
    assert missing == []
    assert read.sections() == [
        *("scores", "curves", "map", "neighbours", "worst", "classes", "certainty", "covering"),
        *("reliability", "uncertainty", "cost", "reproduce"),
    ]
    links = [attributes["href"] for attributes in read.all("a")]
    assert links == [f"#{name}" for name in read.sections()]
    figures = [attributes["src"] for attributes in read.all("img")]
    assert len(figures) > len(read.sections()) - 6
    assert all(re.match("data:image/(png|svg.xml);base64,", source) for source in figures)
    alone, missing = write_report(four_runs[:1], tmp_path / "one.html", view=CPU)
    assert {"covering", "uncertainty"}.isdisjoint(Read(alone.read_text(encoding="utf-8")).sections())
    assert missing == [], "what does not apply to a run is not missing"


def test_nothing_is_fetched(whole):
    text, _, read = whole
    for tag, attributes in read.tags:
        for name in ("src", "href", "srcset", "data", "poster", "action", "background"):
            if name in attributes:
                assert attributes[name].startswith(("#", "data:")), (tag, attributes)
    assert not re.search(r"@import|url\(", text)
    assert not re.findall(r"https?://[^\s\"'<]+", text)


def test_only_the_page_s_own_script_may_run(whole):
    _, _, read = whole
    (policy,) = [each["content"] for each in read.all("meta") if "http-equiv" in each]
    script_hash = base64.b64encode(hashlib.sha256(read.scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{script_hash}'" in policy
    assert policy.startswith("default-src 'none'")


def test_names_of_classes_are_text(whole, hostile_names):
    _, _, read = whole
    assert len(read.all("script")) == 1
    assert not any(name.startswith("on") for _, attributes in read.tags for name in attributes)
    shown = "".join(read.text)
    assert all(part in shown for name in hostile_names for part in split_class_name(name))


def test_a_nested_class_shows_its_last_part_first():
    names = ("Fruit/Citrus/Lemon", "Fruit/Kiwi", "Milk")
    table, rows = SimpleNamespace(class_names=names), np.arange(6)
    run = SimpleNamespace(
        data=SimpleNamespace(table=table),
        test_rows=rows,
        protocol=SimpleNamespace(test_classes="classes never seen in training"),
        recipe=SimpleNamespace(training=SimpleNamespace(seed=0)),
    )
    scores = {label: ClassScore(2, 0.5, 0.25 * label) for label in range(3)}
    results = SimpleNamespace(run=run, sample=SimpleNamespace(rows=rows), classes=lambda: scores)
    cells = re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', classes_table({"proxy_anchor": results}))
    assert cells == [("Lemon", "Fruit/Citrus"), ("Kiwi", "Fruit"), ("Milk", "")]
    table.class_names = ("Lemon", "Kiwi", "Milk")
    plain = Read(classes_table({"proxy_anchor": results}))
    assert [text for text in plain.text if text in ("class", "folder", "queries")] == ["class", "queries"]


def test_the_recipe_and_the_command_are_there_to_copy(whole, four_runs):
    _, _, read = whole
    shown = "".join(read.text)
    # The folder's name has a space: a shell needs quotes.
    assert f"nearkin train '{four_runs[2]}/recipe.yaml' -o '{four_runs[2]}-again'" in shown
    assert (four_runs[2] / "recipe.yaml").read_text(encoding="utf-8").strip() in shown
    assert json.loads((four_runs[2] / "environment.json").read_text())["hardware"] in shown


def test_every_score_that_is_shown_is_explained(whole):
    text, _, _ = whole
    block = text.partition("<summary>What the scores mean</summary>")[2].partition("</details>")[0]
    explained = ", ".join(re.findall(r"<dt>(.*?)</dt>", block)).split(", ")
    shown = re.findall(r'<th scope="col" class=number>(.*?)</th>', text.partition("</thead>")[0])
    assert set(shown) - {"n"} == set(explained)
    assert "covering radius" in explained


def test_rows_are_compared_with_the_base_that_their_study_names(write_run, tmp_path):
    shift = {"anchor": (0.0, 0.0, 0.0), "alpha": (0.05, 0.05, 0.06), "margin": (0.02, -0.01, -0.01)}
    for name, changes in (("anchor", ()), ("alpha", ["objective.alpha=16"]), ("margin", ["objective.margin=0.2"])):
        for seed, more in enumerate(shift[name]):
            scores = {"R@1": 0.60 + 0.01 * seed + more, "MAP@R": 0.30}
            write_run(f"study/{name}/seed-{seed}", scores, seed=seed, overrides=changes)
    rows = [{"name": "anchor", "title": "Anchor"}, {"name": "alpha", "title": "Al<pha>", "base": "anchor"}]
    rows.append({"name": "margin", "title": "Margin", "base": "alpha"})
    (tmp_path / "study" / "comparison.json").write_text(json.dumps({"rows": rows}))
    groups = gather_runs([tmp_path / "study"]).groups
    assert {group.title: group.base for group in groups} == {"Anchor": None, "Al<pha>": "Anchor", "Margin": "Al<pha>"}
    text = differences_section(groups)
    assert "<pha>" not in text
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr.*?</tr>", text)]
    # Pairs 0.05, 0.05, 0.06: mean 0.0533 ± 4.303 · 0.00577/√3.
    assert cells[1] == ["Al&lt;pha&gt;", "Anchor", "R@1", "+5.3 ▲", "+3.9 to +6.8", "–"]
    assert [row[:2] for row in cells[3:4]] == [["Margin", "Al&lt;pha&gt;"]]
    assert differences_section(groups[:1]) == "", "one row has no base"


def test_scores_before_training_are_in_the_table(whole, four_runs):
    text, _, _ = whole
    untrained = [json.loads((path / "scores.json").read_text())["untrained"]["R@1"] for path in four_runs[:2]]
    (line, *_) = re.findall(r"<td>untrained</td>(.*?)</tr>", text)
    assert f"{100 * np.mean(untrained):.1f} ± {100 * np.std(untrained, ddof=1):.1f}" in line


@pytest.fixture
def few_figures(monkeypatch):
    """Figures take most of the time of a report."""
    monkeypatch.setattr(page, "plot_names", lambda: ["curves", "map"])


def test_without_its_data_a_run_still_has_scores_and_curves(four_runs, tmp_path):
    shutil.copytree(four_runs[0], tmp_path / "moved")
    recipe = tmp_path / "moved" / "recipe.yaml"
    recipe.write_text(recipe.read_text(encoding="utf-8").replace("squares.csv", "gone.csv"), encoding="utf-8")
    file, missing = write_report([tmp_path / "moved"])
    assert file == tmp_path / "moved" / "report.html"
    read = Read(file.read_text(encoding="utf-8"))
    assert read.sections() == ["scores", "curves", "cost", "reproduce"]
    (line,) = missing  # one reason, given once
    assert line.startswith("map of proxy_anchor, neighbours of proxy_anchor")
    assert "gone.csv" in line
    assert "gone.csv" in "".join(read.text)


def test_runs_on_different_data_have_sections_of_their_own(four_runs, squares, tmp_path, few_figures):
    root, _ = squares
    other = tmp_path / "other.csv"
    lines = (root / "squares.csv").read_text(encoding="utf-8").splitlines()
    other.write_text("\n".join([lines[0], *(f"{root}/{line}" for line in lines[1:])]), encoding="utf-8")
    shutil.copytree(four_runs[0], tmp_path / "second")
    recipe = tmp_path / "second" / "recipe.yaml"
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(text.replace(str(root / "squares.csv"), str(other)), encoding="utf-8")
    file, _ = write_report([four_runs[0], tmp_path / "second"], tmp_path / "both.html", view=CPU)
    names = Read(file.read_text(encoding="utf-8")).sections()
    assert {"curves-1", "curves-2", "map-1", "map-2"} <= set(names)
    assert names.count("scores") == 1


def test_a_run_that_is_not_finished_has_its_curves(four_runs, tmp_path, few_figures):
    shutil.copytree(four_runs[0], tmp_path / "begun")
    (tmp_path / "begun" / "scores.json").unlink()
    file, _ = write_report([tmp_path / "begun"], view=CPU)
    names = Read(file.read_text(encoding="utf-8")).sections()
    assert names == ["curves", "map", "reproduce"]


def test_where_the_page_cannot_go_is_said_before_any_work(four_runs, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "gather_runs", None)
    with pytest.raises(RecipeError):
        write_report(four_runs, tmp_path)
    with pytest.raises(RecipeError):
        write_report(four_runs, tmp_path / "no" / "report.html")


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(DataError):
        write_report([tmp_path], tmp_path / "report.html")
