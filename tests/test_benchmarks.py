"""The benchmarks can at least be imported: they are run by hand, and the package changes below them."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.stem)
def test_benchmark_is_importable(file, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    spec = importlib.util.spec_from_file_location(f"benchmark_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    assert callable(module.main)
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and FOLDER in Path(sys.modules[name].__file__).parents:
            del sys.modules[name]  # names such as losses and training
