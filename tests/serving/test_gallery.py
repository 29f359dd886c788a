"""The gallery in a real browser: what people see and do, from end to end, with a stand-in encoder on drawn shapes."""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import re
import shutil
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import uvicorn
from PIL import Image, ImageDraw

from nearkin.index import Index
from nearkin.index.corrections import corrections, withdraw
from nearkin.runs.model import Model
from nearkin.serving.app import create_app
from nearkin.serving.routes import WEB
from nearkin.serving.settings import Settings

COLOURS = {"red": "#d02020", "green": "#20a040", "blue": "#2040d0", "yellow": "#e0c020", "violet": "#9030c0"}
PER_KIND = 12
KEY = "a key for the tests"

browsers = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="there is no chromium to look at the gallery with"
)


def shape(colour, number, size=96):
    """A shape of one colour on white, another place and form for every number."""
    image = Image.new("RGB", (size, size), "#f4f4f0")
    pen = ImageDraw.Draw(image)
    left, top = 8 + (number * 5) % 20, 8 + (number * 7) % 20
    box = (left, top, left + 56, top + 56)
    [pen.ellipse, pen.rectangle, lambda place, fill: pen.pieslice(place, 20, 320, fill=fill)][number % 3](
        box, fill=COLOURS[colour]
    )
    return image


def saved(image, kind="PNG"):
    content = io.BytesIO()
    image.save(content, kind)
    return content.getvalue()


def embed(images, batch_size):
    """How much of each colour an image has, less white: what a shape's colour is, wherever it lies."""
    rows = [(255.0 - np.asarray(image, dtype=np.float32)).mean(axis=(0, 1)) for image in images]
    vectors = np.array(rows, dtype=np.float32).reshape(-1, 3)
    vectors = np.concatenate([vectors, vectors[:, [1, 2, 0]] - vectors], axis=1) + 0.01
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def index_of_shapes(root, labels, count):
    """An index of ``count`` shapes of each colour, with the label that ``labels`` has for the colour."""
    rows = [["path", "label", "year"]]
    for colour, label in labels.items():
        for number in range(count):
            shape(colour, number).save(root / f"{colour}-{number}.png")
            rows.append([f"{colour}-{number}.png", label, str(2000 + number)])
    with open(root / "shapes.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    model = Model(Path("nowhere"), "shapes", 6, "cosine", 64, embed, was_trained_on=lambda _: False)
    made = Index.create(root / "shapes.index", model)
    made.add(root / "shapes.csv")
    return made


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    made = index_of_shapes(tmp_path_factory.mktemp("shapes"), {colour: colour for colour in COLOURS}, PER_KIND)
    yield made
    made.close()


@pytest.fixture(scope="module")
def nested(tmp_path_factory):
    """An index whose labels are nested folders, and its address."""
    labels = {
        "yellow": "Fruit/Citrus/Lemon",
        "green": "Fruit/Citrus/Lime",
        "violet": "Fruit/Plum",
        "red": "Vegetables/Pepper/Bell",
        "blue": "Milk",
    }
    made = index_of_shapes(tmp_path_factory.mktemp("nested"), labels, 4)
    with serving(made) as (address, _):
        yield made, address
    made.close()


@contextlib.contextmanager
def serving(index, **settings):
    """A server at a port of its own, in a thread; gives its address and how to end it."""
    place = socket.socket()
    place.bind(("127.0.0.1", 0))
    app = create_app(index, Settings(decoders=1, **settings))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.02)

    def stop():
        server.should_exit = True
        thread.join(20)

    try:
        yield f"http://127.0.0.1:{place.getsockname()[1]}/", stop
    finally:
        stop()
        place.close()


@pytest.fixture(scope="module")
def url(index):
    with serving(index) as (address, _):
        yield address


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="the gallery's tests need playwright")
    with api.sync_playwright() as player:
        opened = player.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser):
    """Opens a page; at the end nothing may have gone wrong in it, and nothing asked of another server."""
    pages = []

    def begin(address, *, expect=(), width=1280, height=800, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce", **options)
        page = context.new_page()
        page.set_default_timeout(15_000)
        wrong, asked = [], []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        pages.append((context, wrong, asked, urlsplit(address).netloc, expect))
        page.goto(address)
        return page

    yield begin
    for context, wrong, asked, host, expect in pages:
        context.close()
        unexpected = [line for line in wrong if not any(re.search(each, line) for each in expect)]
        assert not unexpected
        assert {urlsplit(each).netloc for each in asked if not each.startswith(("blob:", "data:"))} == {host}


def upload(page, image, name="mine.png"):
    content = image if isinstance(image, bytes) else saved(image)
    page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": content})


def found(page):
    """Labels of the photos that are shown, once the search is done."""
    page.wait_for_selector("#results-body:not([aria-busy]) .grid:not(.waiting) .tile")
    return page.locator(".tile .name").all_inner_texts()


def searched(page, act):
    """Do something that searches, and wait for what it finds."""
    with page.expect_response(lambda answer: answer.url.endswith("/search")):
        act()
    return found(page)


def share(labels, label, first=10):
    return sum(each == label for each in labels[:first]) / first


@browsers
def test_an_upload_shows_its_neighbours_with_how_sure_they_are(visit, url):
    page = visit(url)
    page.wait_for_selector(".samples img")
    assert page.locator("#about").inner_text().split("\n")[0] == "shapes.index"
    upload(page, shape("blue", 40))
    labels = found(page)
    assert len(labels) == 48
    assert labels[:PER_KIND] == ["blue"] * PER_KIND
    assert page.locator(".verdict strong").inner_text() == "blue"
    assert re.fullmatch(r"(> )?\d+ %", page.locator(".tile .percent").first.inner_text())
    widths = page.locator(".tile .meter i").evaluate_all("bars => bars.map(bar => parseFloat(bar.style.width))")
    assert widths == sorted(widths, reverse=True)
    assert "blue-" in page.locator(".tile .path").first.inner_text()
    page.click("#more")
    page.wait_for_selector(f".tile[data-at='{len(COLOURS) * PER_KIND - 1}']")
    assert page.locator(".tile").count() == len(COLOURS) * PER_KIND
    assert page.locator("#more").is_hidden()
    page.reload()  # the photo itself is not kept
    page.wait_for_selector(".hero")
    assert "reload" in page.locator(".hero p").inner_text()  # and the page says so


@browsers
def test_without_confidences_a_label_is_neither_shown_as_sure_nor_proposed(visit, tmp_path):
    made = index_of_shapes(tmp_path, {"red": "red", "blue": "blue"}, 4)
    assert made.status().confidence is None
    with serving(made) as (address, _):
        page = visit(address)
        page.wait_for_selector(".hero")
        upload(page, shape("blue", 40))
        found(page)
        assert page.locator(".verdict").inner_text().split("\n") == ["Nearest class; how sure is not known", "blue"]
        assert "none" in page.locator(".verdict").get_attribute("class"), "in the plain colours"
        page.click("#add-photo")
        assert page.locator("#add-label").input_value() == ""
    made.close()


@browsers
def test_paste_and_drop(visit, url):
    page = visit(url)
    page.wait_for_selector(".hero")
    for event, colour in (("paste", "green"), ("drop", "red")):
        page.evaluate(
            """([event, text]) => {
              const data = new DataTransfer();
              const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
              data.items.add(new File([bytes], "copied.png", { type: "image/png" }));
              const made = event === "paste" ? new ClipboardEvent(event, { clipboardData: data, bubbles: true })
                : new DragEvent(event, { dataTransfer: data, bubbles: true, cancelable: true });
              document.body.dispatchEvent(made);
            }""",
            [event, base64.b64encode(saved(shape(colour, 50))).decode()],
        )
        page.wait_for_function("label => document.querySelector('.verdict strong')?.textContent === label", arg=colour)
        assert share(found(page), colour) == 1


@browsers
def test_a_box_searches_for_a_part_and_can_be_moved_by_keys(visit, url):
    both = Image.new("RGB", (192, 96))
    both.paste(shape("red", 41), (0, 0))
    both.paste(shape("blue", 41), (96, 0))
    page = visit(url)
    page.wait_for_selector(".hero")
    upload(page, both)
    found(page)
    frame = page.locator("#query .frame").bounding_box()

    def drag(left, right):
        page.mouse.move(frame["x"] + frame["width"] * left, frame["y"] + frame["height"] * 0.05)
        page.mouse.down()
        page.mouse.move(frame["x"] + frame["width"] * right, frame["y"] + frame["height"] * 0.95, steps=4)
        page.mouse.up()

    assert share(searched(page, lambda: drag(0.52, 0.99)), "blue") == 1
    assert "crop=0.52" in page.url
    assert share(searched(page, lambda: drag(0.01, 0.48)), "red") == 1
    page.locator("#query .box").focus()
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('.verdict strong')?.textContent === 'blue'")
    page.click("#whole")
    page.wait_for_selector("#part")
    assert "crop" not in page.url


@browsers
def test_filters_narrow_what_is_found_and_stand_in_the_address(visit, url, index):
    page = visit(f"{url}#id=0")
    assert share(found(page), "red") == 1
    page.keyboard.press("/")
    page.keyboard.type("gre")
    assert page.locator("#labels .name").all_inner_texts() == ["green"]
    assert set(searched(page, lambda: page.keyboard.press("Enter"))) == {"green"}
    page.fill("[aria-label='year from']", "2003")
    page.fill("[aria-label='year to']", "2006")
    labels = searched(page, lambda: page.keyboard.press("Tab"))
    assert labels == ["green"] * 4
    assert page.locator("#filter-count").text_content() == "2"
    page.reload()
    assert found(page) == ["green"] * 4
    assert len(searched(page, lambda: page.click("#clear-filters"))) == 48
    labels = searched(page, lambda: page.locator("#group").check())
    assert sorted(labels) == sorted(COLOURS)
    searched(page, lambda: page.go_back())
    assert len(found(page)) == 48
    page.evaluate("location.hash = '#id=0&min=0.9'")
    page.wait_for_function("() => document.querySelector('#min-text').textContent === '90 %'")
    sure = [hit for hit in index.search(0, 60) if hit.confidence >= 0.9]
    page.wait_for_function("n => document.querySelectorAll('.grid:not(.waiting) .tile').length === n", arg=len(sure))
    page.evaluate("location.hash = '#id=0&range.year=1990..1991'")
    page.wait_for_selector("text=No photo meets these filters")


def labels_in_filter(page):
    return page.locator("#labels .name").all_inner_texts()


def ids_shown(page):
    page.wait_for_selector("#results-body:not([aria-busy]) .grid:not(.waiting) .tile")
    return [int(id) for id in page.locator(".tile").evaluate_all("tiles => tiles.map(tile => tile.dataset.id)")]


def browsed(page, act):
    """Tick or change a filter without a query, and wait for the photos that meet it."""
    with page.expect_response(lambda answer: answer.url.endswith("/items/browse")):
        act()
    return ids_shown(page)


@browsers
def test_a_filter_without_a_query_shows_what_meets_it(visit, url, index):
    page = visit(url)
    page.wait_for_selector(".samples img")
    assert page.locator("#sure").is_hidden()  # nothing to be sure of without a query
    reds = index.ids({"label": "red"}).tolist()
    assert browsed(page, lambda: page.locator("#labels label", has_text="red").click()) == reds
    assert page.locator("#results-note").inner_text() == f"{PER_KIND} photos"
    assert page.locator(".tile .percent").count() == 0
    page.locator(".tile .photo").first.click()
    assert page.locator("#detail dt", has_text="Similarity").count() == 0
    page.keyboard.press("Escape")
    page.reload()
    assert ids_shown(page) == reds
    page.evaluate("location.hash = '#range.year=2000..2010'")
    page.wait_for_function("() => document.querySelectorAll('.grid:not(.waiting) .tile').length === 48")
    everything = index.ids({"year": (2000, 2010)}).tolist()
    assert ids_shown(page) == everything[:48]
    page.click("#more")
    page.wait_for_selector(f".tile[data-at='{len(everything) - 1}']")
    assert ids_shown(page) == everything
    assert page.locator("#more").is_hidden()
    page.click("#clear-filters")
    page.wait_for_selector(".samples img")
    page.evaluate("location.hash = '#label=nothing'")
    page.wait_for_selector("text=No photo meets these filters")


@browsers
def test_nested_labels_show_their_last_part_and_the_filter_is_a_tree(visit, nested):
    index, address = nested
    page = visit(f"{address}#id=0")
    found(page)
    first = page.locator(".tile").first
    assert first.locator(".name").inner_text() == "Lemon"
    assert first.locator(".above").inner_text() == "Fruit/Citrus"
    size = "element => parseFloat(getComputedStyle(element).fontSize)"
    assert first.locator(".above").evaluate(size) < first.locator(".name").evaluate(size)
    page.goto(address)
    page.wait_for_selector(".samples img")
    assert labels_in_filter(page) == ["Fruit", "Milk", "Vegetables"]
    page.click("[aria-label='Fruit']")
    assert labels_in_filter(page) == ["Fruit", "Citrus", "Plum", "Milk", "Vegetables"]
    citrus = index.ids({"label": ["Fruit/Citrus/Lemon", "Fruit/Citrus/Lime"]}).tolist()
    assert browsed(page, lambda: page.locator("#labels label", has_text="Citrus").click()) == citrus
    assert page.locator("#results-title").inner_text() == "Citrus"
    assert page.locator("#filter-count").text_content() == "1"
    state = "input => [input.checked, input.indeterminate]"
    assert page.locator("[data-pick='Fruit/']").evaluate(state) == [False, True]
    assert page.locator("[data-pick='Fruit/Citrus/']").evaluate(state) == [True, False]
    page.click("[aria-label='Citrus']")
    limes = browsed(page, lambda: page.locator("#labels label", has_text="Lemon").click())
    assert limes == index.ids({"label": "Fruit/Citrus/Lime"}).tolist()
    page.reload()
    assert ids_shown(page) == limes
    assert page.locator("[data-pick='Fruit/Citrus/']").evaluate(state) == [False, True]
    page.click("[aria-label='Fruit']")
    assert labels_in_filter(page) == ["Fruit", "Milk", "Vegetables"]
    page.click("#clear-filters")
    page.wait_for_selector(".samples img")
    page.keyboard.press("/")
    page.keyboard.type("bell")
    assert labels_in_filter(page) == ["Vegetables", "Pepper", "Bell"]
    assert (
        browsed(page, lambda: page.keyboard.press("Enter")) == index.ids({"label": "Vegetables/Pepper/Bell"}).tolist()
    )
    page.locator("[data-pick='Vegetables/']").focus()
    page.keyboard.press("ArrowLeft")
    assert labels_in_filter(page) == ["Vegetables"]
    page.keyboard.press("ArrowRight")
    assert labels_in_filter(page) == ["Vegetables", "Pepper", "Bell"]


@browsers
def test_the_last_part_of_a_label_is_enough_to_correct_with(visit, nested):
    index, address = nested
    page = visit(f"{address}#label=Milk")
    ids_shown(page)
    page.locator(".tile .photo").first.focus()
    page.keyboard.press("c")
    page.fill("#new-label", "Plum")
    page.keyboard.press("Enter")
    page.wait_for_selector(".tile .corrected-label")
    (correction,) = corrections(index)
    try:
        assert (correction.was, correction.label) == ("Milk", "Fruit/Plum")
    finally:
        withdraw(index, correction.id)


@browsers
def test_copies_of_one_photo_are_one_tile_that_opens(visit, nested):
    index, address = nested
    photo = shape("red", 30, size=160)
    pixels = [photo, photo.resize((96, 96)), Image.open(io.BytesIO(saved(photo, "JPEG")))]
    ids = [index.add_pixels(np.asarray(image), "Vegetables/Pepper/Bell", {}).id for image in pixels]
    try:
        page = visit(address)
        page.wait_for_selector(".samples img")
        searched(page, lambda: upload(page, photo))
        before = ids_shown(page)
        assert len({*before} & {*ids}) == 1
        badge = page.locator(".tile .copies")
        assert badge.all_inner_texts() == ["3 copies"]
        badge.click()
        page.wait_for_function("n => document.querySelectorAll('.tile').length === n", arg=len(before) + 2)
        opened = ids_shown(page)
        at = opened.index(({*before} & {*ids}).pop())
        assert sorted(opened[at : at + 3]) == sorted(ids)
        assert page.evaluate("document.activeElement.className") == "copies"
        page.locator(".tile .photo").nth(at).click()  # and all of them can be opened
        page.keyboard.press("ArrowRight")
        assert page.locator("#detail dt:text-is('Item') + dd").inner_text() == str(opened[at + 1])
        page.keyboard.press("Escape")
        badge.click()
        page.wait_for_function("n => document.querySelectorAll('.tile').length === n", arg=len(before))
        assert ids_shown(page) == before
    finally:
        index.remove(ids)


@browsers
def test_a_search_never_claims_more_of_a_label_than_the_index_has(visit, url, index):
    page = visit(url)
    page.wait_for_selector(".samples img")
    items = [{**vars(item), "score": 0.9, "confidence": 0.97, "thumbnail": ""} for item in index.items(range(48))]
    answer = {"hits": items, "offset": 0, "k": 48, "more": True, "seconds": 0.001}
    guess = {"confidence": 0.97}
    page.route("**/search", lambda route: route.fulfill(json=answer | {"label": guess}))
    for label, count in (("red", PER_KIND), ("unheard of", 0), (None, 0)):
        guess["label"] = label
        searched(page, lambda: upload(page, shape("red", 40)))
        note = page.locator("#results-note").inner_text()
        assert note.startswith("48+ photos")
        assert (f"{count} of them" in note) == ("of them" in note) == (count > 0)


@browsers
def test_more_and_less_like_this_and_neighbours_of_a_hit(visit, url, index):
    page = visit(f"{url}#id=0")
    found(page)
    first_yellow = next(place for place, hit in enumerate(index.search(0, 60)) if hit.label == "yellow")
    if first_yellow >= 48:
        page.click("#more")
    page.locator(".tile .photo").nth(first_yellow).click()
    labels = searched(page, lambda: page.click("#more-like"))
    like = [int(each) for each in re.search(r"like=(\d+)", page.url).groups()]
    assert labels == [hit.label for hit in index.search(0, 48, like=like)]
    less = page.locator(".tile").nth(2)
    unlike = int(less.get_attribute("data-id"))
    less.hover()
    labels = searched(page, lambda: less.locator("[title^='Less']").click())
    assert labels == [hit.label for hit in index.search(0, 48, like=like, unlike=[unlike])]
    assert page.locator("#chips li").count() == 2
    searched(page, lambda: page.locator("#chips .unlike button").click())
    assert page.locator("#chips li").count() == 1
    page.locator(".tile .photo").first.click()
    near = int(page.locator(".tile").first.get_attribute("data-id"))
    searched(page, lambda: page.click("#find-kin"))
    assert f"id={near}" in page.url
    assert page.locator("#chips li").count() == 0


@browsers
def test_corrections_are_said_downloaded_and_taken_back(visit, url, index, tmp_path):
    page = visit(f"{url}#id=0&label=red")
    found(page)
    page.locator(".tile .photo").first.click()
    one = int(page.locator(".tile").first.get_attribute("data-id"))
    page.click("#correct-label")
    assert "red" in page.locator("#relabel label").inner_text()
    page.fill("#new-label", "crimson")
    page.keyboard.press("Enter")
    page.wait_for_selector(".tile .corrected-label")
    assert page.locator(".tile .name").first.inner_text() == "crimson red"
    others = [int(page.locator(".tile").nth(place).get_attribute("data-id")) for place in (1, 2)]
    for place in (1, 2):
        page.locator(".tile").nth(place).locator(".pick input").check()
    assert page.locator("#selected-count").inner_text() == "2 selected"
    page.click("#relabel-selection")
    page.click("#unknown-label")
    page.wait_for_function("() => document.querySelector('#corrections-count').textContent === '3'")
    page.keyboard.press("Escape")
    page.click("#open-corrections")
    with page.expect_download() as download:
        page.click("#download-manifest")
    rows = list(csv.DictReader(Path(download.value.path()).read_text("utf-8").splitlines()))
    paths = {index.get(id).path: id for id in (one, *others)}
    assert [row["label"] for row in rows if paths.get(row["path"]) == one] == ["crimson"]
    assert not [row for row in rows if paths.get(row["path"]) in others]
    assert len(rows) == len(COLOURS) * PER_KIND - 2
    for left in (2, 1, 0):
        page.locator("#corrections [aria-label^='Undo']").first.click()
        page.wait_for_function("n => document.querySelectorAll('#corrections li').length === n", arg=left)
    page.keyboard.press("Escape")
    assert page.locator(".tile .corrected-label").count() == 0


@browsers
def test_the_map_is_made_and_a_lasso_selects(visit, url, index):
    page = visit(f"{url}#view=map&id=0", expect=("GPU stall",))
    page.click("#make-map")
    page.wait_for_selector("#map")
    page.wait_for_timeout(400)
    canvas = page.locator("#map").bounding_box()
    page.click("#tool-lasso")
    corners = [(4, 4), (canvas["width"] - 4, 4), (canvas["width"] - 4, canvas["height"] - 4), (4, canvas["height"] - 4)]

    def lasso(points):
        points = [(canvas["x"] + x, canvas["y"] + y) for x, y in points]
        page.mouse.move(*points[0])
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*point, steps=3)
        page.mouse.up()

    lasso(corners)
    assert page.locator("#selected-count").inner_text() == f"{len(index)} selected"
    with page.expect_download() as download:
        page.click("#download-selection")
    rows = list(csv.DictReader(Path(download.value.path()).read_text("utf-8").splitlines()))
    assert {(row["path"], row["label"], row["year"]) for row in rows} == {
        (item.path, item.label, str(item.columns["year"])) for item in index.items(index.ids())
    }
    page.click("#clear-selection")
    lasso([(2, 200), (8, 200), (8, 208), (2, 208)])
    page.wait_for_selector("text=No photo in there")
    assert page.locator("#selection").is_hidden()
    page.locator("#map").focus()
    page.keyboard.press("a")
    assert page.locator("#selected-count").inner_text() == f"{len(index)} selected"
    labels = searched(page, lambda: page.click("#like-selection"))
    assert "like=" in page.url
    assert len(labels) > 0
    page.reload()
    found(page)
    page.locator(".tile .photo").first.click()
    page.click("#show-on-map")  # which then is loaded first
    page.wait_for_selector("#map")
    assert not page.locator(".toast").all_inner_texts()
    page.click("#zoom-fit")
    page.evaluate("location.hash = '#view=map&label=blue'")
    page.wait_for_selector(".legend [aria-pressed='true']")
    assert page.locator(".legend [aria-pressed='true'] span").inner_text() == "blue"


@browsers
def test_on_a_phone_names_on_the_map_do_not_overlap_and_stars_do_not_hide_points(visit, nested):
    """A crowd of points in forty groups, each with its proxy in the middle."""
    rng = np.random.default_rng(0)
    centres = rng.uniform(-10, 10, (40, 2))
    centres[:3] = (-10, -10), (10, 10), (0, 0)  # the middle of the map is in its middle
    groups = np.arange(800) % 40
    points = np.clip(centres[groups] + rng.normal(0, 0.2, (800, 2)), -10, 10)
    points[:40] = centres
    rows = np.concatenate(
        [np.column_stack([np.arange(800), points, groups]), np.insert(centres, [0, 2], [-1, 0], axis=1)]
    )
    rows[800:, 3] = np.arange(40)
    page = visit(nested[1], width=390, height=844, is_mobile=True, has_touch=True, expect=("GPU stall",))
    page.wait_for_selector(".samples img")
    page.route("**/map", lambda route: route.fulfill(body=rows.astype("<f4").tobytes()))
    page.route("**/map/labels", lambda route: route.fulfill(json=[f"Plants/Trees/Species {n}" for n in range(40)]))
    page.route("**/map/status", lambda route: route.fulfill(json={"state": "ready", "done": 0, "of": 0}))
    page.evaluate("location.hash = '#view=map'")
    page.wait_for_selector(".captions span")
    page.wait_for_timeout(300)
    assert re.fullmatch(r"Species \d+", page.locator(".captions span").first.inner_text())
    boxes = page.locator(".captions span, .tools .group").evaluate_all(
        """all => all.map((element) => element.getBoundingClientRect())
          .map(({left, right, top, bottom}) => [left, top, right, bottom])"""
    )
    chart = page.locator(".chart").bounding_box()
    assert len(boxes) > 8
    for number, (left, top, right, bottom) in enumerate(boxes):
        assert chart["x"] <= left < right <= chart["x"] + chart["width"]
        assert chart["y"] <= top < bottom <= chart["y"] + chart["height"]
        for other in boxes[:number]:
            assert left >= other[2] or other[0] >= right or top >= other[3] or other[1] >= bottom
    # The ink over the points around the middle: lines of a star, and none upon the point inside it.
    ink = page.evaluate(
        """() => {
          const canvas = document.querySelector(".chart .over");
          const scale = canvas.width / canvas.clientWidth;
          const [x, y] = [canvas.width / 2, canvas.height / 2 + 28 * scale].map(Math.round);
          const alpha = canvas.getContext("2d").getImageData(x - 12, y - 12, 25, 25).data.filter((_, n) => n % 4 === 3);
          return Array.from({ length: 25 }, (_, row) => Array.from(alpha.slice(25 * row, 25 * row + 25)));
        }"""
    )
    ink = np.array(ink) > 0
    assert ink.any()
    assert not ink[11:14, 11:14].any()


@browsers
def test_a_photo_is_added_from_the_query(visit, url, index):
    page = visit(url)
    page.wait_for_selector(".hero")
    upload(page, shape("violet", 61))
    found(page)
    page.click("#add-photo")
    assert page.input_value("#add-label") == "violet"
    page.fill("#add-label", "plum")
    page.keyboard.press("Enter")
    page.wait_for_selector(".toast")
    id = int(re.search(r"item (\d+)", page.locator(".toast").inner_text())[1])
    try:
        assert index.get(id).label == "plum"
        searched(page, lambda: page.click(".toast .link"))
        assert f"id={id}" in page.url
    finally:
        index.remove([id])


@browsers
def test_what_goes_wrong_is_said_with_what_to_do(visit, index):
    with serving(index, max_bytes=200_000) as (address, stop):
        page = visit(address, expect=(r"status of 4\d\d", "ERR_CONNECTION_REFUSED", "ERR_FAILED", "ERR_EMPTY"))
        page.wait_for_selector(".samples img")
        upload(page, b"\x89PNG\r\n\x1a\n and nothing more", "broken.png")
        page.wait_for_selector(".failed")
        assert "cannot be searched for" in page.locator(".failed h2").inner_text()
        assert page.locator(".failed p").inner_text().strip()
        assert page.locator("#query .no-preview").inner_text() == "broken.png"
        noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8))
        upload(page, noise, "large.png")
        page.wait_for_selector("#notice:not([hidden])")
        assert "smaller" in page.locator("#notice").inner_text()
        page.set_input_files("#file", {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"words"})
        assert "no image" in page.locator("#notice").inner_text()
        page.evaluate("location.hash = '#id=999999'")
        page.wait_for_selector("text=no item 999999")
        stop()
        page.evaluate("location.hash = '#id=1'")
        page.wait_for_selector("text=The server is gone")
        assert page.locator("#retry").is_visible()


@browsers
def test_the_keyboard_reaches_everything(visit, url):
    page = visit(f"{url}#id=0")
    found(page)
    focused = "document.activeElement.id || document.activeElement.className"
    seen = []
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(focused))
        if "photo" in seen[-1]:
            break
    assert {"home", "view-search", "view-map", "open-corrections", "open-help", "min", "group", "label-find"} <= set(
        seen
    )
    place = "Number(document.activeElement.closest('.tile').dataset.at)"
    across = page.evaluate("getComputedStyle(document.querySelector('.grid')).gridTemplateColumns.split(' ').length")
    for key, expected in (
        ("ArrowRight", 1),
        ("ArrowDown", 1 + across),
        ("ArrowLeft", across),
        ("End", 47),
        ("Home", 0),
    ):
        page.keyboard.press(key)
        assert page.evaluate(place) == expected
    page.keyboard.press("x")
    assert page.locator("#selected-count").inner_text() == "1 selected"
    page.keyboard.press("Escape")
    assert page.locator("#selection").is_hidden()
    page.keyboard.press("Enter")
    page.wait_for_selector("#detail[open]")
    page.keyboard.press("Escape")
    assert page.locator("#detail[open]").count() == 0
    assert page.evaluate(place) == 0
    page.keyboard.press("?")
    page.wait_for_selector("#help[open]")
    page.keyboard.press("Escape")
    page.locator(".tile .photo").first.focus()
    searched(page, lambda: page.keyboard.press("n"))


@browsers
def test_the_keys_of_the_gallery_work_in_an_opened_photo(visit, url):
    page = visit(f"{url}#id=0")
    found(page)
    ids = ids_shown(page)
    item = "#detail dt:text-is('Item') + dd"

    def opened(at):
        page.locator(".tile .photo").nth(at).click()
        page.wait_for_selector("#detail[open]")

    opened(0)
    for key, expected in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowDown", 3), ("ArrowLeft", 2), ("ArrowUp", 1)):
        page.keyboard.press(key)
        assert page.locator(item).inner_text() == str(ids[expected])
    for key, expected in (("End", 47), ("ArrowRight", 47), ("Home", 0), ("ArrowLeft", 0)):
        page.keyboard.press(key)
        assert page.locator(item).inner_text() == str(ids[expected])
    page.click("#next-photo")
    page.keyboard.press("Enter")  # the same button again
    assert page.locator(item).inner_text() == str(ids[2])
    page.keyboard.press("x")
    assert page.locator("#selected-count").inner_text() == "1 selected"
    assert page.locator("#select-photo").get_attribute("aria-pressed") == "true"
    page.keyboard.press("?")
    page.wait_for_selector("#help[open]")
    page.keyboard.press("Escape")
    assert page.locator("#detail[open]").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("#detail[open]").count() == 0
    assert page.locator("#selected-count").is_visible()  # the first Escape closes the photo alone
    opened(2)
    page.keyboard.press("c")
    page.wait_for_selector("#relabel[open]")
    page.keyboard.press("Escape")
    for key, address in (("+", f"like={ids[2]}"), ("-", "unlike="), ("n", "id=")):
        opened(2)
        searched(page, lambda key=key: page.keyboard.press(key))
        assert address in page.url
        assert page.locator("#detail[open]").count() == 0
    opened(1)
    page.keyboard.press("/")
    page.wait_for_function("() => document.activeElement.id === 'label-find'")
    page.keyboard.press("Escape")
    opened(1)
    page.keyboard.press("m")
    page.wait_for_selector("#map-view:not([hidden])")
    assert page.locator("#detail[open]").count() == 0


@browsers
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_in_one_direction_and_text_can_be_read(visit, url, scheme):
    page = visit(url, width=390, height=844, is_mobile=True, has_touch=True, color_scheme=scheme)
    wide = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
    page.wait_for_selector(".samples img")
    assert page.evaluate(wide) == 390
    upload(page, shape("yellow", 44))
    found(page)
    assert page.evaluate(wide) == 390
    page.tap("#fold")
    assert page.locator("#label-find").is_visible()
    assert page.evaluate(wide) == 390
    page.tap("#fold")
    page.locator(".tile .photo").nth(1).tap()
    page.wait_for_selector("#detail[open]")
    right = "all => Math.max(...all.map((one) => one.getBoundingClientRect().right))"
    assert page.locator("#detail button, #detail dd").evaluate_all(right) <= 390
    # Contrast of text and ground of what is said most, by the formula of WCAG 2.
    poor = page.evaluate(
        """() => {
          const light = (text) => {
            const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((value) => value / 255)
              .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const ground = (element) => {
            for (; element; element = element.parentElement) {
              const colour = getComputedStyle(element).backgroundColor;
              if (!/, 0\\)$|transparent|color\\(/.test(colour)) return colour;
            }
            return "rgb(255, 255, 255)";
          };
          const said = ".name, .percent, .path, .verdict *, .button, .hint, dt, dd, h1, .fold, #results-note";
          return [...document.querySelectorAll(said)]
            .filter((element) => element.textContent.trim() && element.checkVisibility())
            .map((element) => [light(getComputedStyle(element).color), light(ground(element)), element.outerHTML])
            .filter(([text, under]) => (Math.max(text, under) + 0.05) / (Math.min(text, under) + 0.05) < 4.5);
        }"""
    )
    assert poor == []


@browsers
def test_a_server_with_a_key_and_read_only_hides_what_cannot_be_done(visit, index):
    with serving(index, key=KEY, read_only=True) as (address, _):
        page = visit(f"{address}#key={KEY.replace(' ', '+')}&id=0", expect=("ERR_CONNECTION_REFUSED",))
        found(page)
        assert "key" not in page.url
        page.locator('.tile img[src^="blob:"]').first.wait_for()
        page.locator(".tile .photo").first.click()
        assert page.locator("#correct-label").count() == 0
        assert page.locator("#find-kin").is_visible()
        stranger = visit(address, expect=("status of 401", "ERR_CONNECTION_REFUSED"))
        stranger.wait_for_selector("#key[open]")
        stranger.fill("#api-key", KEY)
        stranger.keyboard.press("Enter")
        stranger.wait_for_selector(".samples img")


def test_only_the_gallery_s_own_files_are_given(client):
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|https?://", page.text)
    for name in sorted({path.name for path in WEB.iterdir()} - {"index.html"}):
        answer = client.get(f"/static/{name}")
        assert answer.status_code == 200
        assert answer.headers["x-content-type-options"] == "nosniff"
        for address in re.findall(r"https?://[^\s\"'`]+", answer.text):
            assert address.startswith("http://www.w3.org/2000/svg")
    for name in ("routes.py", "..%2froutes.py", "%2e%2e/app.py", "index.html", ""):
        assert client.get(f"/static/{name}").status_code == 404
