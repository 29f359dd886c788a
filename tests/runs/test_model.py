"""A trained encoder as other programs use it: loaded from a run, a file or several, and applied to images."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import nearkin
from nearkin.errors import DataError, RecipeError
from nearkin.report.opened_run import OpenedRun
from nearkin.runs.data import open_data
from nearkin.runs.folder import RunFolder
from nearkin.runs.model import reload
from nearkin.runs.trained_run import embed_files, identity_of, load_run, proxies_of


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
    expected = torch.from_numpy(saved["embeddings"])
    run = load_run(trained, device="cpu")
    forms = {
        "paths": paths,
        "texts": [str(path) for path in paths],
        "bytes": [path.read_bytes() for path in paths],
        "opened": [Image.open(path) for path in paths],
        "saved paths": saved["paths"],
    }
    for name, images in forms.items():
        embeddings = run.embed(images)
        assert embeddings.dtype == torch.float32
        torch.testing.assert_close(embeddings, expected, msg=name)
    loaded = [Image.open(path) for path in paths]
    for image in loaded:
        image.load()
    cosine = torch.nn.functional.cosine_similarity(run.embed(loaded), expected)
    assert (cosine > 0.999).all(), "a large JPEG that was decoded whole is not quite the same"
    torch.testing.assert_close(run.embed(paths[2]), expected[2:3])


def test_arrays_and_tensors_are_embedded_like_the_pixels_they_are(trained, photos):
    path = photos / "kiwi" / "Bild 0 ä.png"
    run = load_run(trained, device="cpu")
    array = np.array(Image.open(path))
    expected = run.embed(path)
    for image in (array, array[None], torch.from_numpy(array), torch.from_numpy(array).permute(2, 0, 1)):
        torch.testing.assert_close(run.embed(image), expected)
    assert run.embed(array[:, :, 0]).shape == (1, 8)
    with pytest.raises(DataError, match="float32"):
        run.embed(torch.rand(3, 8, 8))
    images, rows = open_data(run.recipe.data).images, np.array([3, 0], dtype=np.int64)
    torch.testing.assert_close(run.embed(images, rows), run.embed(images)[[3, 0]])


def test_a_model_encodes_in_the_order_given(trained, photos):
    model = nearkin.load(trained, device="cpu")
    paths = sorted(photos.rglob("*.png"))[:5]
    expected = load_run(trained, device="cpu").embed(paths).numpy()
    vectors = model.encode(paths[::-1], batch_size=2)
    assert isinstance(vectors, np.ndarray)
    np.testing.assert_allclose(vectors, expected[::-1], atol=1e-6)
    assert model.encode([]).shape == (0, 8)
    pixels = np.asarray(Image.open(paths[0]).convert("RGB"))
    for one in (paths[0], str(paths[0]), paths[0].read_bytes(), Image.open(paths[0]), pixels, torch.from_numpy(pixels)):
        np.testing.assert_allclose(model.encode(one), expected[0], atol=1e-5)
    assert model.encode(paths[0]).shape == (8,)
    for batch in ([paths[0]], pixels[None], torch.from_numpy(pixels)[None], (path for path in paths[:1])):
        assert model.encode(batch).shape == (1, 8)
    assert (model.dim, model.distance) == (8, "cosine")
    with pytest.raises(DataError, match="batch_size"):
        model.encode(paths, batch_size=0)


def test_a_run_is_loaded_ready_for_use(trained, tmp_path):
    run = load_run(trained, device="cpu")
    assert not run.encoder.training
    assert run.recipe == RunFolder(trained).recipe()
    with pytest.raises(RecipeError, match="'first'"):
        load_run(trained, which="first")
    with pytest.raises(DataError, match="next to it"):
        load_run(tmp_path / "nowhere")
    other = shutil.copytree(trained, tmp_path / "other")
    recipe = (other / "recipe.yaml").read_text()
    (other / "recipe.yaml").write_text(recipe.replace("  dim: 8\n", "  dim: 9\n"))
    with pytest.raises(DataError, match=r"are not those of its recipe"):
        load_run(other, device="cpu")


def test_a_path_that_is_no_run_says_what_to_give(trained, tmp_path):
    with pytest.raises(DataError, match=r"rum'; did you mean '.*run'"):
        nearkin.load(tmp_path / "rum")
    for path in (tmp_path / "nothing" / "like it", trained / "recipe.yaml", tmp_path / "model.onnx"):
        with pytest.raises(DataError, match=str(path)):
            nearkin.load(path)


def test_the_identity_is_that_of_the_vectors(trained, tmp_path):
    identity = nearkin.load(trained).identity
    assert nearkin.load(shutil.copytree(trained, tmp_path / "copy")).identity == identity
    changed = load_run(trained)
    with torch.no_grad():
        next(changed.encoder.head.parameters())[0, 0] += 1
    others = [identity_of(run) for run in (changed, load_run(trained, flip=True), load_run(trained, eval_size=40))]
    assert len({identity, *others}) == 4


def test_a_model_knows_the_images_that_it_was_trained_on_by_their_content(trained, photos, tmp_path, train_like):
    stored = RunFolder(trained).split
    for number, suffix in enumerate((None, ".onnx", ".safetensors")):
        path = trained
        if suffix is not None:
            path = tmp_path / f"{number}{suffix}"
            nearkin.export(trained, suffix[1:], path)
        was_trained_on = nearkin.load(path, device="cpu").was_trained_on
        for content_hash, split in zip(stored.digests, stored.splits, strict=True):
            assert was_trained_on(content_hash) == (split == "train")
        assert not was_trained_on("0" * 32)
    untrained = train_like("untrained", {"training.epochs": 0, "training.max_steps": None})
    assert not nearkin.load(untrained, device="cpu").was_trained_on(stored.digests[0])


def test_several_models_are_one_whose_cosine_is_the_mean_of_theirs(trained, photos, train_like):
    other = train_like("other", {"training.seed": 5})
    both = nearkin.load([trained, other], device="cpu", flip=True)
    images = sorted(photos.rglob("*.png"))[:6]
    vectors = both.encode(images)
    alone = [nearkin.load(path, device="cpu", flip=True).encode(images) for path in (trained, other)]
    assert vectors.shape == (6, 16) == (6, both.dim)
    np.testing.assert_allclose(vectors @ vectors.T, np.mean([each @ each.T for each in alone], axis=0), atol=1e-6)
    assert np.abs(alone[0] @ alone[0].T - alone[1] @ alone[1].T).max() > 1e-3, "the two do differ"
    paths = (trained, other, [trained, other], [other, trained])
    assert len({both.identity} | {nearkin.load(path, device="cpu").identity for path in paths}) == 5
    assert nearkin.load([trained]).identity == nearkin.load(trained).identity
    again = reload(both.path, both.options, device="cpu")
    assert (again.identity, again.options) == (both.identity, {"flip": True, "also": [str(other)]})
    np.testing.assert_array_equal(again.encode(images), vectors)
    another_split = train_like("another split", {"protocol.split_seed": 3})
    folders = [RunFolder(path).split for path in (trained, another_split)]
    together = nearkin.load([trained, another_split], device="cpu").was_trained_on
    assert folders[0].trained != folders[1].trained
    for content_hash in folders[0].digests:
        assert together(content_hash) == any(content_hash in split.trained for split in folders)


def test_models_that_do_not_go_together_are_refused(trained, train_like):
    larger = train_like("larger", {"data.shorter_side": 60})
    ball = train_like("ball", {"encoder.normalisation": "ball"})
    for paths, part in (
        ([trained, larger], "48, 60"),
        ([trained, ball], "same encoder.normalisation"),
        ([], "at least one"),
    ):
        with pytest.raises(RecipeError, match=part):
            nearkin.load(paths)


def test_exported_files_go_together_too_and_keep_their_options(trained, tmp_path, photos):
    nearkin.export(trained, "safetensors", tmp_path / "a.safetensors")
    image = next(photos.rglob("*.png"))
    alone = nearkin.load(tmp_path / "a.safetensors")
    both = nearkin.load([tmp_path / "a.safetensors"] * 2)
    np.testing.assert_allclose(both.encode(image), np.tile(alone.encode(image), 2) / 2**0.5, atol=1e-6)
    with pytest.raises(RecipeError, match="flip"):
        nearkin.load(tmp_path / "a.safetensors", flip=True)


def test_class_proxies_are_those_of_the_loss_with_their_classes(four_runs, tmp_path):
    proxies = proxies_of(four_runs[0], 5)
    run = OpenedRun(four_runs[0])
    assert list(proxies.names) == [run.data.table.class_names[label] for label in run.training_classes]
    assert np.linalg.norm(proxies.vectors, axis=1) == pytest.approx(np.ones(7), abs=1e-5)
    assert np.allclose(proxies.vectors, run.proxies.vectors.flatten(0, 1).numpy(), atol=1e-6)
    assert proxies_of(four_runs[3], 5) is None, "a loss on pairs"
    assert proxies_of(four_runs[0], 6) is None
    assert proxies_of(tmp_path / "model.onnx", 5) is None
