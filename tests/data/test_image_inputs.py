"""Every form in which an image can be handed over gives the pixels that its file gives."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.data.cache import ArrayImages
from nearkin.data.image_inputs import ImageInputs, as_images
from nearkin.data.images import decode
from nearkin.errors import DataError


def coloured(height: int = 60, width: int = 90) -> Image.Image:
    coarse = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def rotated(path):
    exif = Image.Exif()
    exif[0x0112] = 6
    coloured().save(path.with_suffix(".jpg"), exif=exif)
    return path.with_suffix(".jpg")


def sixteen_bits(path):
    values = (np.arange(60 * 90, dtype=np.uint32).reshape(60, 90) * 11 % 65536).astype(np.uint16)
    Image.fromarray(values).save(path.with_suffix(".png"))
    return path.with_suffix(".png")


def cmyk(path):
    coloured().convert("CMYK").save(path.with_suffix(".tif"))
    return path.with_suffix(".tif")


def rgba(path):
    image = coloured().convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    image.save(path.with_suffix(".webp"), lossless=True)
    return path.with_suffix(".webp")


def large_jpeg(path):
    """Large enough that its file is decoded at a fraction of its size."""
    coloured(1200, 1800).save(path.with_suffix(".jpg"))
    return path.with_suffix(".jpg")


ODD = [rotated, sixteen_bits, cmyk, rgba, large_jpeg]


@pytest.mark.parametrize("write", ODD)
def test_path_bytes_and_opened_image_agree(tmp_path, write):
    path = write(tmp_path / "image")
    wanted = decode(path, shorter_side=32)
    loaded = Image.open(path)
    loaded.load()
    given = ImageInputs(
        [path, str(path), path.read_bytes(), bytearray(path.read_bytes()), Image.open(path), loaded], shorter_side=32
    )
    for row in range(len(given) - 1):
        np.testing.assert_array_equal(given[row], wanted)
    assert np.abs(given[len(given) - 1].astype(int) - wanted).mean() < 2, "decoded whole rather than at a fraction"


@pytest.mark.parametrize("write", [sixteen_bits, rgba])
def test_arrays_agree_with_the_file_they_were_read_from(tmp_path, write):
    path = write(tmp_path / "image")
    array = np.asarray(Image.open(path))
    np.testing.assert_array_equal(ImageInputs(array, shorter_side=32)[0], decode(path, shorter_side=32))


def test_an_opened_image_is_left_as_it_was(tmp_path):
    image = Image.open(large_jpeg(tmp_path / "image"))
    ImageInputs(image, shorter_side=32)[0]
    assert image.tile, "not loaded, so that a list of large photos stays small"
    assert np.asarray(image).shape == (1200, 1800, 3)


def test_arrays_and_tensors_of_every_shape():
    array = np.asarray(coloured())
    tensor = torch.from_numpy(array.copy())
    for given in (array, tensor, tensor.permute(2, 0, 1), [array], (tensor,), array[None], tensor[None]):
        images = ImageInputs(given, shorter_side=None)
        assert len(images) == 1
        np.testing.assert_array_equal(images[0], array)
    for grey in (array[:, :, 0], array[:, :, :1]):
        np.testing.assert_array_equal(ImageInputs(grey, shorter_side=None)[0], np.stack([array[:, :, 0]] * 3, axis=2))
    assert len(ImageInputs(np.stack([array] * 4), shorter_side=None)) == 4
    assert len(ImageInputs((each for each in [array, array]), shorter_side=None)) == 2


def test_paths_out_of_an_array(tmp_path):
    path = rotated(tmp_path / "image")
    assert len(ImageInputs(np.array([str(path)] * 2), shorter_side=None)) == 2


def test_images_that_were_opened_are_taken_as_they_are():
    opened = ArrayImages(np.zeros((2, 300, 300), np.uint8))
    assert as_images(opened, shorter_side=32) is opened
    assert as_images([np.zeros((300, 300), np.uint8)], shorter_side=32)[0].shape == (32, 32, 3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.zeros((4, 4, 3)), r"image 1 of those given is float64 \[4, 4, 3\].*255 \* x"),
        (torch.zeros(3, 8, 8), r"float32 \[8, 8, 3\].*255 \* x"),
        (np.zeros((7, 8, 9), np.uint8), r"uint8 \[7, 8, 9\]: give .* \[N, H, W, 3\], else as a list"),
        (np.zeros((0, 8), np.uint8), r"uint8 \[0, 8\]"),
        ([np.zeros((4, 4), np.uint8), 7], "image 2 of those given is a int: give a path"),
        (7, "cannot embed int"),
        (["no such.jpg"], r"there is no file 'no such.jpg' \(image 1 of those given\)"),
        (".", r"'.' is a folder: give image files, such as \*.jpg"),
        (b"no image", "image 1 of those given: not an image"),
        (b"", "image 1 of those given: not an image"),
    ],
)
def test_what_is_no_image_is_refused_by_its_place(given, said):
    with pytest.raises(DataError, match=said):
        ImageInputs(given, shorter_side=None)[0]


def test_a_frame_that_was_chosen_is_kept():
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime")]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    image = Image.open(buffer)
    assert ImageInputs(image, shorter_side=None)[0][0, 0].tolist() == [255, 0, 0]
    image.seek(1)
    assert ImageInputs(image, shorter_side=None)[0][0, 0].tolist() == [0, 255, 0]
