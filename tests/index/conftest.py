"""What tests of indexes share: a stand-in encoder that needs no training, and coloured images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearkin.runs.model import Model

DIM = 6


def colours_of(images, batch_size):
    """An image's mean colour above and below, as a vector of length 1."""
    rows = [np.concatenate([half.mean(axis=(0, 1)) for half in np.array_split(image, 2)]) for image in images]
    vectors = np.array(rows, dtype=np.float32).reshape(-1, DIM) - 127.5
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def make_stand_in(identity="stand-in", path="nowhere", **changes):
    """An encoder that was trained on nothing, unless ``was_trained_on`` says otherwise."""
    return Model(Path(path), identity, DIM, "cosine", 32, colours_of, **{"was_trained_on": lambda _: False} | changes)


def draw_images(root, kinds=4, per_kind=5, seed=0):
    """A folder per kind, each around a colour of its own."""
    rng = np.random.default_rng(seed)
    for kind in range(kinds):
        (root / f"kind {kind}").mkdir(parents=True)
        centre = rng.uniform(0, 255, (2, 1, 3))
        for number in range(per_kind):
            pixels = np.broadcast_to(centre + rng.normal(0, 25, (2, 1, 3)), (2, 8, 3)).repeat(4, axis=0)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / f"kind {kind}" / f"{number}.png")
    return root


@pytest.fixture
def images(tmp_path):
    return draw_images(tmp_path / "images")


@pytest.fixture
def model():
    return make_stand_in()


@pytest.fixture
def stand_in():
    return make_stand_in


@pytest.fixture
def write_images():
    return draw_images


@pytest.fixture
def mean_colours():
    return colours_of
