"""A part of an image as a query. How queries are ranked is in tests/contracts/test_engines.py."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from nearkin.errors import RecipeError
from nearkin.index.index import Index
from nearkin.index.queries import cropped


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


def test_every_image_of_a_query_is_cropped_and_nothing_else_can_be(tmp_path, model, images):
    index = Index.create(tmp_path / "index", model)
    index.add(images)
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


def test_an_array_is_one_query_or_several_by_its_dimensions(tmp_path, model, images):
    index = Index.create(tmp_path / "index", model)
    index.add(images)
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
