"""Benchmarks, one file each. The catalogue is read off the files: adding one is adding a file with ``BENCHMARKS``."""

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
    """Find a benchmark below ``data_root``, the folder with the data sets, and :meth:`~Benchmark.read` it.

    None is enough for a benchmark that the package makes itself.
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
        looked_for = f"looked for a folder called {', '.join(map(repr, benchmark.folders))}"
        raise DataError(
            f"{benchmark.title} was not found below {str(data_root)!r} ({looked_for}){near}\n"
            f"{benchmark.expected_layout()}"
        )
    return benchmark.read(folder, check_counts=check_counts)
