from __future__ import annotations

import pytest
import torch

from nearkin.errors import RecipeError
from nearkin.training.device import autocast, autocast_dtype, describe_hardware, peak_process_memory, pick_device

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
