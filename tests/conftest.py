"""Fixtures that several parts of the suite share."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

from nearkin import cli

# Some virtual machines announce AMX and then do not let programs use it: torch's half-precision matrix products die
# there with an illegal instruction. oneDNN reads this when it first runs, which is after collection.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# How long an example takes says something of the machine, not of the code.
settings.register_profile("nearkin", deadline=None)
settings.load_profile("nearkin")

KINDS = ("blaue Möwe", "Grüner Specht", "rote Ente", "weiße Taube", "çà et là", "kiwi")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or fills the cache of the person who runs it; tests share one so that Glyphs is drawn once."""
    monkeypatch.setenv("NEARKIN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def nearkin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run the command; returns (exit code, standard output, standard error)."""

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["nearkin", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def write_photos(root: Path, *, kinds: tuple[str, ...] = KINDS, per_kind: int = 8, size: int = 40) -> Path:
    """A folder per kind; a kind is a colour and a stripe direction, an image has noise and a shifted stripe."""
    rng = np.random.default_rng(0)
    for number, kind in enumerate(kinds):
        (root / kind).mkdir(parents=True)
        for index in range(per_kind):
            y, x = np.mgrid[0:size, 0:size]
            phase = (x * np.cos(number) + y * np.sin(number)) / 4 + rng.uniform(0, 6)
            colour = np.array([80 + 25 * number, 200 - 25 * number, 60 + 30 * (number % 3)])
            pixels = colour * (0.6 + 0.4 * np.sin(phase))[..., None] + rng.normal(0, 15, (size, size, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / kind / f"Bild {index} ä.png")
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "own photos")
