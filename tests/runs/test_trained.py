"""A trained run put to use on images that a program hands over."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.errors import DataError, RecipeError
from nearkin.runs.data import open_data
from nearkin.runs.embed import embed_files
from nearkin.runs.folder import RunFolder
from nearkin.runs.trained_run import load_run


def odd_images(folder):
    """A turned, a 16-bit, a CMYK and a transparent image, and a JPEG large enough to be decoded at a fraction."""
    folder.mkdir()
    coarse = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((180, 120), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(folder / "1 turned.jpg", exif=exif)
    Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257).save(folder / "2 sixteen bits.png")
    image.convert("CMYK").save(folder / "3 cmyk.tif")
    clear = image.convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(image.size))
    clear.save(folder / "4 transparent.png")
    image.resize((1500, 1000)).save(folder / "5 large.jpg")
    return sorted(folder.iterdir())


def test_every_form_of_an_image_has_the_embedding_of_its_file(trained, tmp_path):
    paths = odd_images(tmp_path / "odd")
    embed_files(trained, tmp_path / "odd", tmp_path / "e.npz")
    saved = np.load(tmp_path / "e.npz")
    assert saved["ids"].tolist() == [path.name for path in paths]
    wanted = torch.from_numpy(saved["embeddings"])
    opened = [Image.open(path) for path in paths]
    loaded = [Image.open(path) for path in paths]
    for image in loaded:
        image.load()
    model = load_run(trained, device="cpu")
    forms = {
        "paths": paths,
        "texts": [str(path) for path in paths],
        "bytes": [path.read_bytes() for path in paths],
        "opened": opened,
        "saved paths": saved["paths"],
    }
    for name, given in forms.items():
        found = model.embed(given)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, wanted, msg=name)
    cosine = torch.nn.functional.cosine_similarity(model.embed(loaded), wanted)
    assert (cosine > 0.999).all(), "a large JPEG that was decoded whole is not quite the same"
    for place, path in enumerate(paths):
        assert model.embed(path).shape == (1, 8)
        torch.testing.assert_close(model.embed(Image.open(path)), wanted[place : place + 1])


def test_arrays_and_tensors_are_embedded_like_the_pixels_they_are(trained, photos):
    path = photos / "kiwi" / "Bild 0 ä.png"
    model = load_run(trained, device="cpu")
    array = np.asarray(Image.open(path))
    wanted = model.embed(path)
    for given in (array, array[None], torch.from_numpy(array.copy()), torch.from_numpy(array.copy()).permute(2, 0, 1)):
        torch.testing.assert_close(model.embed(given), wanted)
    assert model.embed(array[:, :, 0]).shape == (1, 8)
    with pytest.raises(DataError, match="float32"):
        model.embed(torch.rand(3, 8, 8))


def test_opened_images_and_rows_still_work(trained):
    model = load_run(trained, device="cpu")
    images = open_data(model.recipe.data).images
    rows = np.array([3, 0], dtype=np.int64)
    torch.testing.assert_close(model.embed(images, rows), model.embed(images)[[3, 0]])


def test_it_comes_ready_for_use_and_with_the_weights_that_are_asked_for(trained, tmp_path):
    model = load_run(trained, device="cpu")
    assert not model.encoder.training
    assert model.recipe == RunFolder(trained).recipe()
    with pytest.raises(RecipeError, match="checkpoint must be 'best' or 'last', got 'first'"):
        load_run(trained, which="first")
    with pytest.raises(DataError, match=r"no run at .*runs next to it: "):
        load_run(tmp_path / "nowhere")


def test_weights_of_another_shape_are_not_taken(trained, tmp_path):
    other = shutil.copytree(trained, tmp_path / "other")
    recipe = (other / "recipe.yaml").read_text()
    assert "  dim: 8\n" in recipe
    (other / "recipe.yaml").write_text(recipe.replace("  dim: 8\n", "  dim: 9\n"))
    with pytest.raises(DataError, match=r"not of this run \(encoder\.dim was 8, is 9\)"):
        load_run(other, device="cpu")
