"""Freed memory is kept on a CPU, and nothing is touched where that is not ours to decide."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
import torch

from nearkin.training import allocator
from nearkin.training.allocator import keep_freed_memory

CPU = torch.device("cpu")
ON_GLIBC = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"


@pytest.fixture
def calls(monkeypatch):
    """What would be set, without setting it in the process of the tests."""
    made = []

    class Library:
        def gnu_get_libc_version(self): ...

        def mallopt(self, name, value):
            made.append((name, value))
            return 1

    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: Library())
    monkeypatch.setattr(allocator.sys, "platform", "linux")
    for name in ("LD_PRELOAD", "GLIBC_TUNABLES", allocator.OFF, *(n for n in os.environ if n.startswith("MALLOC_"))):
        monkeypatch.delenv(name, raising=False)
    allocator._set_up.cache_clear()
    yield made
    allocator._set_up.cache_clear()


def test_it_is_set_up_once_however_often_it_is_asked_for(calls):
    assert keep_freed_memory(CPU)
    assert keep_freed_memory(CPU)
    assert calls == [(-4, 0), (-1, 2**31 - 1)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NEARKIN_ALLOCATOR", "system"),
        ("MALLOC_TRIM_THRESHOLD_", "1000"),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=1"),
        ("LD_PRELOAD", "/usr/lib/libtcmalloc.so.4"),
    ],
)
def test_what_the_environment_says_is_left_alone(calls, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert not keep_freed_memory(CPU)
    assert calls == []


def test_other_devices_and_systems_are_left_alone(calls, monkeypatch):
    assert not keep_freed_memory(torch.device("cuda"))
    monkeypatch.setattr(allocator.sys, "platform", "darwin")
    assert not keep_freed_memory(CPU)
    monkeypatch.setattr(allocator.sys, "platform", "linux")
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda _: object())  # musl
    allocator._set_up.cache_clear()
    assert not keep_freed_memory(CPU)
    assert calls == []


PROBE = """
import resource, sys, torch
from nearkin.training.allocator import keep_freed_memory
print(keep_freed_memory(torch.device("cpu")), end=" ")
for _ in range(2):
    b"x" * 64_000_000
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    b"x" * 64_000_000
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not ON_GLIBC, reason="glibc's allocator")
def test_memory_that_was_freed_is_taken_again_without_page_faults():
    """64 MB taken and freed five times over are 78,125 pages of 4 KiB, or 150 huge ones."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "LD_PRELOAD", "GLIBC_"))}
    faults = {}
    for choice in ("", "system"):
        given = environment | {allocator.OFF: choice}
        told = subprocess.run([sys.executable, "-c", PROBE], env=given, capture_output=True, text=True, check=True)
        kept, count = told.stdout.split()
        assert kept == str(choice == "")
        faults[choice] = int(count)
    assert faults[""] < faults["system"] / 4
