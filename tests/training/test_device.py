from __future__ import annotations

import pytest
import torch

from nearkin.errors import RecipeError
from nearkin.training.device import (
    autocast,
    autocast_dtype,
    describe_hardware,
    float32_products,
    peak_process_memory,
    pick_device,
    precision_on,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("cuda, mps, expected", [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")])
def test_the_best_device_there_is(monkeypatch, cuda, mps, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert pick_device().type == expected


def test_a_device_that_is_not_known_or_not_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RecipeError, match="unknown device 'gpu': use auto, cpu"):
        pick_device("gpu")
    with pytest.raises(RecipeError, match=r"'cuda:1' is not available here: use training\.device=auto"):
        pick_device("cuda:1")
    with pytest.raises(RecipeError, match="'meta' is not available"):
        pick_device("meta")


@pytest.mark.parametrize("bf16", [True, False])
def test_precision(monkeypatch, bf16):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    assert autocast_dtype("auto", CUDA) == (torch.bfloat16 if bf16 else None)
    assert autocast_dtype("auto", CPU) is None
    assert autocast_dtype("float32", CUDA) is None
    assert autocast_dtype("tf32", CUDA) is autocast_dtype("tf32", CPU) is None
    assert autocast_dtype("bf16", CPU) == torch.bfloat16
    assert autocast_dtype("fp16", CUDA) == torch.float16
    with pytest.raises(RecipeError, match="fp16 needs a GPU"):
        autocast_dtype("fp16", CPU)


def test_only_a_dtype_changes_what_products_are_computed_in():
    x = torch.ones(2, 2)
    for dtype, expected in ((None, torch.float32), (torch.bfloat16, torch.bfloat16)):
        with autocast(CPU, dtype):
            assert (x @ x).dtype == expected


def test_the_record_of_a_cpu():
    assert describe_hardware(CPU).startswith("CPU, ")
    assert f"{torch.get_num_threads()} threads" in describe_hardware(CPU)
    assert peak_process_memory() > 2**24, "in bytes: Python with torch takes more than 16 MiB"


@pytest.mark.parametrize("precision, expected", [("float32", (False, False)), ("tf32", (True, True)), ("bf16", None)])
def test_what_float32_means_on_cuda(precision, expected):
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    with float32_products(precision):
        inside = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    assert inside == (before if expected is None else expected)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


def test_what_a_precision_comes_to():
    assert precision_on(CUDA, "tf32") == "tf32"
    assert precision_on(CPU, "tf32") == precision_on(CPU, "auto") == precision_on(CUDA, "float32") == "float32"
    assert precision_on(CUDA, "fp16") == "float16"


@pytest.mark.gpu
def test_how_many_bits_float32_and_tf32_keep():
    torch.manual_seed(0)
    x, kernel = torch.randn(4, 64, 16, 16, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    a, b = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    true = torch.nn.functional.conv2d(x.double(), kernel.double()), a.double() @ b.double()
    errors = {}
    for precision in ("float32", "tf32"):
        with float32_products(precision):
            ours = torch.nn.functional.conv2d(x, kernel), a @ b
        errors[precision] = [float((one - other).norm() / other.norm()) for one, other in zip(ours, true, strict=True)]
    assert max(errors["float32"]) < 1e-5
    assert 1e-5 < min(errors["tf32"]) <= max(errors["tf32"]) < 2e-3
