"""A trained run put to use on images: those in files, and those that a program hands over."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.errors import DataError, NearkinError, RecipeError
from nearkin.runs.trained_run import check_output, embed_files, load_run


def test_the_output_is_checked_before_any_work(photos, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("nearkin.runs.trained_run.load_run", lambda *_, **__: pytest.fail("too late"))
    (tmp_path / "file").touch()
    (tmp_path / "folder.npz").mkdir()
    for name in ("none/e.npz", "file/e.npz", "folder.npz", "e.xls"):
        with pytest.raises(RecipeError, match=name.partition("/")[0]):
            embed_files("run", photos, tmp_path / name)
    before = sorted(tmp_path.iterdir())
    check_output(tmp_path / "e.npz")
    assert sorted(tmp_path.iterdir()) == before, "nothing is left behind"
    monkeypatch.setattr("pathlib.Path.touch", refuse)
    with pytest.raises(NearkinError, match="Permission denied"):
        check_output(tmp_path / "e.npz")


def test_too_little_room_is_noticed_before_embedding(trained, photos, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=1000))
    monkeypatch.setattr("nearkin.runs.trained_run.TrainedRun.embed", lambda *_: pytest.fail("too late"))
    with pytest.raises(NearkinError, match=r"no room for .*e.npz.* MB are needed and 0.0 MB are free"):
        embed_files(trained, photos, tmp_path / "e.npz")


def test_nothing_readable(trained, tmp_path):
    (tmp_path / "x.jpg").write_text("no image")
    with pytest.raises(DataError, match=r"1 of the 1 images of 'x.jpg' cannot be read:\n.*x.jpg: not an image"):
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


def test_mirror_images_and_larger_crops(trained, photos, tmp_path):
    large = tmp_path / "large"
    large.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (120, 150, 3), dtype=np.uint8)
    Image.fromarray(noise).save(large / "a.png")
    Image.fromarray(noise[:, ::-1]).save(large / "b.png")
    Image.fromarray(noise[:20, :30]).save(large / "small.png")  # is enlarged
    embed_files(trained, large, tmp_path / "e.npz", flip=True, eval_size=56)
    embed_files(trained, large, tmp_path / "plain.npz")
    (a, b, small), (plain, mirrored, _) = (np.load(tmp_path / f)["embeddings"] for f in ("e.npz", "plain.npz"))
    assert np.allclose(a, b, atol=1e-4)
    assert not np.allclose(plain, mirrored, atol=1e-3)
    # By hand from the file itself: 64 pixels on the shorter side, of which the middle 56.
    model = load_run(trained, device="cpu")
    for name, found in (("a.png", a), ("small.png", small)):
        picture = Image.open(large / name)
        height, width = picture.height, picture.width
        scaled = picture.resize((64 * width // height, 64), Image.Resampling.BILINEAR)
        left = round((scaled.width - 56) / 2)
        crop = np.asarray(scaled)[4:60, left : left + 56]
        both = [torch.from_numpy(np.ascontiguousarray(each))[None] for each in (crop, crop[:, ::-1])]
        with torch.no_grad():
            expected = torch.nn.functional.normalize(sum(model.encoder(each) for each in both))
        assert np.abs(expected.numpy() - found).max() < 0.02
