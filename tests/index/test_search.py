"""From queries to hits: crops and arrays, what is left out, deep groups, re-ranking; compared with plain rankings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import nearkin
from nearkin.errors import DataError, RecipeError
from nearkin.index import Index
from nearkin.index.search import SearchContext, cropped


@pytest.fixture
def make(tmp_path, model):
    """What is searched in an index of so many labels, of which all near the first axis have the first."""

    def make(labels, allowed=None):
        rng = np.random.default_rng(0)
        vectors = rng.normal(size=(len(labels), 6)).astype(np.float32)
        vectors[:, 0] += np.where(np.array(labels) == "near", 9, 0)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        encoder = replace(model, embed=lambda images, batch_size: vectors[[int(image[0, 0, 0]) for image in images]])
        index = Index.create(tmp_path / "index", encoder)
        index.add([np.full((8, 8, 3), place, np.uint8) for place in range(len(labels))], labels)
        index.search(0)
        return SearchContext(index._vectors, index._engine, index._items, None, "cosine", allowed), vectors

    return make


def in_order(vectors, query):
    return np.argsort(-(vectors.astype(np.float64) @ query), kind="stable").tolist()


def test_what_is_excluded_of_one_query_is_not_of_another(make):
    searched, vectors = make(["near"] * 30)
    queries = np.eye(6)[:2]
    orders = [in_order(vectors, query) for query in queries]
    excluded = [set(orders[0][:3]), set()]
    found = list(searched.hits(queries, excluded, 5))
    assert [hit.id for hit in found[0]][:5] == orders[0][3:8]
    assert [hit.id for hit in found[1]][:5] == orders[1][:5]


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_a_group_behind_many_hits_of_another_is_found(make, wanted):
    searched, vectors = make(["near"] * 100 + ["far", "farther"])
    (found,) = searched.hits(np.eye(6)[:1], [set()], wanted, "label")
    order = in_order(vectors, np.eye(6)[0])
    nearest = [min(order.index(row) for row in rows) for rows in (range(100), [100], [101])]
    assert [hit.id for hit in found][:wanted] == [order[rank] for rank in sorted(nearest)][:wanted]


def test_nothing_where_no_row_is_allowed(make):
    searched, _ = make(["near"] * 4, np.empty(0, dtype=np.int64))
    assert list(searched.hits(np.eye(6)[:2], [set(), set()], 3)) == [[], []]


@pytest.fixture
def index(images, model, tmp_path):
    made = Index.create(tmp_path / "i", model)
    made.add(images)
    return made


def ids(hits):
    return [hit.id for hit in hits]


@pytest.mark.parametrize("size", [(1, 1), (7, 40), (40, 7)])
def test_an_image_that_shows_nothing_is_refused(index, size):
    small = np.zeros((*size, 3), dtype=np.uint8)
    for call in (index.search, index.classify, lambda image: index.search([image, 3])):
        with pytest.raises(DataError, match=f"{size[1]} × {size[0]} pixels.*at least 8"):
            call(small)
    large = np.random.default_rng(0).integers(0, 256, (100, 100, 3), dtype=np.uint8)
    assert index.search(large, crop=[0, 0, 0.5, 0.08])
    with pytest.raises(DataError, match="at least 8"):
        index.search(large, crop=[0, 0, 0.5, 0.07])


def test_pages_filters_groups_and_several_queries(index):
    everything = index.search(4, k=100)
    assert len(everything) == 19
    assert 4 not in ids(everything)  # an item does not find itself
    pages = [index.search(4, k=5, offset=offset) for offset in (0, 5, 10, 15)]
    assert [each for page in pages for each in ids(page)] == ids(everything)
    assert index.search([4, 7], k=5)[0] == everything[:5]
    assert {hit.label for hit in index.search(4, k=50, where={"label": ["kind 1"]})} == {"kind 1"}
    grouped = index.search(4, k=4, group_by="label")
    assert len({hit.label for hit in grouped}) == 4
    assert grouped[0] == everything[0]
    assert 9 not in ids(index.search(like=[9], k=5))


def test_an_empty_index_and_a_single_item_are_no_trouble(model, tmp_path, images):
    empty = Index.create(tmp_path / "empty", model)
    assert empty.search(np.ones(6)) == []
    empty.add(sorted(images.rglob("*.png"))[0])
    assert len(empty.search(np.ones(6))) == 1


def test_an_index_refuses_the_same_run_with_other_options_and_loads_its_own(trained, photos, tmp_path):
    plain, flipped = nearkin.load(trained, device="cpu"), nearkin.load(trained, device="cpu", flip=True, eval_size=40)
    made = Index.create(tmp_path / "flipped", flipped)
    made.add(photos)
    with pytest.raises(DataError, match=r"another encoder .*flip True, eval_size 40\)"):
        Index.open(tmp_path / "flipped", plain)
    opened = Index.open(tmp_path / "flipped")
    image = sorted(photos.rglob("*.png"))[0]
    assert opened.search(image, k=1)[0].score == pytest.approx(1, abs=1e-5)
    assert opened.model.identity == flipped.identity
    assert opened.status().model_options == {"flip": True, "eval_size": 40}


def test_a_crop_is_cut_from_the_upright_image_to_the_pixel(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)
    np.testing.assert_array_equal(cropped(pixels, [0, 0, 1, 1]), pixels)
    for x, y, width, height in ((3, 5, 20, 30), (52, 36, 1, 1), (0, 0, 53, 1)):
        found = cropped(pixels, [x / 53, y / 37, width / 53, height / 37])
        np.testing.assert_array_equal(found, pixels[y : y + height, x : x + width])
    assert cropped(pixels, [0.999, 0.999, 0.0001, 0.0001]).shape == (1, 1, 3), "a pixel at least"
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(pixels).rotate(90, expand=True).save(tmp_path / "turned.png", exif=exif)
    np.testing.assert_array_equal(cropped(tmp_path / "turned.png", [3 / 53, 0, 20 / 53, 1]), pixels[:, 3:23])


@pytest.mark.parametrize(
    "crop",
    [
        *([0, 0, 1], [0, 0, 1, 1, 1], [0, 0, 1, float("nan")], [0, 0, 20, 20]),
        *([0, 0, 0, 1], [0, 0, 1, 0], [0.5, 0, 0.51, 1], [0, 0.5, 1, 0.51], [-0.1, 0, 1, 1], [0, -0.1, 1, 1]),
    ],
)
def test_what_lies_outside_is_refused(crop):
    with pytest.raises(RecipeError, match="crop must"):
        cropped(np.zeros((8, 8, 3), dtype=np.uint8), crop)


def test_every_image_of_a_query_is_cropped_and_nothing_else_can_be(index, images):
    first, second = (Image.open(images / "kind 0" / "1.png"), Image.open(images / "kind 2" / "3.png"))
    beside = Image.new("RGB", (first.width + second.width, first.height))
    beside.paste(first, (0, 0))
    beside.paste(second, (first.width, 0))
    for crop, kind, name in (([0, 0, 0.5, 1], "kind 0", "1.png"), ([0.5, 0, 0.5, 1], "kind 2", "3.png")):
        for hits in index.search([beside, np.array(beside)], k=1, crop=crop):
            assert hits[0].path == str(images / kind / name)
    for query in (3, index.vectors([3])[0], [beside, 3], None):
        with pytest.raises(RecipeError, match="crop is a part of an image"):
            index.search(query, crop=[0, 0, 0.5, 1], like=[1])


def test_an_array_is_one_query_or_several_by_its_dimensions(index, images):
    files = [images / "kind 0" / "1.png", images / "kind 2" / "3.png", images / "kind 3" / "0.png"]
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    vectors = np.stack([index.vectors([item])[0] for item in (1, 13, 15)])
    for several in (pixels, list(pixels), vectors, list(vectors), files, [1, *vectors[1:]]):
        found = index.search(several, k=2)
        assert len(found) == 3
        assert all(len(hits) == 2 for hits in found)
    assert [hits[0].path for hits in index.search(pixels, k=1)] == list(map(str, files))
    assert [hits[0].id for hits in index.search(vectors, k=1)] == [1, 13, 15]
    for one in (pixels[1], vectors[1]):
        assert index.search(one, k=1)[0].id == 13
    assert len(index.search(pixels[:1], k=1)) == 1
    assert index.search(pixels[:1], k=1)[0][0].id == 1, "one of several stays one of several"
