"""One decoded image into an index."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.errors import DataError
from nearkin.index import Index, calibration
from nearkin.index.uploads import Stored, store


def test_an_image_is_stored_once_with_what_is_said_of_it(model, images, tmp_path):
    index = Index.create(tmp_path / "birds.index", model)
    index.add(images)
    pixels = np.random.default_rng(0).integers(0, 255, (9, 7, 3), dtype=np.uint8)
    assert store(index, pixels, "robin", {"year": "2020", "place": "garden"}) == Stored(20, True)
    assert store(index, pixels.copy(), None, {}) == Stored(20, False)
    item = index.get(20)
    assert (item.label, item.path, item.columns) == ("robin", None, {"year": 2020, "place": "garden"})
    assert index.search(pixels, k=1)[0].id == 20
    np.testing.assert_array_equal(index.vectors([20]), model.encode(pixels))
    assert store(index, pixels[::-1], "wren", {"year": "2021"}) == Stored(21, True)
    with pytest.raises(DataError, match="holds numbers"):
        store(index, pixels[:5], "wren", {"year": "old"})
    assert len(index) == 22
    index.remove([20])
    assert store(index, pixels, None, {}) == Stored(22, True)  # a number is never used twice


def test_a_few_more_labels_make_no_other_curve_and_many_do(model, images, write_images, tmp_path, monkeypatch):
    index = Index.create(tmp_path / "birds.index", model)
    index.add(write_images(tmp_path / "many", per_kind=30))
    fits = []
    fit = calibration.fit_own
    monkeypatch.setattr(calibration, "fit_own", lambda *given: fits.append(len(given[1])) or fit(*given))
    rng = np.random.default_rng(0)
    for _ in range(13):
        store(index, rng.integers(0, 255, (4, 4, 3), dtype=np.uint8), "kind 1", {})
    assert fits == [126, 132 + 1]
    store(index, rng.integers(0, 255, (4, 4, 3), dtype=np.uint8), None, {})
    assert len(fits) == 2
