"""Kernels are there, or missing in silence, or missing with a reason; never an error."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from nearkin.errors import load_kernels


@pytest.fixture
def has_triton(monkeypatch):
    """Say whether Triton is installed; and there is a module of kernels."""
    kernels = ModuleType("some_kernels")
    monkeypatch.setitem(sys.modules, "some_kernels", kernels)

    def say(there):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if there else None)
        return kernels

    return say


def test_they_are_tried_out(has_triton):
    kernels, tried = has_triton(True), []
    assert load_kernels("some_kernels", tried.append, "off") is kernels
    assert tried == [kernels]


def test_without_triton_nothing_is_said(has_triton):
    has_triton(False)
    tried = []
    assert load_kernels("some_kernels", tried.append, "off") is None
    assert not tried


def test_a_compiler_that_fails_is_named(has_triton):
    has_triton(True)

    def fail(kernels):
        raise RuntimeError("no C compiler")

    with pytest.warns(UserWarning, match="crops are slower: no C compiler"):
        assert load_kernels("some_kernels", fail, "crops are slower") is None


def test_a_module_that_cannot_be_imported_is_named(has_triton):
    has_triton(True)
    with pytest.warns(UserWarning, match="off: No module named 'no_such_kernels'"):
        assert load_kernels("no_such_kernels", lambda kernels: None, "off") is None
