from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.data.images import resized_shape
from nearkin.data.transforms import Transform
from nearkin.encoders import build_encoder
from nearkin.exports.graph import PixelsToEmbeddings
from nearkin.training.embedding import embed_images

SHAPES = [(71, 71), (71, 90), (120, 71), (64, 64), (300, 211), (50, 40), (37, 200), (1, 1), (640, 97)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("squash", [False, True])
def test_crops_are_those_of_pillow_to_one_level(shape, squash, graph_of, photo_of):
    """Pillow rounds after columns and after rows: half a level each, and what the weights' 22 bits leave."""
    graph, _ = graph_of(squash=squash)
    image = photo_of(*shape)
    transform = Transform(name="tiny", size=64, resize=71, squash=squash)
    found = graph.crops(torch.from_numpy(image)[None])[0].permute(1, 2, 0).numpy()
    assert np.abs(found - transform.evaluate(image)).max() <= 1.01
    if shape == (71, 71) or (not squash and resized_shape(*shape, 71) == shape):
        assert np.array_equal(found, transform.evaluate(image))


@pytest.mark.parametrize("size", range(60, 72))
def test_the_crop_is_cut_where_the_transform_cuts_it(size):
    transform = Transform(name="tiny", size=size, resize=71)
    graph = PixelsToEmbeddings(build_encoder("small", dim=8), transform)
    for width in range(71, 80):
        image = np.random.default_rng(0).integers(0, 256, (71, width, 3), dtype=np.uint8)
        found = graph.crops(torch.from_numpy(image)[None])[0].permute(1, 2, 0).numpy()
        assert np.array_equal(found, transform.evaluate(image))


@pytest.mark.parametrize("backbone", ["small", "bn_inception"])  # the second sees blue first
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("normalisation", ["l2", "ball"])
def test_embeddings_are_those_of_a_run_where_nothing_is_resized(backbone, flip, normalisation, graph_of, photo_of):
    graph, _ = graph_of(backbone, flip=flip, normalisation=normalisation)
    images = [photo_of(71, 90, seed) for seed in range(3)]
    transform = Transform(name="tiny", size=64, resize=71)
    expected = embed_images(graph.encoder, images, transform, flip=flip)
    with torch.inference_mode():
        found = graph(torch.from_numpy(np.stack(images)))
    assert torch.allclose(found, expected, rtol=0, atol=1e-5)
