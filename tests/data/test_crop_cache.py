from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.data.loader import CropCache
from nearkin.data.transforms import transform_from

TRANSFORM = transform_from("mild", size=16)
CROP = 16 * 16 * 3


class Counting:
    """Images that count how often they are looked at."""

    def __init__(self):
        self.pixels = np.random.default_rng(0).integers(0, 256, (10, 24, 30, 3), dtype=np.uint8)
        self.asked = 0

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, row):
        self.asked += 1
        return self.pixels[row]


def crop_cache(budget):
    images = Counting()
    return images, CropCache(images, TRANSFORM, torch.device("cpu"), budget=budget, workers=1)


@pytest.mark.parametrize("budget, asked", [(7 * CROP, 7), (7 * CROP - 1, 14)])
def test_crops_are_made_once_as_far_as_there_is_room(budget, asked):
    images, kept = crop_cache(budget)
    rows = np.array([7, 3, 3, 9, 0, 1, 2])
    expected = np.stack([TRANSFORM.evaluate(images.pixels[row]) for row in rows])
    for batch_size in (3, 4):
        batches = list(kept.batches(rows, batch_size=batch_size))
        assert max(map(len, batches)) == batch_size
        assert np.array_equal(torch.cat(batches).numpy(), expected)
    assert images.asked == asked


def test_other_rows_have_crops_of_their_own_and_share_the_budget():
    images, kept = crop_cache(5 * CROP)
    first, second = np.arange(3), np.arange(4, 7)
    for rows in (first, second, first, second):
        crops = torch.cat(list(kept.batches(rows, batch_size=2)))
        assert np.array_equal(crops.numpy(), np.stack([TRANSFORM.evaluate(images.pixels[row]) for row in rows]))
    assert images.asked == 3 + 3 + 0 + 3


def test_what_was_broken_off_is_not_kept():
    images, kept = crop_cache(100 * CROP)
    next(kept.batches(np.arange(10), batch_size=2)).sum()
    before = images.asked
    assert len(torch.cat(list(kept.batches(np.arange(10), batch_size=2)))) == 10
    assert images.asked == before + 10


def test_crops_made_in_inference_mode_can_be_used_outside_of_it():
    _, kept = crop_cache(100 * CROP)
    with torch.inference_mode():
        list(kept.batches(np.arange(4), batch_size=2))
    (crops,) = kept.batches(np.arange(4), batch_size=4)
    assert not crops.is_inference()
