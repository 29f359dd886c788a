from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.data import device_images
from nearkin.data.device_images import DeviceImages, erased, shapes_of
from nearkin.data.transforms import transform_from

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Shapes:
    """Images of different shapes, as from a pack."""

    def __init__(self, count=9, seed=0):
        rng = np.random.default_rng(seed)
        self.images = [rng.integers(0, 256, (*rng.integers(20, 60, 2), 3), dtype=np.uint8) for _ in range(count)]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, row):
        return self.images[row]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("piece", [1, 9_000, 64 << 20])
def test_images_lie_one_after_another(monkeypatch, device, piece):
    monkeypatch.setattr(device_images, "_PIECE", piece)
    images = Shapes()
    placed = DeviceImages(images, torch.device(device))
    assert len(placed) == 9
    assert placed.shapes.tolist() == [list(image.shape[:2]) for image in images.images] == shapes_of(images).tolist()
    for start, image in zip(placed.starts, images.images, strict=True):
        there = placed.pixels[start : start + image.shape[0] * image.shape[1]].cpu().numpy()
        assert np.array_equal(there.reshape(image.shape), image)


def test_grey_images_have_three_channels():
    grey = np.random.default_rng(0).integers(0, 256, (4, 10, 12, 1), dtype=np.uint8)
    placed = DeviceImages(np.broadcast_to(grey, (4, 10, 12, 3)), torch.device("cpu"))
    crop = placed.crops(np.array([3]), [(0.0, 0.0, 12.0, 10.0)], [False], 5)
    assert torch.equal(crop[..., 0], crop[..., 2])


@pytest.mark.parametrize("device", DEVICES)
def test_evaluation_crops_are_those_of_the_transform(device):
    images, rows = Shapes(), np.array([4, 4, 0, 8, 1])
    placed = DeviceImages(images, torch.device(device))
    transform = transform_from("standard", size=24, resize=28)
    batches = list(placed.evaluation_batches(rows, transform, batch_size=2))
    assert [len(batch) for batch in batches] == [2, 2, 1]
    expected = np.stack([transform.evaluate(images[row]) for row in rows]).astype(int)
    assert np.abs(torch.cat(batches).cpu().numpy() - expected).max() <= 2


@pytest.mark.parametrize("device", DEVICES)
def test_holes_are_those_of_slices(device):
    crops = torch.randint(0, 256, (5, 12, 12, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    holes = [(0, 0, 12, 12), None, (3, 4, 1, 7), (11, 11, 1, 1), (0, 5, 12, 2)]
    expected = crops.clone()
    for crop, hole in zip(expected, holes, strict=True):
        if hole is not None:
            top, left, height, width = hole
            crop[top : top + height, left : left + width] = torch.tensor((0, 128, 255), dtype=torch.uint8)
    found = erased(crops.to(device), holes, (0, 128, 255))
    assert found.dtype == torch.uint8
    assert torch.equal(found.cpu(), expected)
    assert erased(crops, [None] * 5, (0, 0, 0)) is crops
