"""The documentation as a site: every page is reachable, it builds without a warning, and opens without a network."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import pytest
import torch
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


@pytest.fixture
def picture(monkeypatch):
    """The file of ``method_pictures`` that draws one, or without a name the script that draws all."""
    monkeypatch.syspath_prepend(DOCS / "figures")

    def find(name=None):
        if name is None:
            return module(DOCS / "figures" / "draw_methods.py")
        return importlib.import_module(f"method_pictures.{name}")

    return find


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
    for package in ("losses", "methods"):
        assert f".. catalogued:: nearkin.{package}\n" in PAGES[f"api_{package}"]


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
        for width in (1280, 390):
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
    assert flow.Arrow("method", "sampler", "which batches", True) in arrows
    flow.draw(tmp_path / "flow.png")
    assert (tmp_path / "flow.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["ccp", "isa", "isa-penalties", "profs", "vcpa", "mpa"])
def test_the_pictures_of_the_methods_are_drawn(picture, tmp_path, name):
    assert f"(figures/method-{name}.png)" in PAGES[f"method_{name.partition('-')[0]}"]
    assert (DOCS / "figures" / f"method-{name}.png").exists()
    picture().main([name], tmp_path)
    assert (tmp_path / f"method-{name}.png").stat().st_size > 10_000


def test_the_picture_of_ccp_shows_what_its_page_says(picture):
    ccp = picture("ccp")
    _, _, (first, second) = ccp.chain_of_problems()
    assert torch.pdist(first.ended).max() < 0.3 < torch.pdist(first.began).min()
    assert first.radius_ended > first.radius_began > second.radius_began


def test_the_picture_of_isa_shows_what_its_page_says(picture):
    isa = picture("isa")
    low, high = isa.band_of(5, 0.6)
    inside, above, below = (high + low) / 2, high + 0.1, low - 0.1
    positive, negative = isa.weights_of(5, 0.6, torch.tensor([inside, above, below]))
    assert positive[0] > positive[1] == positive[2]
    assert negative[0] == negative[1] == 1 > negative[2]
    late, _ = isa.weights_of(400, 0.6, torch.tensor([0.0, 0.5]))
    early, _ = isa.weights_of(50, 0.6, torch.tensor([0.0, 0.5]))
    assert (late < early).all()
    widths = [high - low for low, high in (isa.band_of(n, 0.6) for n in (1, 10, 100, 400))]
    assert widths == sorted(widths, reverse=True)
    assert isa.band_of(50, 0.2) < isa.band_of(50, 0.9)


def test_the_picture_of_isas_penalties_shows_what_its_page_says(picture):
    isa_penalties = picture("isa_penalties")
    near, far = torch.tensor([0.0]), torch.tensor([0.5])
    plain, early, late = (isa_penalties.pull_on(seen, torch.cat([near, far])).tolist() for seen in (None, 50, 700))
    assert plain[1] < early[1] + 1e-3 < 0.01 < 1 < late[1]
    assert late[0] == pytest.approx(plain[0], rel=0.05)
    plain, early, late = (isa_penalties.push_on(seen, torch.tensor([-0.1, 0.3])).tolist() for seen in (None, 50, 700))
    assert max(early[0], late[0]) < plain[0] / 2
    assert min(early[1], late[1]) > plain[1]


def test_the_picture_of_profs_shows_what_its_page_says(picture):
    profs = picture("profs")
    drawn = profs.batches_drawn()
    for step, rows in enumerate(drawn.rows):
        held = drawn.representatives[step // drawn.steps_per_projection]
        assert set(rows[:3]) <= set(held)
        assert not set(rows[3:]) & set(held)
    assert all((a != b).all() for a, b in zip(drawn.representatives, drawn.representatives[1:], strict=False))
    every, kept = profs.pairs_left()
    assert (kept[4:] == 0).all()
    assert ((kept == every) | (kept == 0)).all()
    assert ((kept[:4] == 1).sum(1) == (kept[:4] == -1).sum(1)).all()


def test_the_picture_of_vcpa_shows_what_its_page_says(picture):
    vcpa = picture("vcpa")
    drawn = vcpa.gaussians()
    assert (drawn.mu[0] == 0).all()
    assert (drawn.sigma[0] == 1).all()
    assert (drawn.uncertainty[4:12, 2] > drawn.uncertainty[4:12, :2].amax(1)).all()
    assert (drawn.uncertainty[-1] < drawn.uncertainty[0] / 2).all()
    last = torch.nn.functional.normalize(drawn.mu[-1], dim=1)
    nearest = (last @ vcpa.at_angles(torch.tensor([80.0, 200.0, 320.0])).T).argmax(1)
    assert nearest.tolist() == [0, 1, 2]


def test_the_picture_of_mpa_shows_what_its_page_says(picture):
    mpa = picture("mpa")
    one, two = mpa.fitted_with(1), mpa.fitted_with(2)
    own = one.labels == 0
    alone = (one.embeddings[own] @ one.proxies[0].T).amax(1)
    assert (alone < -0.6).sum() == 9  # the half of the class that has no proxy of its own
    assert ((two.embeddings[own] @ two.proxies[0].T).amax(1) > 0.5).all()


def test_the_picture_of_claims_and_its_page_have_what_the_runs_say():
    drawn = module(DOCS / "figures" / "draw_claims.py")
    with Image.open(DOCS / "figures" / "claims.png") as picture:
        told = picture.text["Description"]
    gains = {claim.title: drawn.in_words(claim.gain()) for claim in drawn.CLAIMS}
    assert told == "; ".join(f"{title}: {gain}" for title, gain in gains.items()), "python docs/figures/draw_claims.py"
    missing = [title for title, gain in gains.items() if gain not in PAGES["choosing"]]
    assert not missing, f"docs/choosing.md does not have the gain of {missing}"


def test_the_picture_of_long_training_has_what_the_runs_say():
    drawn = module(DOCS / "figures" / "draw_long_training.py")
    with Image.open(DOCS / "figures" / "long-training.png") as picture:
        assert picture.text["Description"] == drawn.told(), "python docs/figures/draw_long_training.py"
    assert "(figures/long-training.png)" in PAGES["results"]
    assert "ISA, rate halved every 10: Proxy-ISA" in drawn.told()


def test_the_picture_of_products_has_what_the_runs_say():
    drawn = module(DOCS / "figures" / "draw_products.py")
    with Image.open(DOCS / "figures" / "products.png") as picture:
        assert picture.text["Description"] == drawn.told(), "python docs/figures/draw_products.py"
    assert "(figures/products.png)" in PAGES["results"]
    in_words = module(DOCS / "figures" / "draw_claims.py").in_words
    for part in drawn.PARTS:
        for score, flip in product(("R@1", "MAP@R"), (False, True)):
            gain = drawn.gain(part, score, flip=flip)
            said = in_words(gain) if isinstance(gain, drawn.Difference) else f"{100 * gain:+.1f}"
            assert said in PAGES["results"], f"docs/results.md does not have the {score} of {part.title}"
