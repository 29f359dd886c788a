from __future__ import annotations

import dataclasses
import math
import threading

import numpy as np
import pytest
from PIL import Image

from nearkin.data.transforms import PRESETS, ImageRandom, Transform, random_box, transform_from
from nearkin.errors import RecipeError


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def triangle_weights(before: int, after: int) -> np.ndarray:
    """Bilinear resampling as a matrix [after, before], the filter as wide as the reduction asks for."""
    scale = before / after
    distance = (np.arange(before)[None, :] + 0.5) - (np.arange(after)[:, None] + 0.5) * scale
    weights = np.clip(1 - np.abs(distance) / max(scale, 1.0), 0, None)
    return weights / weights.sum(axis=1, keepdims=True)


def scaled_then_cut(image: np.ndarray, frame: tuple[int, int], top: int, left: int, size: int) -> np.ndarray:
    """The crop in exact numbers: resample the whole image, then slice."""
    rows, columns = triangle_weights(image.shape[0], frame[0]), triangle_weights(image.shape[1], frame[1])
    whole = np.einsum("ij,jkc,lk->ilc", rows, image.astype(float), columns, optimize=True)
    return whole[top : top + size, left : left + size]


def assert_rounded(crop: np.ndarray, exact: np.ndarray) -> None:
    # Pillow rounds after the rows and again after the columns.
    assert crop.shape == exact.shape
    assert np.abs(crop - exact).max() < 1.01
    assert np.abs(crop - exact).mean() < 0.35


@pytest.mark.parametrize(
    ("height", "width", "frame", "top", "left"),
    [
        (256, 384, (256, 384), 16, 80),
        (384, 256, (384, 256), 80, 16),
        (500, 333, (384, 256), 80, 16),
        (300, 401, (256, 342), 16, 59),
        (100, 150, (256, 384), 16, 80),
        (256, 257, (256, 257), 16, 16),
    ],
)
def test_evaluation_crop(height, width, frame, top, left):
    image = noise(height, width)
    assert_rounded(PRESETS["standard"].evaluate(image), scaled_then_cut(image, frame, top, left, 224))


def test_evaluation_of_an_image_at_its_final_scale_copies_pixels():
    image = noise(256, 300)
    np.testing.assert_array_equal(PRESETS["standard"].evaluate(image), image[16:240, 38:262])
    np.testing.assert_array_equal(PRESETS["ccp"].evaluate(image), image[14:241, 36:263])


def test_squashed_evaluation_keeps_both_ends_of_a_wide_image():
    image = noise(90, 400)
    assert_rounded(PRESETS["profs"].evaluate(image), scaled_then_cut(image, (256, 256), 16, 16, 224))


def test_glyphs_and_digits_evaluate_without_cropping():
    for name, size in (("glyphs", 48), ("digits", 28)):
        image = noise(size, size)
        np.testing.assert_array_equal(PRESETS[name].evaluate(image), image)
        uneven = noise(60, 100)
        assert_rounded(PRESETS[name].evaluate(uneven), scaled_then_cut(uneven, (size, size), 0, 0, size))
    image = noise(28, 28)
    np.testing.assert_array_equal(PRESETS["digits"].train(image, np.random.default_rng(0)), image)


def test_greyscale_shown_as_three_channels_without_a_copy():
    grey = noise(40, 40)[:, :, 0]
    shown = np.broadcast_to(grey[:, :, None], (40, 40, 3))
    np.testing.assert_array_equal(
        PRESETS["glyphs"].evaluate(shown), PRESETS["glyphs"].evaluate(np.ascontiguousarray(shown))
    )


@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize("shape", [(1, 1), (1, 500), (500, 1), (3, 2), (256, 384), (1000, 40), (1, 1 << 20)])
def test_every_preset_takes_every_shape(name, shape):
    transform = PRESETS[name]
    image = np.full((*shape, 3), 77, dtype=np.uint8)
    for seed in range(5):
        crop = transform.train(image, np.random.default_rng(seed))
        assert crop.shape == (transform.size, transform.size, 3)
        assert crop.dtype == np.uint8
        assert crop.flags.writeable
        assert (crop == 77).all()
    assert (transform.evaluate(image) == np.full((transform.size, transform.size, 3), 77)).all()


def reference_areas_and_ratios(height, width, scale, ratio, count, seed):
    """Rejection sampling in whole arrays: pairs (area share, ratio) whose box fits into the image."""
    rng = np.random.default_rng(seed)
    share = rng.uniform(*scale, size=4 * count)
    shape = np.exp(rng.uniform(np.log(ratio[0]), np.log(ratio[1]), size=4 * count))
    w, h = np.rint(np.sqrt(share * height * width * shape)), np.rint(np.sqrt(share * height * width / shape))
    fits = (w <= width) & (h <= height)
    return (w * h / (height * width))[fits][:count], (w / h)[fits][:count]


@pytest.mark.parametrize("height,width", [(256, 384), (300, 300), (500, 280)])
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.16, 1.0)])
def test_random_boxes_follow_the_reference_distribution(height, width, scale):
    ratio = (3 / 4, 4 / 3)
    rng = np.random.default_rng(0)
    boxes = np.array([random_box(height, width, rng, scale=scale, ratio=ratio) for _ in range(6000)])
    top, left, h, w = boxes.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + h <= height).all()
    assert (left + w <= width).all()
    shares, shapes = h * w / (height * width), w / h
    assert shares.min() >= scale[0] - 0.01
    assert shapes.min() > 0.73
    assert shapes.max() < 1.37
    expected_shares, expected_shapes = reference_areas_and_ratios(height, width, scale, ratio, 6000, seed=1)
    levels = np.linspace(0.05, 0.95, 19)
    np.testing.assert_allclose(np.quantile(shares, levels), np.quantile(expected_shares, levels), atol=0.03)
    np.testing.assert_allclose(
        np.quantile(np.log(shapes), levels), np.quantile(np.log(expected_shapes), levels), atol=0.03
    )
    # The place is uniform: the relative offset has mean 1/2 wherever there is room to move.
    room = (height - h) > 20
    assert abs((top[room] / (height - h[room])).mean() - 0.5) < 0.02


def test_small_boxes_have_log_uniform_ratio():
    rng = np.random.default_rng(0)
    boxes = np.array([random_box(2000, 2000, rng, scale=(0.1, 0.2), ratio=(0.5, 2.0)) for _ in range(4000)])
    logs = np.sort(np.log(boxes[:, 3] / boxes[:, 2]))
    uniform = np.linspace(math.log(0.5), math.log(2.0), len(logs))
    assert np.abs(logs - uniform).max() < 0.06


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (10, 1000, (0, 493, 10, 13)),
        (1000, 10, (493, 0, 13, 10)),
        (1, 1000, (0, 499, 1, 1)),
        (1000, 1, (499, 0, 1, 1)),
    ],
)
def test_fallback_is_the_largest_centred_box(height, width, expected):
    # Boxes of the whole area never fit into a strip, so all ten tries fail.
    assert random_box(height, width, np.random.default_rng(0), scale=(1.0, 1.0), ratio=(3 / 4, 4 / 3)) == expected


def test_fallback_within_the_ratio_is_the_whole_image():
    class Stubborn:
        def uniform(self, low, high):
            return high

    assert random_box(100, 120, Stubborn(), scale=(0.5, 1.0), ratio=(0.5, 4.0)) == (0, 0, 100, 120)


def test_training_crop_shows_the_box_that_was_drawn():
    image = noise(256, 384)
    transform = transform_from("standard", flip=0.0)
    top, left, height, width = random_box(256, 384, np.random.default_rng(5), scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
    expected = Image.fromarray(image).resize(
        (224, 224), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height)
    )
    np.testing.assert_array_equal(transform.train(image, np.random.default_rng(5)), np.asarray(expected))


def test_random_crop_cuts_a_window_and_reaches_both_ends():
    image = noise(256, 256)
    transform = transform_from("profs", flip=0.0)
    corners = {image[top, left].tobytes(): (top, left) for top in range(33) for left in range(33)}
    assert len(corners) == 33 * 33
    seen = set()
    rng = np.random.default_rng(0)
    for _ in range(400):
        crop = transform.train(image, rng)
        top, left = corners[crop[0, 0].tobytes()]
        np.testing.assert_array_equal(crop, image[top : top + 224, left : left + 224])
        seen |= {("top", top), ("left", left)}
    assert len(seen) == 66


def test_flip_mirrors_at_its_rate():
    image = noise(28, 28)
    transform = transform_from("digits", flip=0.3)
    rng = np.random.default_rng(0)
    mirrored = 0
    for _ in range(1000):
        crop = transform.train(image, rng)
        if not (crop == image).all():
            np.testing.assert_array_equal(crop, image[:, ::-1])
            mirrored += 1
    assert 250 < mirrored < 350


def test_random_numbers_are_those_of_a_generator_of_each_images_own():
    numbers = ImageRandom(5)
    numbers.at(1, 2).integers(7, dtype=np.uint32)  # leaves half of a drawn number behind
    for batch, place in ((0, 0), (7, 3), (7, 4), (2**40, 2**33), (0, 0)):
        for rng in (numbers.at(batch, place), ImageRandom(5).at(batch, place)):
            drawn = rng.random(9), rng.integers(2**32, dtype=np.uint32), rng.uniform(1, 2)
            again = np.random.Generator(np.random.Philox(key=5, counter=[0, place, batch, 0]))
            expected = again.random(9), again.integers(2**32, dtype=np.uint32), again.uniform(1, 2)
            np.testing.assert_array_equal(drawn[0], expected[0])
            assert drawn[1:] == expected[1:]


@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_greyscale_scaled_as_one_channel_has_the_bits_of_three(name, flip):
    for seed, (height, width) in enumerate([(48, 48), (37, 90), (300, 41), (256, 384)]):
        grey = np.broadcast_to(noise(height, width, seed)[:, :, :1], (height, width, 3))
        assert grey.strides[2] == 0
        transform = transform_from(name, flip=flip)
        whole = np.ascontiguousarray(grey)
        crops = [transform.train(image, np.random.default_rng(seed)) for image in (grey, whole)]
        np.testing.assert_array_equal(*crops)
        np.testing.assert_array_equal(transform.evaluate(grey), transform.evaluate(whole))


def test_same_generator_same_crop_in_any_thread():
    image = noise(256, 384)
    transform = PRESETS["standard"]
    expected = [transform.train(image, np.random.default_rng(seed)) for seed in range(16)]
    assert any((expected[0] != crop).any() for crop in expected[1:])
    got: dict[int, np.ndarray] = {}

    def work(seeds):
        for seed in seeds:
            got[seed] = transform.train(image, np.random.default_rng(seed))

    threads = [threading.Thread(target=work, args=(range(start, 16, 4),)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, crop in enumerate(expected):
        np.testing.assert_array_equal(got[seed], crop)


def test_presets_are_the_published_ones():
    standard = PRESETS["standard"]
    assert (standard.size, standard.resize, standard.scale, standard.flip) == (224, 256, (0.08, 1.0), 0.5)
    assert standard.ratio == pytest.approx((0.75, 1.33333333))
    assert (PRESETS["ccp"].size, PRESETS["ccp"].resize, PRESETS["ccp"].scale) == (227, 256, (0.16, 1.0))
    assert (PRESETS["mild"].size, PRESETS["mild"].scale) == (224, (0.16, 1.0))
    assert (PRESETS["profs"].size, PRESETS["profs"].resize, PRESETS["profs"].squash) == (224, 256, True)
    assert PRESETS["profs"].train_crop == "random"
    assert all(name == preset.name for name, preset in PRESETS.items())


def test_record_is_complete():
    for preset in PRESETS.values():
        record = dataclasses.asdict(preset)
        assert Transform(**record) == preset
        assert "\n" not in preset.describe()
        assert preset.describe().startswith(f"{preset.name}: ")
        assert hash(preset) == hash(dataclasses.replace(preset))


def test_overrides():
    transform = transform_from("standard", size=112, resize=128, scale=(0.5, 1.0))
    assert (transform.size, transform.scale) == (112, (0.5, 1.0))
    assert "to 112" in transform.describe()


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("standrad", {}, "did you mean 'standard'"),
        ("standard", {"size": 300}, "resize must be at least size"),
        ("standard", {"size": 0}, "size must be at least 1"),
        ("standard", {"scale": (0.0, 1.0)}, "scale must be"),
        ("standard", {"scale": (0.9, 0.1)}, "scale must be"),
    ],
)
def test_mistakes_are_named(name, overrides, message):
    with pytest.raises(RecipeError, match=message):
        transform_from(name, **overrides)


def test_wrong_arrays_are_named():
    for wrong in (np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros((0, 4, 3), np.uint8)):
        with pytest.raises(ValueError, match="uint8"):
            PRESETS["standard"].evaluate(wrong)
        with pytest.raises(ValueError, match="uint8"):
            PRESETS["standard"].train(wrong, np.random.default_rng(0))


def test_erasing_fills_one_box_of_the_published_areas_and_shapes():
    image = np.full((64, 64, 3), 200, dtype=np.uint8)
    transform = transform_from("digits", size=64, resize=64, erase=0.4, fill=(1, 2, 3))
    rng, areas, shapes, places = np.random.default_rng(0), [], [], []
    for _ in range(3000):
        crop = transform.train(image, rng)
        rows, columns = ((crop[:, :, 0] == 1).any(axis=axis).nonzero()[0] for axis in (1, 0))
        if not len(rows):
            assert (crop == image).all()
            continue
        top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
        assert (crop[top:bottom, left:right] == (1, 2, 3)).all()
        assert (crop == 200).all(axis=2).sum() == 64 * 64 - (bottom - top) * (right - left)
        areas.append((bottom - top) * (right - left) / 64**2)
        shapes.append((right - left) / (bottom - top))
        places.append((top + bottom) / 128)
    assert 0.36 < len(areas) / 3000 < 0.44
    assert min(areas) > 0.015
    assert max(areas) < 0.35
    assert abs(np.mean(areas) - (0.02 + 0.33) / 2) < 0.01
    assert 0.25 < min(shapes) < 0.4 < 2.8 < max(shapes) < 3.9
    assert abs(np.mean(np.log(shapes))) < 0.06
    assert abs(np.mean(places) - 0.5) < 0.02


def test_erasing_leaves_boxes_and_flips_as_they_are_and_evaluation_alone():
    image = noise(80, 90)
    plain, erasing = transform_from("mild", size=32), transform_from("mild", size=32, erase=1.0)
    for seed in range(20):
        whole, crop = (each.train(image, np.random.default_rng(seed)) for each in (plain, erasing))
        changed = (whole != crop).any(axis=2)
        assert 0 < changed.mean() < 0.4
        assert (crop[changed] == 128).all()
    np.testing.assert_array_equal(plain.evaluate(image), erasing.evaluate(image))
    assert "erasing 1" in erasing.describe()
    assert "erasing" not in plain.describe()
