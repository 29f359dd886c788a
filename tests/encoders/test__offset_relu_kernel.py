"""The kernels against plain PyTorch; where there is no GPU they run in Triton's interpreter, if Triton is installed."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from nearkin.encoders import _offset_relu_kernel as kernels

pytestmark = pytest.mark.gpu if torch.cuda.is_available() else []
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPES = [(1, 1, 1, 1), (3, 64, 7, 7), (2, 96, 5, 9), (2, 200, 3, 3), (5, 320, 1, 2), (9, 8, 40, 40)]


def feature_map(shape, seed, dtype=torch.float32):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)
    return x.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("has_shortcut", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_forward_is_offset_shortcut_and_relu(shape, has_shortcut):
    x, shortcut = feature_map(shape, 0), feature_map(shape, 1) if has_shortcut else None
    offset = torch.randn(shape[1], generator=torch.Generator().manual_seed(2)).to(DEVICE)
    expected = torch.relu(x + offset.view(-1, 1, 1) + (0 if shortcut is None else shortcut))
    kernels.offset_relu_(x, offset, shortcut)
    torch.testing.assert_close(x, expected)
    assert x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("programs", [2048, 3])  # with few of them each goes on in several steps
@pytest.mark.parametrize("shape", SHAPES)
def test_backward_passes_on_what_relu_let_through_and_its_sums(shape, programs, monkeypatch):
    monkeypatch.setattr(kernels, "_PROGRAMS", programs)
    gradient, y = feature_map(shape, 0), feature_map(shape, 1).relu()
    result, sums = kernels.gradients(gradient, y)
    expected = torch.where(y > 0, gradient, torch.zeros_like(gradient))
    assert torch.equal(result, expected)
    assert result.stride() == y.stride()
    torch.testing.assert_close(sums.double(), expected.double().sum(dim=(0, 2, 3)), rtol=1e-4, atol=1e-4)


def test_what_is_no_number_stays_none():
    x = torch.tensor([1.0, float("nan"), -1.0, float("-inf")], device=DEVICE).view(1, 1, 2, 2)
    kernels.offset_relu_(x, torch.zeros(1, device=DEVICE), None)
    torch.testing.assert_close(x.flatten().cpu(), torch.tensor([1.0, float("nan"), 0.0, 0.0]), equal_nan=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="many places, and half precision")
def test_bfloat16_sums_are_taken_in_single_precision_and_always_the_same():
    gradient, y = feature_map((64, 256, 28, 28), 0, torch.bfloat16), feature_map((64, 256, 28, 28), 1, torch.bfloat16)
    result, sums = kernels.gradients(gradient, y)
    expected = torch.where(y > 0, gradient, torch.zeros_like(gradient))
    assert torch.equal(result, expected)
    torch.testing.assert_close(sums.double(), expected.double().sum(dim=(0, 2, 3)), rtol=1e-4, atol=1e-2)
    assert all(torch.equal(kernels.gradients(gradient, y)[1], sums) for _ in range(3))
