"""Every format gives what the graph gives, for all backbones, numbers and sizes of images."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.encoders import backbones
from nearkin.errors import DataError
from nearkin.exports.model import load_exported
from nearkin.exports.torch_files import load, write_onnx, write_program, write_weights
from nearkin.recipe import EncoderSection

FAST = ("small",)
NAMES = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in sorted(backbones())]
BATCHES = [(1, 71, 71), (2, 90, 75), (5, 64, 130), (1, 200, 333), (3, 20, 31)]


@pytest.fixture
def has_onnx():
    for module in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(module, reason="the extra onnx is not installed")


def assert_same(graph, file, photo_of):
    model = load_exported(file)
    for count, height, width in BATCHES:
        images = np.stack([photo_of(height, width, seed) for seed in range(count)])
        with torch.inference_mode():
            expected = graph(torch.from_numpy(images)).numpy()
        found = model.compute(images)
        assert found.dtype == np.float32
        assert found.shape == (count, 8)
        assert np.abs(found - expected).max() <= 1e-5


@pytest.mark.parametrize("backbone", NAMES)
def test_onnx_gives_what_torch_gives(backbone, graph_of, photo_of, tmp_path, has_onnx):
    graph, settings = graph_of(backbone)
    write_onnx(graph, settings, tmp_path / "a.onnx")
    assert_same(graph, tmp_path / "a.onnx", photo_of)
    assert load_exported(tmp_path / "a.onnx").settings == settings


@pytest.mark.parametrize(("flip", "squash"), [(True, False), (False, True)])
def test_onnx_with_mirror_images_and_with_squashed_ones(flip, squash, graph_of, photo_of, tmp_path, has_onnx):
    graph, settings = graph_of(flip=flip, squash=squash, normalisation="ball", pooling="gem", channels_last=True)
    write_onnx(graph, settings, tmp_path / "a.onnx")
    assert_same(graph, tmp_path / "a.onnx", photo_of)


@pytest.mark.parametrize("backbone", NAMES)
def test_programs_give_what_torch_gives(backbone, graph_of, photo_of, tmp_path):
    graph, settings = graph_of(backbone)
    write_program(graph, settings, tmp_path / "a.pt2")
    assert_same(graph, tmp_path / "a.pt2", photo_of)
    assert load_exported(tmp_path / "a.pt2").settings == settings


@pytest.mark.parametrize("backbone", ["small", "efficientnet_lite0", "bn_inception"])
def test_weights_bring_their_encoder_along(backbone, graph_of, photo_of, tmp_path):
    graph, settings = graph_of(backbone, flip=True, pooling="avg+max")
    section = EncoderSection(backbone=backbone, dim=8, pooling="avg+max", weights="gone.pth")
    write_weights(graph, section, settings, tmp_path / "a.safetensors")
    assert_same(graph, tmp_path / "a.safetensors", photo_of)


@pytest.mark.parametrize("suffix", [".pt2", ".safetensors"])
def test_damaged_files_are_named(suffix, tmp_path):
    file = tmp_path / f"a{suffix}"
    file.write_bytes(b"no such thing")
    with pytest.raises(DataError, match=r"a\.\w+ cannot be read"):
        load(file)


def test_weights_of_others_are_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(1)}, tmp_path / "a.safetensors")
    with pytest.raises(DataError, match="not written by nearkin export"):
        load(tmp_path / "a.safetensors")
