"""The report as text: what it shows against what the runs left, and that nothing in it can do harm."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import shutil
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from nearkin.errors import DataError, RecipeError
from nearkin.report import page
from nearkin.report.opened_run import OpenedRun, ViewOptions
from nearkin.report.page import _parts, write_report
from nearkin.report.page.differences import differences_section, held_against_base
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

    @property
    def payload(self):
        return json.loads(self.scripts[0])

    def sections(self):
        return [attributes["id"] for attributes in self.all("section")]


@pytest.fixture(scope="session")
def whole(four_runs, tmp_path_factory):
    """A report on four runs: the file's text, what was written about it, and the page read."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    written = write_report(four_runs, file, title="Runs & <b>more</b>", view=CPU)
    text = file.read_text(encoding="utf-8")
    return text, written, Read(text)


def test_every_section_that_applies_is_there_and_no_other(whole, four_runs, tmp_path):
    _, written, read = whole
    assert written.missing == ()
    assert read.sections() == [
        "scores",
        "curves",
        "map",
        "neighbours",
        "classes",
        "worst",
        "confidence",
        "pairs",
        "covering",
        "uncertainty",
        "cost",
        "reproduce",
    ]
    links = [attributes["href"] for attributes in read.all("a")]
    assert links == [f"#{name}" for name in read.sections()]
    write_report(four_runs[:1], tmp_path / "one.html", view=CPU)
    alone = Read((tmp_path / "one.html").read_text(encoding="utf-8"))
    assert {"covering", "uncertainty"}.isdisjoint(alone.sections())


def test_nothing_is_fetched(whole):
    text, _, read = whole
    for tag, attributes in read.tags:
        for name in ("src", "href", "srcset", "data", "poster", "action", "background"):
            if name in attributes:
                assert attributes[name].startswith(("#", "data:")), (tag, attributes)
    assert not re.search(r"@import|url\(", text)
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) == {"http://www.w3.org/2000/svg"}
    assert all(image.startswith("data:image/") for image in read.payload["images"])


def test_only_the_page_s_own_script_may_run(whole):
    _, _, read = whole
    (policy,) = [each["content"] for each in read.all("meta") if "http-equiv" in each]
    script_hash = base64.b64encode(hashlib.sha256(read.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{script_hash}'" in policy
    assert policy.startswith("default-src 'none'")


def test_names_of_classes_are_text(whole, hostile_names):
    _, _, read = whole
    assert len(read.all("script")) == 2
    assert not any(name.startswith("on") for _, attributes in read.tags for name in attributes)
    assert {attributes.get("src") for attributes in read.all("img")} == {None}
    shown = "".join(read.text)
    assert all(name in shown for name in hostile_names)
    assert "Runs & <b>more</b>" in shown
    assert set(hostile_names) <= {
        name for chart in read.payload["charts"] if chart["kind"] == "map" for name in chart["classes"]
    }
    assert all(name in [attributes["alt"] for attributes in read.all("img")] for name in hostile_names)


def test_curves_are_mean_and_deviation_of_the_evaluations(whole, four_runs):
    _, _, read = whole
    tracks = []
    for path in four_runs[:2]:
        with open(path / "evaluations.csv", newline="", encoding="utf-8") as file:
            tracks.append([100 * float(row["R@1"]) for row in csv.DictReader(file)])
    captions = [figure["data-label"] for figure in read.all("figure") if "data-chart" in figure]
    place = captions.index("R@1 (%) on the test classes over the epochs")
    series = read.payload["charts"][place]["series"]
    assert [each["name"] for each in series] == ["proxy_anchor", "vcpa", "contrastive with ccp"]
    points = np.array(series[0]["points"])
    assert points[:, 1] == pytest.approx(np.mean(tracks, axis=0), rel=1e-5)
    assert points[:, 2] == pytest.approx(np.std(tracks, axis=0, ddof=1), rel=1e-4, abs=1e-9)
    assert all(point[2] is None for point in series[1]["points"])
    assert [star[1] for star in series[0]["stars"]] == pytest.approx([max(track[1:]) for track in tracks], rel=1e-5)


def test_sub_problems_are_marked_where_they_began(whole, four_runs):
    _, _, read = whole
    events = json.loads((four_runs[3] / "events.json").read_text())
    charts = [chart for chart in read.payload["charts"] if chart.get("rules")]
    assert len(charts) == 2
    for chart in charts:
        assert [rule["x"] for rule in chart["rules"]] == [event["step"] for event in events if event["step"] > 0]
    (bars,) = [chart for chart in read.payload["charts"] if chart["kind"] == "bars"]
    assert sum(bar["y"] for bar in bars["bars"]) == 4


def test_maps_have_a_mark_for_every_image_and_proxy(whole):
    _, _, read = whole
    maps = [chart for chart in read.payload["charts"] if chart["kind"] == "map"]
    # Training and test map of each of three groups; four classes of five images; one, one and two proxies a class.
    assert [len(chart["points"]) for chart in maps] == [20] * 6
    assert [len(chart["proxies"]) for chart in maps] == [4, 0, 4, 0, 8, 0]
    for chart in maps:
        assert all(0 <= image < len(read.payload["images"]) for *_, image in chart["points"])


def test_right_and_wrong_are_marked_by_a_sign_as_well(whole):
    text, _, _ = whole
    right = re.findall(r'<figure class="shot right"[^>]*><span class="frame">.*?</span><figcaption>', text)
    wrong = re.findall(r'<figure class="shot wrong"[^>]*><span class="frame">.*?</span><figcaption>', text)
    assert right
    assert wrong
    assert all("✓" in each and 'aria-label="right"' in each for each in right)
    assert all("✗" in each and 'aria-label="wrong"' in each for each in wrong)


def test_the_recipe_and_the_command_are_there_to_copy(whole, four_runs):
    _, _, read = whole
    shown = "".join(read.text)
    # The folder's name has a space: a shell needs quotes.
    assert f"nearkin train '{four_runs[2]}/recipe.yaml' -o '{four_runs[2]}-again'" in shown
    assert (four_runs[2] / "recipe.yaml").read_text(encoding="utf-8").strip() in shown
    assert json.loads((four_runs[2] / "environment.json").read_text())["hardware"] in shown


def test_scores_before_training_stand_beside_those_after(whole, four_runs, tmp_path):
    text, _, _ = whole
    runs = [json.loads((path / "scores.json").read_text()) for path in four_runs]
    before, after = (100 * np.mean([run[which]["R@1"] for run in runs[:2]]) for which in ("untrained", "test"))
    table = text.partition("Before and after training")[2].partition("</table>")[0]
    assert "Untrained: the backbone as it was before training, without a head." in table
    headings = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', table)
    assert headings == ["score", "proxy_anchor", "vcpa", "contrastive with ccp"]
    (line,) = re.findall(r'<th scope="row">R@1</th>(.*?)</tr>', table)
    assert line.startswith(f"<td class=number>{before:.1f} → {after:.1f}</td>")
    alone = write_report(four_runs[2:3], tmp_path / "one.html", view=CPU).file.read_text(encoding="utf-8")
    (line,) = re.findall(r'<th scope="row">MAP@R</th>(.*?)</tr>', alone.partition("Before and after training")[2])
    before, after = (100 * runs[2][which]["MAP@R"] for which in ("untrained", "test"))
    change = f"{after - before:+.1f}".replace("-", "−")
    assert re.findall(r"<td class=number>(.*?)</td>", line) == [f"{before:.1f}", f"{after:.1f}", change]


def test_a_run_that_was_not_scored_before_training_has_no_such_table(write_run):
    run = write_run("old", {"R@1": 0.5})
    assert "Before and after" not in write_report([run]).file.read_text(encoding="utf-8")


def test_every_score_that_is_shown_is_explained(whole):
    text, _, _ = whole
    block = text.partition("<summary>What the scores mean</summary>")[2].partition("</details>")[0]
    explained = ", ".join(re.findall(r"<dt>(.*?)</dt>", block)).split(", ")
    shown = re.findall(r'<th scope="col" class=number>(.*?)</th>', text.partition("</thead>")[0])
    assert set(shown) - {"n"} == set(explained)
    assert "covering radius" in explained


def test_the_closest_classes_are_those_of_the_mean_embeddings(whole, four_runs):
    text, _, _ = whole
    run = OpenedRun(four_runs[0], CPU)
    sample = run.training_sample
    unit = sample.embeddings.double().numpy()
    means = np.array([unit[sample.labels == label].mean(0) for label in run.training_classes])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    similar = np.triu(means @ means.T, 1) - 2 * np.tri(len(means))
    first, second = np.unravel_index(similar.argmax(), similar.shape)
    names = [run.data.table.class_names[run.training_classes[place]] for place in (first, second)]
    section = text.partition('<section id="pairs">')[2].partition("</section>")[0]
    assert "by the cosine similarity of their mean embeddings" in section
    found = re.search(r'<p class="row-name">(.*?): similarity (.*?)</p>', section)
    assert found[1] == " and ".join(names)
    assert float(found[2].replace("−", "-")) == pytest.approx(similar.max(), abs=0.006)


def test_rows_are_held_against_the_base_that_their_study_names(write_run, tmp_path):
    shift = {"anchor": (0.0, 0.0, 0.0), "alpha": (0.05, 0.05, 0.06), "margin": (0.02, -0.01, -0.01)}
    for name, changes in (("anchor", ()), ("alpha", ["objective.alpha=16"]), ("margin", ["objective.margin=0.2"])):
        for seed, more in enumerate(shift[name]):
            scores = {"R@1": 0.60 + 0.01 * seed + more, "MAP@R": 0.30}
            write_run(f"study/{name}/seed-{seed}", scores, seed=seed, overrides=changes)
    rows = [{"name": "anchor", "title": "Anchor"}, {"name": "alpha", "title": "Al<pha>", "base": "anchor"}]
    rows.append({"name": "margin", "title": "Margin", "base": "alpha"})
    (tmp_path / "study" / "comparison.json").write_text(json.dumps({"rows": rows}))
    groups = {group.title: group for group in gather_runs([tmp_path / "study"]).groups}
    held = {row.title: row for row in held_against_base(list(groups.values()))}
    assert {title: row.base for title, row in held.items()} == {"Al<pha>": "Anchor", "Margin": "Al<pha>"}
    apart = held["Al<pha>"].apart["R@1"]
    # Pairs 0.05, 0.05, 0.06: mean 0.0533 ± 4.303 · 0.00577/√3.
    assert (apart.value, *apart.interval) == pytest.approx((0.05333, 0.03899, 0.06768), abs=1e-5)
    text = differences_section(list(groups.values()))
    assert text.count("<circle") == 4, "a dot for each row and score"
    assert "Al&lt;pha&gt;" in text
    assert "<pha>" not in text
    assert "+3.9 to +6.8" in text
    bars = [attributes for attributes in Read(text).all("line") if attributes.get("stroke-width") == "2"]
    dots = Read(text).all("circle")
    for bar, dot in zip(bars, dots, strict=True):
        assert float(bar["x1"]) <= float(dot["cx"]) <= float(bar["x2"])
    assert differences_section(list(groups.values())[:1]) == "", "one row has nothing to be held against"


def test_no_row_of_examples_shows_an_image_twice(whole):
    text, _, _ = whole
    rows = re.findall(r'<div class="shots nameless">(.*?)</div>', text)
    shown = [re.findall(r'data-image="(\d+)"', row) for row in rows]
    assert {len(numbers) for numbers in shown} == {4, 5}, "of pairs, and of classes by their certainty"
    assert all(len(set(numbers)) == len(numbers) for numbers in shown)


def test_the_page_names_the_projection_that_was_computed(whole, four_runs, tmp_path, monkeypatch):
    text, written, _ = whole
    assert "In a map by t-SNE" in text
    assert "principal components" not in text
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    written = write_report(four_runs[:1], tmp_path / "page.html", view=CPU)
    text = written.file.read_text(encoding="utf-8")
    assert "In a map by t-SNE" not in text
    assert "A map by principal components shows" in text
    assert text.count("t-SNE") == 1, "what is missing, at the end"
    (line,) = written.missing
    assert "pip install 'nearkin[plot]'" in line


def test_one_reason_is_given_once(four_runs, tmp_path):
    shutil.copytree(four_runs[0], tmp_path / "moved")
    recipe = tmp_path / "moved" / "recipe.yaml"
    recipe.write_text(recipe.read_text(encoding="utf-8").replace("squares.csv", "gone.csv"), encoding="utf-8")
    (line,) = write_report([tmp_path / "moved"]).missing
    assert line.startswith("neighbours, classes and test map of proxy_anchor, training map of proxy_anchor, conf")
    assert "--data" in line


def test_a_page_that_cannot_be_written_is_told_in_a_line(write_run, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    run = write_run("a", {"R@1": 0.5})
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(DataError, match=r"cannot write .*report\.html: No space left on device \(.* MB needed\)"):
        write_report([run])


def test_a_page_that_is_full_says_so(four_runs, tmp_path, monkeypatch):
    monkeypatch.setattr(_parts, "IMAGE_BUDGET", 3000)
    written = write_report(four_runs[:1], tmp_path / "full.html", view=CPU)
    read = Read(written.file.read_text(encoding="utf-8"))
    assert sum(map(len, read.payload["images"])) <= 3000
    assert 0 < written.images < 20
    assert "did not fit" in "".join(read.text)


def test_thumbnails_are_small_and_keep_their_shape():
    pixels = np.zeros((300, 600, 3), dtype=np.uint8)
    pixels[:, 300:] = 255
    kind, content = _parts.thumbnail(pixels).split(";base64,")
    image = Image.open(io.BytesIO(base64.b64decode(content)))
    assert kind in ("data:image/png", "data:image/jpeg")
    assert image.size == (_parts.THUMBNAIL_SIDE, _parts.THUMBNAIL_SIDE // 2)
    assert np.asarray(image.convert("RGB"))[20, 20].max() < 20
    assert np.asarray(image.convert("RGB"))[20, 70].min() > 235


def test_without_its_data_a_run_still_has_scores_and_curves(squares, four_runs, tmp_path):
    shutil.copytree(four_runs[0], tmp_path / "moved")
    recipe = tmp_path / "moved" / "recipe.yaml"
    recipe.write_text(recipe.read_text(encoding="utf-8").replace("squares.csv", "gone.csv"), encoding="utf-8")
    written = write_report([tmp_path / "moved"])
    assert written.file == tmp_path / "moved" / "report.html"
    read = Read(written.file.read_text(encoding="utf-8"))
    assert read.sections() == ["scores", "curves", "cost", "reproduce"]
    assert any("gone.csv" in line for line in written.missing)
    assert "gone.csv" in "".join(read.text)


def test_runs_on_different_data_have_sections_of_their_own(four_runs, squares, tmp_path):
    root, _ = squares
    other = tmp_path / "other.csv"
    lines = (root / "squares.csv").read_text(encoding="utf-8").splitlines()
    other.write_text("\n".join([lines[0], *(f"{root}/{line}" for line in lines[1:])]), encoding="utf-8")
    shutil.copytree(four_runs[0], tmp_path / "second")
    recipe = tmp_path / "second" / "recipe.yaml"
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(text.replace(str(root / "squares.csv"), str(other)), encoding="utf-8")
    written = write_report([four_runs[0], tmp_path / "second"], tmp_path / "both.html", view=CPU)
    names = Read(written.file.read_text(encoding="utf-8")).sections()
    assert {"curves-1", "curves-2", "neighbours-1", "neighbours-2"} <= set(names)
    assert names.count("scores") == 1


def test_a_run_that_is_not_finished_has_its_curves(four_runs, tmp_path):
    shutil.copytree(four_runs[0], tmp_path / "begun")
    (tmp_path / "begun" / "scores.json").unlink()
    written = write_report([tmp_path / "begun"], view=CPU)
    names = Read(written.file.read_text(encoding="utf-8")).sections()
    assert "curves" in names
    assert "neighbours" in names
    assert {"scores", "cost"}.isdisjoint(names)


def test_where_the_page_cannot_go_is_said_before_any_work(four_runs, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "gather_runs", None)
    with pytest.raises(RecipeError, match="is a folder"):
        write_report(four_runs, tmp_path)
    with pytest.raises(RecipeError, match="there is no folder"):
        write_report(four_runs, tmp_path / "no" / "report.html")


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(DataError, match="neither a run folder nor a study"):
        write_report([tmp_path], tmp_path / "report.html")
