from __future__ import annotations

import sys
from pathlib import Path

import pytest

import nearkin
from nearkin.catalogue import keyword_options, modules_of, parts_of, plot_names


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "shelf_of_parts"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name, code in {
        "second": '__all__ = ["Second", "other"]\nother = 1\nclass Second: ...\n',
        "first": '__all__ = ["First"]\nclass First: ...\n',
        "_shared": "raise AssertionError('not a part')\n",
    }.items():
        (folder / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield [str(folder)]
    for name in [name for name in sys.modules if name.startswith("shelf_of_parts")]:
        del sys.modules[name]


def test_a_part_is_the_first_public_name_of_a_file_without_underscore(package):
    found = parts_of("shelf_of_parts", package)
    assert {name: part.__name__ for name, part in found.items()} == {"first": "First", "second": "Second"}
    assert modules_of("shelf_of_parts", package)["second"].other == 1


def test_options_are_what_must_be_named_with_their_types():
    def part(classes, dim=3, *others, margin: float = 0.1, alpha: int, **more): ...

    options = keyword_options(part)
    assert list(options) == ["margin", "alpha"]
    assert (options["margin"].default, options["margin"].annotation) == (0.1, float)
    assert options["alpha"].default is options["alpha"].empty


def test_pictures_are_named_by_the_files_that_draw_them():
    names = plot_names()
    assert {"curves", "map", "neighbours"} <= set(names)
    folder = Path(nearkin.__file__).parent / "report" / "figures"
    assert all((folder / f"{name.replace('-', '_')}.py").is_file() for name in names)
    assert not any(name.startswith(("-", "_")) for name in names)
