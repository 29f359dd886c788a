"""An error of full memory becomes one that says who holds it and what to do; others are left as they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.errors import LackOfMemoryError
from nearkin.lack_of_memory import lack_of_memory, memory_watched

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 392.00 MiB.")


def on_a_gpu(monkeypatch, *, free, own, total=80_000_000_000):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, total))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: own)


def test_beside_others_it_says_what_they_hold_and_to_run_fewer(monkeypatch):
    on_a_gpu(monkeypatch, free=400_000_000, own=9_600_000_000)
    said = str(lack_of_memory(FULL))
    assert "9.6 of its 80 GB held by this process, 70.0 by others" in said
    assert "--jobs" in said
    assert "training.micro_batch" in said
    assert "--resume" in said


def test_alone_it_speaks_of_the_work_only(monkeypatch):
    on_a_gpu(monkeypatch, free=400_000_000, own=79_000_000_000)
    said = str(lack_of_memory(FULL))
    assert "79.0 of its 80 GB held by this process, 0.6 by others" in said
    assert "--jobs" not in said
    assert "training.batch_size" in said


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be reported later",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "MPS backend out of memory (MPS allocated: 8.00 GB, max allowed: 9.07 GB)",
    ],
)
def test_a_gpu_that_cannot_be_asked_is_full_all_the_same(monkeypatch, text):
    def refuse():
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "mem_get_info", refuse)
    said = str(lack_of_memory(RuntimeError(text)))
    assert said.startswith("the GPU's memory is full: take fewer images at a time")


@pytest.mark.parametrize("ask", [lambda: torch.empty(1 << 59), lambda: np.empty(1 << 59)])
def test_of_the_machine_it_says_how_much_was_asked_for(ask):
    with pytest.raises((RuntimeError, MemoryError)) as raised:
        ask()
    said = str(lack_of_memory(raised.value))
    assert said.startswith("this machine's memory is full (")
    assert "alloc" in said.split(")")[0]
    assert "\n" not in said


def test_what_is_watched_keeps_the_error_it_was_and_lets_others_pass():
    with pytest.raises(LackOfMemoryError) as raised, memory_watched():
        raise FULL
    assert raised.value.__cause__ is FULL
    with pytest.raises(RuntimeError, match="a bug"), memory_watched():
        raise RuntimeError("a bug")


def test_other_errors_are_none_of_its_business():
    assert lack_of_memory(RuntimeError("CUDA error: device-side assert triggered")) is None
    assert lack_of_memory(ValueError("memory")) is None


@pytest.mark.gpu
def test_a_gpu_tells_who_holds_its_memory():
    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    assert "GB held by this process" in str(lack_of_memory(raised.value))
