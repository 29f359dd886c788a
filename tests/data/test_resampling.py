"""Crops made in torch against Pillow's, and against the mean under a triangle written down plainly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.data.device_images import resample

SHAPES = [(256, 341), (341, 256), (40, 300), (300, 40), (90, 90), (1, 1), (5, 700)]


def noise(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in shapes]


def flat(images, device="cpu"):
    shapes = np.array([image.shape[:2] for image in images])
    starts = np.cumsum(shapes.prod(axis=1)) - shapes.prod(axis=1)
    return torch.from_numpy(np.concatenate([image.reshape(-1, 3) for image in images])).to(device), starts, shapes


def random_boxes(shapes, seed=1):
    rng = np.random.default_rng(seed)
    boxes = []
    for height, width in shapes:
        left, right = np.sort(rng.uniform(0, width, 2))
        top, bottom = np.sort(rng.uniform(0, height, 2))
        boxes.append((left, top, max(right, min(left + 0.5, width)), max(bottom, min(top + 0.5, height))))
    return np.array(boxes, dtype=np.float32)


def by_pillow(image, box, size, mirrored):
    crop = Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR, box=tuple(map(float, box)))
    return np.array(crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else crop).astype(int)


def exact(image, box, size, mirrored):
    """The mean under the triangle, without any rounding."""

    def matrix(before, begin, end):
        scale = (float(end) - float(begin)) / size
        centres = begin + (np.arange(size)[:, None] + 0.5) * scale
        weights = np.clip(1 - np.abs(np.arange(before)[None, :] + 0.5 - centres) / max(scale, 1.0), 0, None)
        return weights / weights.sum(axis=1, keepdims=True)

    rows, columns = matrix(image.shape[0], box[1], box[3]), matrix(image.shape[1], box[0], box[2])
    crop = np.einsum("ij,jkc,lk->ilc", rows, image.astype(float), columns, optimize=True)
    return crop[:, ::-1] if mirrored else crop


@pytest.mark.parametrize("size", [1, 7, 64, 224])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_crops_are_those_of_pillow(size, device):
    images = noise(SHAPES)
    pixels, starts, shapes = flat(images, device)
    whole = np.array([(0, 0, width, height) for height, width in SHAPES], dtype=np.float32)
    for boxes in (whole, random_boxes(SHAPES), random_boxes(SHAPES, seed=2)):
        flips = np.arange(len(images)) % 2 == 1
        crops = resample(pixels, starts, shapes, boxes, flips, size).cpu().numpy().astype(int)
        assert crops.shape == (len(images), size, size, 3)
        for crop, image, box, mirrored in zip(crops, images, boxes, flips, strict=True):
            # Two roundings each, of half a level at most, and perhaps of rows before columns.
            off = np.abs(crop - by_pillow(image, box, size, mirrored))
            assert off.max() <= 2
            assert off.mean() < 0.5
            assert np.abs(crop - exact(image, box, size, mirrored)).max() < 1.01


def test_where_pillow_scales_columns_first_hardly_a_value_differs():
    images = noise([(200, 300), (256, 341), (100, 120)])
    pixels, starts, shapes = flat(images)
    boxes = random_boxes(shapes.tolist())
    crops = resample(pixels, starts, shapes, boxes, np.zeros(3, bool), 64).numpy()
    expected = np.stack([by_pillow(image, box, 64, False) for image, box in zip(images, boxes, strict=True)])
    assert (crops != expected).mean() < 0.01


def test_more_images_than_are_computed_at_once():
    images = noise([(9, 12)] * 70)
    pixels, starts, shapes = flat(images)
    boxes, flips = random_boxes(shapes.tolist()), np.arange(70) % 3 == 0
    together = resample(pixels, starts, shapes, boxes, flips, 8)
    for row in (0, 31, 32, 69):
        one = slice(row, row + 1)
        alone = resample(pixels, starts[one], shapes[one], boxes[one], flips[one], 8)
        assert torch.equal(together[one], alone)
