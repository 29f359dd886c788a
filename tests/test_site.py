"""The documentation as a site: every page is reachable, it builds without a warning, and opens without a network."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

import nearkin
from nearkin import evaluation, index, proxies, samplers

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def module(path):
    """A script of the documentation, which is no part of a package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def entries(page):
    """The pages that the toctrees of a page list."""
    trees = re.findall(r"^:::\{toctree\}\n(.*?)^:::", PAGES[page], flags=re.S | re.M)
    lines = [line.strip() for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    return [re.sub(r".*<(.*)>", r"\1", line) for line in lines]


def test_every_page_is_listed_once():
    listed = [page for parent in ("index", "api") for page in entries(parent)]
    assert sorted([*listed, "index"]) == sorted(PAGES)


def test_what_is_public_is_in_the_reference():
    shown = set(re.findall(r"auto(?:class|function|exception):: (\S+)", "".join(PAGES.values())))
    last = {name.rpartition(".")[2] for name in shown}
    assert ".. automodule:: nearkin.errors\n   :members:" in PAGES["api_runs"]
    others = {"evaluation", "losses", "methods", "proxies", "samplers", "__version__", "NearkinError"}
    public = {*nearkin.__all__, *evaluation.__all__, *proxies.__all__, *samplers.__all__, *index.__all__} - others
    assert public <= last, public - last
    assert ".. catalogued:: nearkin.losses\n" in PAGES["api_losses"]
    assert ".. catalogued:: nearkin.training.methods\n" in PAGES["api_methods"]


class Resources(HTMLParser):
    """What a page loads by itself, and where its links lead."""

    def __init__(self):
        super().__init__()
        self.loaded, self.links, self.ids = [], [], set()

    def handle_starttag(self, tag, attrs):
        has = dict(attrs)
        if "id" in has:
            self.ids.add(has["id"])
        if tag == "a" and "href" in has:
            self.links.append(has["href"])
        elif tag == "link" and "href" in has:
            self.loaded.append(has["href"])
        self.loaded += [has[name] for name in ("src", "srcset", "poster", "data") if has.get(name)]


def is_elsewhere(address):
    return re.match(r"(?!data:)([a-z]+:)?//", address) is not None


@pytest.mark.timeout(900)  # half a minute by itself, and several where all cores do something else
def test_the_site_builds_without_a_warning_and_opens_without_a_network(tmp_path):
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", tmp_path / "trees", DOCS, site]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    built = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (built.returncode, built.stderr) == (0, "")

    pages = {}
    for file in site.glob("*.html"):
        pages[file.name] = Resources()
        pages[file.name].feed(file.read_text(encoding="utf-8"))
    assert {f"{name}.html" for name in PAGES} <= set(pages)
    for name, page in pages.items():
        assert not [address for address in page.loaded if is_elsewhere(address)], name
        for link in page.links:
            target, _, anchor = link.partition("#")
            if not is_elsewhere(link) and not link.startswith("mailto:"):
                assert not target or (site / target).exists(), f"{name}: {link}"
                if (target or name) in pages and anchor:
                    assert anchor in pages[target or name].ids, f"{name}: {link}"
    for sheet in site.glob("_static/**/*.css"):
        loads = re.findall(
            r"url\(\s*[\"']?(.*?)[\"']?\s*\)|@import\s+[\"'](.*?)[\"']", sheet.read_text(encoding="utf-8")
        )
        assert not [address for both in loads for address in both if is_elsewhere(address)], sheet.name

    for name, text in PAGES.items():
        made = (site / f"{name}.html").read_text(encoding="utf-8")
        assert made.count('<div class="formula">') >= text.count("\n$$\n") // 2, name
        assert "$$" not in made
    assert "nearkin search birds.index" in re.sub("<.*?>", "", (site / "search.html").read_text(encoding="utf-8"))
    assert '<form class="sidebar-search-container" method="get" action="find.html"' in (site / "index.html").read_text()
    if CHROMIUM:
        look_at(site)


def look_at(site):
    """In a browser, wide and narrow: nothing is wider than the page, formulas are drawn, the search finds."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width in (1400, 1100, 390):
            page = browser.new_page(viewport={"width": width, "height": 900})
            asked = []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            for name in ("index", "method_vcpa", "results", "api_losses", "losses", "commands"):
                page.goto((site / f"{name}.html").as_uri())
                inside = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
                assert page.evaluate(inside), f"{name} is wider than {width} pixels"
            page.goto((site / "method_vcpa.html").as_uri())
            assert page.evaluate("document.fonts.ready.then(() => document.fonts.check('16px Formulas'))")
            heights = page.evaluate("[...document.querySelectorAll('.formula math')].map(m => m.clientHeight)")
            assert len(heights) == 2
            assert min(heights) > 20
            page.goto((site / "find.html").as_uri() + "?q=covering+radius")
            page.wait_for_selector("#search-results ul.search li a")
            assert {address.partition(":")[0] for address in asked} <= {"file", "data"}
        browser.close()


def test_formulas_become_mathml():
    mathml = module(DOCS / "_extensions" / "mathml.py").mathml
    assert mathml(r"s(a,b) = \hat a \cdot \hat b", as_block=False).startswith("<math")
    sized = mathml(r"\log\Big(1+\sum_x e^x\Big)", as_block=True)
    assert sized.count("maxsize=") == 2
    assert 'stretchy="false">‖' in mathml(r"\lVert x \rVert", as_block=True)
    assert "ams-align" in mathml(r"a &= 1 \\ b &= 2", as_block=True)
    assert "ams-align" not in mathml(r"a = \begin{cases} 1 & x \\ 2 & y \end{cases}", as_block=True)
    with pytest.raises(Exception, match="nosuchcommand"):
        mathml(r"\nosuchcommand", as_block=True)


def test_the_diagram_of_the_architecture_has_a_place_for_every_station(tmp_path):
    flow = module(DOCS / "figures" / "draw_flow.py")
    stations, arrows = flow.stations_and_arrows(PAGES["architecture"])
    assert set(stations) == set(flow.PLACES)
    assert {name for arrow in arrows for name in (arrow.start, arrow.end)} == set(stations)
    assert flow.Arrow("encoder", "loss", "embeddings [B,D]", False) in arrows
    flow.draw(tmp_path / "flow.png")
    assert (tmp_path / "flow.png").stat().st_size > 10_000


def test_the_figures_of_the_methods_are_drawn(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(DOCS / "figures")
    module(DOCS / "figures" / "draw_methods.py").main([], tmp_path)
    drawn = {file.name for file in tmp_path.glob("method-*.png") if file.stat().st_size > 10_000}
    assert drawn == {file.name for file in (DOCS / "figures").glob("method-*.png")}


@pytest.mark.parametrize("name", ["claims", "long_training", "products"])
def test_the_figures_of_results_have_what_the_runs_say(name):
    drawn = module(DOCS / "figures" / f"draw_{name}.py")
    with Image.open(DOCS / "figures" / f"{name.replace('_', '-')}.png") as figure:
        assert figure.text["Description"] == drawn.description(), f"python docs/figures/draw_{name}.py"
