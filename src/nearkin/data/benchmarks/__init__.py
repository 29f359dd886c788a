"""Benchmarks, one file each. To add one, add a file with ``BENCHMARKS``: the catalogue is built from the files."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nearkin.catalogue import modules_of
from nearkin.data.benchmarks.benchmark import Benchmark
from nearkin.data.folder import suggest_path
from nearkin.data.table import ImageTable
from nearkin.errors import DataError, RecipeError, did_you_mean

__all__ = ["Benchmark", "benchmarks", "read_benchmark"]


@functools.cache
def benchmarks() -> Mapping[str, Benchmark]:
    """Every benchmark by its name, which is also its name in recipes and on the command line."""
    modules = modules_of(__name__, __path__).values()
    by_name = {benchmark.name: benchmark for module in modules for benchmark in getattr(module, "BENCHMARKS", ())}
    return MappingProxyType(dict(sorted(by_name.items())))


def read_benchmark(name: str, data_root: str | Path | None, *, check_counts: bool = True) -> ImageTable:
    """Find a benchmark below ``data_root`` and :meth:`~Benchmark.read` it.

    ``data_root`` may be None for a benchmark that the package makes itself.
    """
    known = benchmarks()
    if name not in known:
        raise RecipeError(f"unknown benchmark {name!r}; {did_you_mean(name, known)}")
    benchmark = known[name]
    if benchmark.embedded:
        return benchmark.read(Path(), check_counts=check_counts)
    if data_root is None:
        raise DataError(
            f"{benchmark.title} is read from files: give the folder with your data sets as --data-root or "
            f"NEARKIN_DATA\n{benchmark.expected_layout()}"
        )
    folder = benchmark.find(data_root)
    if folder is None:
        root = Path(data_root).expanduser()
        near = suggest_path(root / benchmark.folders[0] if root.exists() else root)
        where = f"{str(data_root)!r} (looked for a folder called {', '.join(map(repr, benchmark.folders))})"
        raise DataError(f"{benchmark.title} was not found below {where}{near}\n{benchmark.expected_layout()}")
    return benchmark.read(folder, check_counts=check_counts)
