"""The kernel against plain PyTorch; where there is no GPU it runs in Triton's interpreter, if Triton is installed."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from nearkin.data import _resampling_kernel, device_images

pytestmark = pytest.mark.gpu if torch.cuda.is_available() else []
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("size, reach", [(20, 60), (16, 15), (33, 200)])
def test_the_kernel_gives_what_plain_pytorch_does(monkeypatch, size, reach):
    rng = np.random.default_rng(0)
    shapes = rng.integers(5, reach, (6, 2))
    starts = np.cumsum(shapes.prod(axis=1)) - shapes.prod(axis=1)
    pixels = torch.from_numpy(rng.integers(0, 256, (shapes.prod(axis=1).sum(), 3), dtype=np.uint8)).to(DEVICE)
    boxes = np.array([(0.5, 1, width, height - 1.25) for height, width in shapes], dtype=np.float32)
    flips = np.array([False, True, True, False, False, True])
    given = {}

    def taps(*arguments):
        given["taps"] = _taps(*arguments)
        return given["taps"]

    _taps = device_images._taps
    monkeypatch.setattr(device_images, "_taps", taps)
    monkeypatch.setattr(device_images, "_kernel", lambda: None)
    plain = device_images.resample(pixels, starts, shapes, boxes, flips, size)
    start, width = (torch.from_numpy(values.copy()).to(DEVICE) for values in (starts, shapes[:, 1]))
    fused = _resampling_kernel.weighted_means(pixels, start, width, *given["taps"])
    assert torch.equal(plain, fused)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="on a GPU it is chosen by itself")
def test_a_gpu_uses_it():
    assert device_images._kernel() is _resampling_kernel
