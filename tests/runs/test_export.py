"""Exported files: they give what the run gives, are checked before they get their name, and run without torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import nearkin
from nearkin.data.images import resized_shape
from nearkin.data.transforms import Transform
from nearkin.encoders import Encoder, backbones, build_encoder
from nearkin.encoders.architectures.vit import VisionTransformer
from nearkin.encoders.encoder import build_pooling
from nearkin.errors import DataError, MissingExtraError, RecipeError
from nearkin.recipe import EncoderSection
from nearkin.runs import export as module
from nearkin.runs.export import TO_PILLOW, TO_TORCH, PixelsToEmbeddings, export, write_onnx, write_weights
from nearkin.runs.model import ExportedModel, Settings, load_exported
from nearkin.training.embedding import embed_images

SHAPES = [(71, 71), (71, 90), (120, 71), (300, 211), (50, 40), (37, 200), (1, 1), (640, 97)]
BATCHES = [(1, 71, 71), (2, 90, 75), (5, 64, 130), (1, 200, 333), (3, 20, 31)]
BACKBONES = [name if name == "small" else pytest.param(name, marks=pytest.mark.slow) for name in sorted(backbones())]


@pytest.fixture
def has_onnx():
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason="the extra onnx is not installed")


def photo(height, width, seed=0):
    """Smooth, as photos are, with some noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / 9.0
    waves = [np.sin(x * rng.uniform(0.2, 1) + y * rng.uniform(0.2, 1) + rng.uniform(0, 6)) for _ in range(3)]
    return (128 + 90 * np.stack(waves, -1) + rng.normal(0, 8, (height, width, 3))).clip(0, 255).astype(np.uint8)


def graph_of(backbone="small", *, flip=False, squash=False, **encoder):
    """A graph with random weights, and the settings that go with it."""
    torch.manual_seed(0)
    transform = Transform(name="tiny", size=64, resize=71, squash=squash)
    graph = PixelsToEmbeddings(build_encoder(backbone, dim=8, **encoder).eval(), transform, flip=flip)
    sizes = {"size": 64, "resize": 71, "squash": squash, "shorter_side": 71}
    return graph, Settings(identity="abc", dim=8, normalisation=graph.encoder.normalisation, **sizes)


def assert_same(graph, file):
    model = load_exported(file)
    for count, height, width in BATCHES:
        images = np.stack([photo(height, width, seed) for seed in range(count)])
        with torch.inference_mode():
            expected = graph(torch.from_numpy(images)).numpy()
        embeddings = model.compute(images)
        assert embeddings.dtype == np.float32
        assert np.abs(embeddings - expected).max() <= 1e-5


@pytest.mark.parametrize("squash", [False, True])
def test_crops_are_those_of_pillow_to_one_level(squash):
    """Pillow rounds after columns and after rows: half a level each, and what the weights' 22 bits leave."""
    graph, _ = graph_of(squash=squash)
    transform = Transform(name="tiny", size=64, resize=71, squash=squash)
    for shape in SHAPES:
        image = photo(*shape)
        crop = graph.crops(torch.from_numpy(image)[None])[0].permute(1, 2, 0).numpy()
        assert np.abs(crop - transform.evaluate(image)).max() <= 1.01, shape
        if shape == (71, 71) or (not squash and resized_shape(*shape, 71) == shape):
            assert np.array_equal(crop, transform.evaluate(image)), shape


def test_the_crop_is_cut_where_the_transform_cuts_it():
    for size in range(60, 72):
        transform = Transform(name="tiny", size=size, resize=71)
        graph = PixelsToEmbeddings(build_encoder("small", dim=8), transform)
        for width in range(71, 80):
            image = np.random.default_rng(0).integers(0, 256, (71, width, 3), dtype=np.uint8)
            crop = graph.crops(torch.from_numpy(image)[None])[0].permute(1, 2, 0).numpy()
            assert np.array_equal(crop, transform.evaluate(image)), (size, width)


@pytest.mark.parametrize(
    ("backbone", "flip", "normalisation"),
    [("small", True, "l2"), ("small", False, "ball"), ("bn_inception", True, "ball")],  # bn_inception sees blue first
)
def test_embeddings_are_those_of_a_run_where_nothing_is_resized(backbone, flip, normalisation):
    graph, _ = graph_of(backbone, flip=flip, normalisation=normalisation)
    images = [photo(71, 90, seed) for seed in range(3)]
    expected = embed_images(graph.encoder, images, Transform(name="tiny", size=64, resize=71), flip=flip)
    with torch.inference_mode():
        embeddings = graph(torch.from_numpy(np.stack(images)))
    assert torch.allclose(embeddings, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_onnx_gives_what_torch_gives(backbone, tmp_path, has_onnx):
    graph, settings = graph_of(backbone)
    write_onnx(graph, settings, tmp_path / "a.onnx")
    assert_same(graph, tmp_path / "a.onnx")
    assert load_exported(tmp_path / "a.onnx").settings == settings


@pytest.mark.parametrize(
    ("family", "size"),
    [
        ({}, 96),  # positions are interpolated from a grid of 4 patches a side to one of 6
        ({"patch": 14, "image_size": 70, "layer_scale": True, "pool": "both"}, 70),  # DINOv2
        ({"patch": 14, "image_size": 70, "layer_scale": True, "registers": 4}, 42),
        ({"class_token": False}, 64),  # SigLIP
    ],
)
def test_onnx_of_vision_transformers_gives_what_torch_gives(family, size, tmp_path, has_onnx):
    """Every parameter is as large as the others: a branch scaled by 1e-5, as it is before training, would hide."""
    torch.manual_seed(0)
    vit = VisionTransformer(**{"width": 32, "heads": 2, "depth": 2, "image_size": 64} | family)
    with torch.no_grad():
        for parameter in vit.parameters():
            parameter.normal_(std=0.3)
    encoder = Encoder(vit, build_pooling("avg"), dim=8).eval()
    graph = PixelsToEmbeddings(encoder, Transform(name="tiny", size=size, resize=size + 7))
    sizes = {"size": size, "resize": size + 7, "squash": False, "shorter_side": size + 7}
    write_onnx(graph, Settings(identity="abc", dim=8, normalisation="l2", **sizes), tmp_path / "a.onnx")
    assert_same(graph, tmp_path / "a.onnx")


def test_onnx_with_mirror_images_and_squashed_ones(tmp_path, has_onnx):
    graph, settings = graph_of(flip=True, squash=True, normalisation="ball", pooling="gem", channels_last=True)
    write_onnx(graph, settings, tmp_path / "a.onnx")
    assert_same(graph, tmp_path / "a.onnx")


@pytest.mark.parametrize("backbone", ["small", pytest.param("bn_inception", marks=pytest.mark.slow)])
def test_weights_bring_their_encoder_along(backbone, tmp_path):
    graph, settings = graph_of(backbone, flip=True, pooling="avg+max")
    section = EncoderSection(backbone=backbone, dim=8, pooling="avg+max", weights="gone.pth")
    write_weights(graph, section, settings, tmp_path / "a.safetensors")
    assert_same(graph, tmp_path / "a.safetensors")


@pytest.mark.parametrize("format_", ["onnx", "safetensors"])
def test_a_file_encodes_as_its_run_does_and_has_a_card(format_, trained, photos, tmp_path, request):
    if format_ == "onnx":
        request.getfixturevalue("has_onnx")
    made = nearkin.export(trained, format_, tmp_path / "out" / f"model.{format_}")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [f"model.{format_}", f"model.{format_}.md"]
    paths = sorted(photos.rglob("*.png"))[::5]
    run, model = nearkin.load(trained, device="cpu"), nearkin.load(made.file)
    assert np.abs(model.encode(paths, batch_size=4) - run.encode(paths)).max() <= 1e-5
    assert (model.identity, model.dim, model.distance) == (run.identity, 8, "cosine")
    assert made.check.images == "18 images of the run"
    assert made.check.to_torch <= TO_TORCH
    assert 0 < made.check.to_pillow <= TO_PILLOW
    card = made.card.read_text()
    for part in ("## Data", "| R@1 |", "backbone `small`", "## Licence", "test_share: 0.35", f"'model.{format_}'"):
        assert part in card


def test_an_onnx_file_runs_without_torch_and_gives_what_the_run_gives(tmp_path, has_onnx):
    graph, settings = graph_of()
    write_onnx(graph, settings, tmp_path / "a.onnx")
    images = [photo(90, 75, 1), photo(40, 200, 2)]
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    code = """
import numpy as np
import nearkin
vectors = nearkin.load("a.onnx").encode(["0.png", "1.png"])
assert "torch" not in sys.modules, "torch was imported"
np.save("vectors.npy", vectors)
"""
    source = str(Path(nearkin.__file__).parents[1])
    subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r})" + code], check=True, cwd=tmp_path
    )
    transform = Transform(name="tiny", size=64, resize=71)
    assert min(images[0].shape[:2]) > settings.shorter_side
    shrunk = np.array(Image.fromarray(images[0]).resize((71, 85), Image.Resampling.BILINEAR))
    crops = np.stack([transform.evaluate(shrunk), transform.evaluate(images[1])])
    with torch.inference_mode():
        expected = graph.encoder(torch.from_numpy(crops)).numpy()
    assert np.abs(np.load(tmp_path / "vectors.npy") - expected).max() <= 1e-5


def test_a_file_beyond_the_tolerance_is_not_written(trained, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    file = tmp_path / "out" / "a.safetensors"
    file.write_bytes(b"what was there")

    def wrong(graph, section, settings, path):
        graph.encoder.head.bias.data += 0.01
        write_weights(graph, section, settings, path)
        graph.encoder.head.bias.data -= 0.01

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_weights", wrong)
        with pytest.raises(DataError, match="nothing was written"):
            export(trained, "safetensors", file)
    crops = PixelsToEmbeddings.crops
    monkeypatch.setattr(PixelsToEmbeddings, "crops", lambda self, images: crops(self, images).transpose(2, 3))
    with pytest.raises(DataError, match="nothing was written"):
        export(trained, "safetensors", file)
    assert list((tmp_path / "out").iterdir()) == [file]
    assert file.read_bytes() == b"what was there"


def test_the_images_that_it_is_checked_on(trained, photos, tmp_path):
    file = tmp_path / "a.safetensors"
    made = export(trained, "safetensors", file, images=sorted(photos.rglob("*.png"))[:2])
    assert made.check.images == "6 images that were given"
    with pytest.raises(RecipeError):
        export(trained, "safetensors", file, images=[])
    shutil.rmtree(photos)
    with pytest.raises(DataError, match="--images"):
        export(trained, "safetensors", file)


def test_mistakes_are_told_before_any_work(trained, tmp_path, monkeypatch):
    for format_, output in (("onxx", None), ("safetensors", tmp_path / "a.onnx"), ("safetensors", tmp_path)):
        with pytest.raises(RecipeError):
            export(trained, format_, output)
    with pytest.raises(DataError, match="no run at"):
        export(tmp_path / "none", "safetensors", tmp_path / "a.safetensors")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"nearkin\[onnx\]"):
        export(trained, "onnx", tmp_path / "a.onnx")


def test_images_of_all_sizes_share_batches_in_their_order():
    """A compute that shows what it was given: the crop's first pixel, and how many came at a time."""
    seen = []

    def compute(frames):
        seen.append(frames.shape)
        return frames[:, 2, 2, :2].astype(np.float32)  # round(1.5) is 2

    settings = Settings(identity="abc", dim=2, normalisation="l2", size=5, resize=8, squash=False, shorter_side=20)
    images = [photo(9 + number, 30 - number, number) for number in range(7)]
    model = ExportedModel(settings, compute)
    vectors = model.embed(images, batch_size=3)
    assert seen == [(3, 8, 8, 3), (3, 8, 8, 3), (1, 8, 8, 3)]
    transform = Transform(name="t", size=5, resize=8)
    assert vectors.tolist() == [transform.evaluate(image)[0, 0, :2].tolist() for image in images]
    assert model.embed([]).shape == (0, 2)


def test_what_is_no_exported_file_is_refused(tmp_path, monkeypatch):
    from safetensors.torch import save_file

    (tmp_path / "b.safetensors").write_bytes(b"no such thing")
    save_file({"weight": torch.ones(1)}, tmp_path / "c.safetensors")
    for name in ("a.onx", "a.onnx", "b.safetensors", "c.safetensors"):
        with pytest.raises(DataError, match=name):
            load_exported(tmp_path / name)
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    (tmp_path / "a.onnx").write_bytes(b"no such thing")
    with pytest.raises(DataError, match="onnxruntime"):
        load_exported(tmp_path / "a.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"nearkin\[onnx\]"):
        load_exported(tmp_path / "a.onnx")
