"""What tests of exports share."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.data.transforms import Transform
from nearkin.encoders import build_encoder
from nearkin.exports.graph import PixelsToEmbeddings
from nearkin.exports.model import Settings


@pytest.fixture
def graph_of():
    """``graph_of(backbone, **changes)``: a graph of random weights, with the settings that go with it."""

    def build(backbone="small", *, flip=False, squash=False, **encoder):
        torch.manual_seed(0)
        transform = Transform(name="tiny", size=64, resize=71, squash=squash)
        graph = PixelsToEmbeddings(build_encoder(backbone, dim=8, **encoder).eval(), transform, flip=flip)
        norm = graph.encoder.normalisation
        sizes = {"size": 64, "resize": 71, "squash": squash, "shorter_side": 71}
        return graph, Settings(identity="abc", dim=8, normalisation=norm, **sizes)

    return build


def photo(height, width, seed=0):
    """Smooth, as photos are, with some noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / 9.0
    waves = [np.sin(x * rng.uniform(0.2, 1) + y * rng.uniform(0.2, 1) + rng.uniform(0, 6)) for _ in range(3)]
    return (128 + 90 * np.stack(waves, -1) + rng.normal(0, 8, (height, width, 3))).clip(0, 255).astype(np.uint8)


@pytest.fixture
def photo_of():
    return photo
