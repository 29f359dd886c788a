"""A trained run put to use on images: those in files, and those that a program hands over."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.errors import DataError, NearkinError, RecipeError
from nearkin.recipe import Recipe
from nearkin.runs.data import open_data
from nearkin.runs.embed_files import check_output, embed_files, images_of
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.runs.trained import load_run
from nearkin.training.state import Silent

TINY = {
    "data": {"transform": "mild", "image_size": 32, "workers": 1, "shorter_side": 48},
    "encoder": {"backbone": "small", "dim": 8},
    "training": {"epochs": 1, "max_steps": 1, "batch_size": 8, "device": "cpu"},
    "protocol": {"name": "conventional", "test_share": 0.35},
}


@pytest.fixture
def trained(photos, tmp_path):
    recipe = Recipe.from_mapping(TINY, [f"data.source={json.dumps(str(photos))}"])
    run(recipe, RunFolder(tmp_path / "run"), Silent())
    return tmp_path / "run"


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


def test_ids_paths_and_labels(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = images_of("own photos")
    assert table.ids[0] == "blaue Möwe/Bild 0 ä.png"
    several = images_of(["own photos/kiwi/Bild 0 ä.png", "own photos", "own photos/kiwi"])
    assert len(several) == 48, "each image once"
    assert several.ids[:2] == ("own photos/kiwi/Bild 0 ä.png", "own photos/blaue Möwe/Bild 0 ä.png")
    assert [several.class_names[label] for label in several.labels[:2]] == ["", "blaue Möwe"]
    with pytest.raises(DataError, match=r"no image, folder or manifest 'own fotos'; did you mean 'own photos'\?"):
        images_of("own fotos")


def test_the_output_is_looked_at_before_the_run(photos, tmp_path, monkeypatch):
    monkeypatch.setattr("nearkin.runs.embed_files.load_run", lambda *_, **__: pytest.fail("too late"))
    (tmp_path / "file").touch()
    (tmp_path / "folder.npz").mkdir()
    for output, said in {
        tmp_path / "none" / "e.npz": "none' does not exist; make it first",
        tmp_path / "file" / "e.npz": "file' is not a folder",
        tmp_path / "folder.npz": "it is a folder; give a file name in it",
        tmp_path / "e.xls": "must end in .npz or .csv",
    }.items():
        with pytest.raises(RecipeError, match=said):
            embed_files("run", photos, output)


def test_a_folder_that_cannot_be_written_to_is_noticed_at_once(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    check_output(tmp_path / "e.npz")
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
    monkeypatch.setattr("pathlib.Path.touch", refuse)
    with pytest.raises(NearkinError, match=r"cannot write .*: Permission denied"):
        check_output(tmp_path / "e.npz")


def test_too_little_room_is_noticed_before_embedding(trained, photos, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=1000))
    monkeypatch.setattr("nearkin.runs.trained.TrainedRun.embed", lambda *_: pytest.fail("too late"))
    with pytest.raises(NearkinError, match=r"no room for .*e.npz.* MB are needed and 0.0 MB are free"):
        embed_files(trained, photos, tmp_path / "e.npz")


def test_nothing_readable(trained, tmp_path):
    (tmp_path / "x.jpg").write_text("no image")
    with pytest.raises(DataError, match=r"none of the 1 images of 'x.jpg' can be read:\n.*x.jpg: not an image"):
        embed_files(trained, tmp_path / "x.jpg", tmp_path / "e.npz")


@pytest.mark.skipif(os.name != "posix", reason="other systems have no undecodable file names")
def test_names_in_an_older_encoding_can_be_written(trained, photos, tmp_path):
    folder = tmp_path / "old"
    folder.mkdir()
    try:
        shutil.copy(photos / "kiwi" / "Bild 0 ä.png", os.path.join(os.fsencode(folder), b"K\xe4se.png"))
    except OSError:
        pytest.skip("this file system insists on UTF-8")
    for output in ("e.npz", "e.csv"):
        assert embed_files(trained, folder, tmp_path / output).ids == ("Käse.png",)
    assert os.path.isfile(str(np.load(tmp_path / "e.npz")["paths"][0]))
