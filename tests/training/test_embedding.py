from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.data.cache import ArrayImages
from nearkin.data.transforms import transform_from
from nearkin.encoders import build_encoder
from nearkin.training.embedding import embed_images, images_at_a_time

IMAGES = ArrayImages(np.random.default_rng(0).integers(0, 256, (7, 16, 16, 3), dtype=np.uint8))
TRANSFORM = transform_from("mild", size=16)


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return build_encoder("small", dim=5)


def test_all_images_in_order_whatever_the_size_of_batches(encoder):
    done = []
    whole = embed_images(encoder, IMAGES, TRANSFORM, workers=1)
    parts = embed_images(encoder, IMAGES, TRANSFORM, batch_size=3, workers=2, progress=done.append)
    assert (whole.shape, whole.dtype, done) == ((7, 5), torch.float32, [3, 6, 7])
    torch.testing.assert_close(parts, whole)
    rows = np.array([6, 0, 6], dtype=np.int64)
    torch.testing.assert_close(embed_images(encoder, IMAGES, TRANSFORM, rows=rows, workers=1), whole[[6, 0, 6]])


def test_on_a_cpu_large_images_are_embedded_a_few_at_a_time(encoder):
    images = ArrayImages(np.zeros((20, 400, 400, 3), dtype=np.uint8))
    done = []
    embed_images(encoder, images, transform_from("mild", size=400, resize=400), workers=1, progress=done.append)
    assert done == [10, 20]
    assert images_at_a_time(10_000, torch.device("cpu")) == 1
    assert images_at_a_time(400, torch.device("cuda")) == 256


@pytest.mark.parametrize("training", [True, False])
def test_the_encoder_evaluates_and_goes_back_to_its_mode_also_after_an_error(encoder, training):
    encoder.train(training)
    modes = []
    embed_images(encoder, IMAGES, TRANSFORM, batch_size=4, workers=1, progress=lambda _: modes.append(encoder.training))
    assert (modes, encoder.training) == ([False, False], training)
    with pytest.raises(ZeroDivisionError):
        embed_images(encoder, IMAGES, TRANSFORM, workers=1, progress=lambda _: 1 / 0)
    assert encoder.training == training


def test_half_precision_still_gives_float32_without_gradients(encoder):
    exact = embed_images(encoder, IMAGES, TRANSFORM, workers=1)
    coarse = embed_images(encoder, IMAGES, TRANSFORM, workers=1, dtype=torch.bfloat16)
    assert (coarse.dtype, coarse.requires_grad) == (torch.float32, False)
    assert not torch.equal(coarse, exact)
    torch.testing.assert_close(coarse, exact, atol=0.05, rtol=0)


@pytest.mark.parametrize("normalisation", ["l2", "ball"])
def test_with_mirror_images_it_is_the_mean_of_both_normalised(normalisation):
    """By hand: two encodings, a mean, and a division by its norm, in the ball only where that is above one."""
    torch.manual_seed(0)
    encoder = build_encoder("small", dim=5, normalisation=normalisation).eval()
    with torch.no_grad():
        encoder.head.weight *= 0.3  # in the ball some are within and some on its surface
        crops = [TRANSFORM.evaluate(IMAGES[row]) for row in range(7)]
        plain, mirrored = (
            encoder(torch.from_numpy(np.stack([np.ascontiguousarray(crop[:, ::way]) for crop in crops])))
            for way in (1, -1)
        )
    mean = (plain.double() + mirrored.double()) / 2
    norm = mean.norm(dim=1, keepdim=True)
    expected = mean / (norm if normalisation == "l2" else norm.clamp(min=1))
    found = embed_images(encoder, IMAGES, TRANSFORM, workers=1, flip=True, batch_size=3)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, plain, atol=1e-3)
    given = embed_images(encoder, IMAGES, TRANSFORM, flip=True, crops=lambda share: [torch.from_numpy(np.stack(crops))])
    torch.testing.assert_close(given, found)
    swapped = ArrayImages(np.stack([IMAGES[row][:, ::-1] for row in range(7)]))
    torch.testing.assert_close(embed_images(encoder, swapped, TRANSFORM, workers=1, flip=True), found)
