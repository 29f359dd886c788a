from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from nearkin.data import duplicates
from nearkin.data.duplicates import find_duplicates
from nearkin.data.images import decode_bytes


def photo(seed: int, height: int = 150, width: int = 200) -> Image.Image:
    """Blurred shapes of many sizes, as photographs have them."""
    rng = np.random.default_rng(seed)
    pixels = np.zeros((height, width, 3))
    for cells, weight in ((3, 90), (8, 50), (20, 25)):
        coarse = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        pixels += weight * (np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)) / 255 - 0.5)
    return Image.fromarray((pixels + 128).clip(0, 255).astype(np.uint8))


def again(image: Image.Image, kind: str = "JPEG", **options: object) -> np.ndarray:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return decode_bytes(buffer.getvalue(), path=Path("copy"))


def test_photos_saved_anew_resized_and_brightened_are_found_among_others():
    images = [np.asarray(photo(seed)) for seed in range(60)]
    copies = {
        0: again(photo(0), quality=40),
        1: again(photo(1).resize((100, 75)), quality=80),
        2: again(photo(2).resize((400, 300)), "PNG"),
        3: again(ImageEnhance.Brightness(photo(3)).enhance(1.15)),
        4: images[4],
    }
    images += copies.values()
    found = find_duplicates(images, np.arange(len(images)))
    assert found[0] == [[original, 60 + place] for place, original in enumerate(copies)]
    assert found[1]


def test_within_one_class_only_identical_ones_count():
    images = [np.asarray(photo(0)), again(photo(0), quality=60), np.asarray(photo(1)), np.asarray(photo(1))]
    assert find_duplicates(images, np.array([5, 5, 5, 5]))[0] == [[2, 3]]
    assert find_duplicates(images, np.array([5, 6, 5, 5]))[0] == [[0, 1], [2, 3]]


def test_a_picture_in_many_places_is_one_group():
    images = [np.asarray(photo(0))] * 3 + [again(photo(0), quality=70), np.asarray(photo(1))]
    assert find_duplicates(images, np.array([0, 0, 1, 1, 1]))[0] == [[0, 1, 2, 3]]


def test_plain_images_are_the_same_only_if_they_are_equal():
    plain = [np.full((40, 40, 3), value, np.uint8) for value in (255, 255, 254, 0)]
    assert find_duplicates(plain, np.arange(4))[0] == [[0, 1]]


def test_a_thousand_copies_do_not_stop_the_search():
    images = [np.zeros((40, 40, 3), np.uint8)] * 1000 + [np.asarray(photo(0)), again(photo(0))]
    found = find_duplicates(images, np.arange(len(images)))
    assert found[1]
    assert [len(group) for group in found[0]] == [1000, 2]


def test_too_many_pairs_end_the_search(monkeypatch):
    monkeypatch.setattr(duplicates, "MAX_PAIRS", 3)
    monkeypatch.setattr(duplicates, "_BLOCK", 2)
    images = [again(photo(0), quality=50 + 5 * step) for step in range(6)]
    assert not find_duplicates(images, np.arange(6))[1]


def test_different_photos_of_a_large_set_are_told_apart():
    images = [np.asarray(photo(seed, 40, 50)) for seed in range(600)]
    assert find_duplicates(images, np.arange(600))[0] == []


@pytest.mark.parametrize("count", [0, 1])
def test_few_images(count):
    assert find_duplicates([np.asarray(photo(0))] * count, np.arange(count))[0] == []
