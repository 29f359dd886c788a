"""The examples as modules, and little enough data to run them quickly."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import nearkin
from nearkin.data.benchmarks.glyphs import FACES, GlyphClass, draw_glyphs

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    """An example, by its name, as Python finds what lies beside it when it is run."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def load(name):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def share_of_glyphs():
    """28 letters to learn from and as many to score on, in sixteen faces each and half the size."""
    return draw_glyphs([GlyphClass(ord(c), {face: ord(c) for face in FACES}) for c in _LETTERS], size=24)


_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÜßabcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def few_glyphs(share_of_glyphs, monkeypatch):
    """What an example gets that reads the whole benchmark, which takes ten seconds to draw."""

    def read(source, **_):
        assert source == "glyphs"
        return share_of_glyphs

    monkeypatch.setattr(nearkin, "read_source", read, raising=False)
    return share_of_glyphs
