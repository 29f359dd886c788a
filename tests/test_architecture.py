"""What docs/architecture.md names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?|[a-z_]+\.py)`", PAGE)))


@pytest.mark.parametrize("name", NAMED)
def test_files_that_are_named_exist(name):
    places = [ROOT / name, ROOT / "src" / "nearkin" / name]
    beside = list((ROOT / "src" / "nearkin").rglob(name)) if "/" not in name else []
    assert beside or any(place.exists() for place in places)


def test_functions_and_classes_that_are_named_exist():
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "nearkin").rglob("*.py"))
    walks = PAGE[PAGE.index("## Three walks") : PAGE.index("## Rules that hold everywhere")]
    names = set(re.findall(r"`(?:[a-z_]+\.)?([A-Za-z_]{5,})(?:\([^`]*\))?`", walks)) - {"nearkin"}
    assert len(names) > 20
    missing = {name for name in names if not re.search(rf"(def|class) {name}\b|\b{name}\b\s*[:=]", source)}
    assert not missing
