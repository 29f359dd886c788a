"""What a release needs: version in the changelog, licences of what is installed, figures as in the files, kept runs."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from PIL import Image
from tools import keep_runs, licences, lowest, release_check, results

import nearkin

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"


def test_the_version_has_its_section_in_the_changelog():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.split(r"^## \[([^]]+)\].*$", changelog, flags=re.M)[1:]
    entries = dict(zip(sections[::2], sections[1::2], strict=True))
    number = nearkin.__version__.split(".dev")[0].split("+")[0]
    section = entries.get(number, entries.get("Unreleased") if ".dev" in nearkin.__version__ else None)
    if nearkin.__version__ == "0+not.installed":
        pytest.skip("nearkin is not installed here: it has no version")
    assert section, f"CHANGELOG.md has no section for {nearkin.__version__}"
    assert len(re.findall(r"^- ", section, flags=re.M)) > 0


@pytest.mark.parametrize(
    ("version", "changelog", "entry"),
    [
        ("0.2.0.dev3+gabc.d20261116", "## [0.2.0] - unreleased\n", "0.2.0"),
        ("0.2.0.dev3", "## [Unreleased]\n\n## [0.1.0] - 2026-11-20\n", "Unreleased"),
        ("0.2.0.dev3", "## [0.1.0] - 2026-11-20\n", None),
        ("0.2.0", "## [0.2.0] - 2026-12-01\n", "0.2.0"),
        ("0.2.0", "## [0.2.0] - unreleased\n", None),
        ("0.2.0", "## [Unreleased]\n", None),
    ],
)
def test_a_release_needs_a_dated_section_and_what_comes_before_it_any(version, changelog, entry):
    assert release_check.changelog_entry(version, changelog) == entry


def test_the_version_stands_nowhere_but_in_the_tags():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"]
    assert "version" in project["project"]["dynamic"]
    assert not re.search(r"""__version__ *= *["']""", Path(nearkin.__file__).read_text(encoding="utf-8"))


def test_the_wheel_must_hold_types_gallery_and_recipes():
    shipped = release_check.shipped()
    assert {"nearkin/py.typed", "nearkin/serving/web/app.js", "nearkin/recipes/cub/best.yaml"} <= shipped.keys()
    assert not any("__pycache__" in name for name in shipped)


def test_every_direct_dependency_has_its_licence_on_the_page():
    rows = dict(
        re.findall(r"^\| \*\*(\S+)\*\* \| \S+ \| (.+?) \|", licences.PAGE.read_text(encoding="utf-8"), flags=re.M)
    )
    listed = {canonicalize_name(name): words for name, words in rows.items()}
    needed = {canonicalize_name(each.name) for group in licences.declared().values() for each in group}
    assert sorted(needed - listed.keys()) == [], "run: make licences"
    assert not [name for name, words in listed.items() if words in ("", "UNKNOWN", licences.UNNAMED)]


def test_what_is_always_needed_is_found_with_all_that_it_brings_along(monkeypatch):
    monkeypatch.setattr(licences, "declared", lambda: {"": [licences.Requirement("rich")]})
    found = licences.closure()
    assert {"rich", "pygments", "markdown-it-py", "mdurl"} <= found.keys()  # the last by way of the one before it
    assert {licences.licence(about) for about, _ in found.values()} <= {"MIT", "BSD-2-Clause", "BSD"}


def test_lowest_versions_are_those_of_pyproject():
    pins = lowest.pins(["pgvector"], but=["torch"])
    assert "numpy==1.26" in pins
    assert any(pin.startswith("psycopg[binary]==") for pin in pins)
    assert not any(pin.startswith("fastapi") for pin in pins)  # of an extra that was not asked for
    (torch,) = (pin for pin in pins if pin.startswith("torch=="))
    assert torch in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("page", results.PAGES, ids=lambda page: page.name)
def test_the_tables_are_those_of_the_runs(page):
    text = page.read_text(encoding="utf-8")
    names = {match[1] for match in results.BLOCK.findall(text)}
    assert names == (results.BLOCKS.keys() if page == README else results.TABLES.keys() - {"readme"})
    assert results.written(text) == text, "run: make results"


def test_the_scores_of_recipes_are_those_of_the_runs():
    assert (ROOT / "recipes" / "measured.csv").read_text(encoding="utf-8") == results.measured_csv(), (
        "run: make results"
    )


def test_the_readme_has_no_measured_figure_but_those_that_are_written():
    text = results.BLOCK.sub("", README.read_text(encoding="utf-8"))
    assert re.findall(r"\d ?± ?\d|\d[\d.]* (?:s|ms|seconds?|minutes?|[GM]B|images/s)\b", text) == []


def test_a_changed_figure_is_put_right():
    text = README.read_text(encoding="utf-8")
    (row,) = re.findall(r"^.*`cub/best`, ResNet-50.*$", text, flags=re.M)
    assert results.written(text.replace(row, row.replace("73.", "79."))) == text


@pytest.fixture
def tables(monkeypatch):
    """Tables of runs of two data sets that are made up, by rows and what holds for all of them."""
    shared = {"study": "s", "protocol": "conventional", "recipe": "a net, 8-d", "hardware": "one abacus"}

    def run(data, row, seed, recall, last):
        scores = {"test": {"R@1": recall, "MAP@R": recall / 2}, "last": {"R@1": last, "MAP@R": last / 2}}
        return {**shared, "data": data, "row": row, "seed": seed, "date": "2026-11-19", **scores}

    cub = [run("cub", "base", seed, 0.5 + seed / 100, 0.4) for seed in (0, 1, 2)]
    cub += [run("cub", "new", seed, 0.51 + seed / 100 + seed / 1000, 0.4 + seed / 10) for seed in (2, 0, 1)]
    monkeypatch.setattr(results, "RUNS", [*cub, run("cars", "base", 0, 0.8, 0.7)])

    def set_rows(*rows, **every):
        monkeypatch.setattr(results, "TABLES", {"t": {"study": "s", **every, "rows": list(rows)}})
        return results.table("t").splitlines()

    return set_rows


BASE, NEW = {"name": "Base", "row": "base"}, {"name": "New", "row": "new", "base": "Base"}


def test_a_row_is_compared_with_its_base_seed_by_seed(tables):
    *_, base, new, _, trained = tables(BASE, NEW)
    assert base == "| Base | 3 | 51.0\u00a0±\u00a01.0 | 25.5\u00a0±\u00a00.5 | | | 40.0\u00a0±\u00a00.0 | |"
    # By seed +1.0, +1.1 and +1.2: t of two degrees of freedom, 4.303, times 0.1 over the root of 3.
    assert "| **+1.1** (+0.9 to +1.3) |" in new
    assert new.endswith("| 50.0\u00a0±\u00a010.0 | +10.0 (−14.8 to +34.8) |")
    assert trained == "All rows: a net, 8-d, epoch chosen by the test classes, one abacus, 2026-11-19."


def test_a_collapsed_row_is_marked_and_has_no_difference(tables):
    results.RUNS[-2]["collapse"] = {"epoch": 1, "evidence": "R@1 51.1 → 3.2", "remedy": "Another rate."}
    (new,) = (line for line in tables(BASE, NEW) if line.startswith("| New"))
    name, runs, _, _, *differences, _, last = new.strip("| ").split(" | ")
    assert (name, runs, differences, last) == ("New (1 of 3 collapsed)", "3", ["–", "–"], "–")


def test_a_second_data_set_has_the_rows_that_were_run_there(tables):
    lines = tables(BASE, NEW, data=["cub", "cars"])
    assert [line.split(" | ")[:3] for line in lines if line.startswith("| Base")] == [
        ["| Base", "CUB", "3"],
        ["| Base", "Cars196", "1"],
    ]
    assert sum(line.startswith("| New") for line in lines) == 1


def test_rows_without_runs_and_runs_that_cannot_be_told_apart_are_refused(tables):
    with pytest.raises(SystemExit, match="no run for Nothing"):
        tables(BASE, {"name": "Nothing", "row": "nothing"})
    with pytest.raises(SystemExit, match="several runs with one seed"):
        tables({"name": "Both", "row": ["base", "new"]})


def test_every_run_says_what_it_was():
    needed = ("data", "study", "row", "recipe", "protocol", "hardware", "date")
    # Scores of stored runs with other test crops do not repeat what those ran on.
    unsaid = {(run["study"], key) for run in results.RUNS for key in needed if key not in run}
    assert unsaid <= {("best-test-time", "hardware")}
    assert all(0 <= run["test"]["R@1"] <= 1 for run in results.RUNS if "test" in run)
    assert max(file.stat().st_size for file in (ROOT / "results").rglob("*.jsonl")) < 1e6


@pytest.mark.parametrize("picture", re.findall(r"!\[[^]]*\]\((.+?)\)", README.read_text(encoding="utf-8")))
def test_pictures_of_the_readme_are_small(picture):
    path = ROOT / picture
    assert path.stat().st_size < 200_000
    with Image.open(path) as image:
        assert 800 <= image.width <= 1600


def test_runs_are_kept_with_their_curves_and_none_twice(write_run, tmp_path, monkeypatch):
    runs = [write_run(f"study/proxy_isa/seed-{seed}", {"R@1": 0.5, "MAP@R": 0.2}, seed=seed) for seed in (0, 1)]
    curve = "epoch,step,loss,R@1,P@R,MAP@R\n0,0,,0.3,0.2,0.1\n2,10,1.5,0.5,0.3,0.2\n"
    (runs[0] / "evaluations.csv").write_text(curve, encoding="utf-8")
    file = tmp_path / "results" / "kept.jsonl"

    def keep(*arguments):
        words = ["keep_runs.py", str(file), "--study", "isa", "--group", "2 epochs", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", words)
        keep_runs.main()
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

    keep(runs[0])
    kept = keep(runs[1], "--row", "isa")
    assert [(run["study"], run["group"], run["row"], run["seed"]) for run in kept] == [
        ("isa", "2 epochs", "proxy_isa", 0),
        ("isa", "2 epochs", "isa", 1),
    ]
    assert kept[0]["test"] == {"R@1": 0.5, "MAP@R": 0.2}
    assert kept[0]["hardware"] == "one abacus"
    assert kept[0]["recipe"].startswith("small network, 128-d, 224 px, avg pooling, batch 128, 20 epochs, no warm-up")
    assert kept[0]["evaluations"] == {
        "epoch": [0.0, 2.0],
        "step": [0.0, 10.0],
        "loss": [None, 1.5],
        "R@1": [0.3, 0.5],
        "MAP@R": [0.1, 0.2],
    }
    before = file.read_bytes()
    with pytest.raises(SystemExit, match="'proxy_isa' with seed 0 is there already"):
        keep(runs[0])
    (runs[0] / "scores.json").unlink()
    with pytest.raises(SystemExit, match="not finished"):
        keep(runs[0], "--row", "another")
    assert file.read_bytes() == before
