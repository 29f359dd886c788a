"""Benchmarks, one file each. The catalogue is read off the files: adding one is adding a file with ``BENCHMARKS``."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nearkin.data.benchmarks.benchmark import Benchmark
from nearkin.data.table import ImageTable
from nearkin.errors import DataError, RecipeError
from nearkin.suggest import did_you_mean

__all__ = ["Availability", "Benchmark", "benchmarks", "read_benchmark", "survey"]


@functools.cache
def _catalogue() -> tuple[Benchmark, ...]:
    found: list[Benchmark] = []
    for module_info in pkgutil.iter_modules(__path__):
        if not module_info.name.startswith("_"):
            module = importlib.import_module(f"{__name__}.{module_info.name}")
            found += getattr(module, "BENCHMARKS", ())
    return tuple(sorted(found, key=lambda benchmark: benchmark.name))


def benchmarks() -> dict[str, Benchmark]:
    """Every benchmark by its name, which is also its name in recipes and on the command line.

    >>> benchmarks()["cub"].counts["train"]
    (5864, 100)
    """
    return {benchmark.name: benchmark for benchmark in _catalogue()}


def read_benchmark(name: str, data_root: str | Path | None, *, check_counts: bool = True) -> ImageTable:
    """Find a benchmark below ``data_root`` and read it.

    Args:
        name: as in :func:`benchmarks`.
        data_root: the folder with the data sets; None is enough for a benchmark that the package makes itself.
        check_counts: whether other numbers of images or classes than the published ones are an error.

    Raises:
        RecipeError: for an unknown name.
        DataError: when the benchmark is not there, or a file of it is missing or wrong.

    Example:
        >>> read_benchmark("cup", None)
        Traceback (most recent call last):
        ...
        nearkin.errors.RecipeError: unknown benchmark 'cup'; did you mean 'cub'? Valid: ...
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
            f"NEARKIN_DATA\n{benchmark.expectation()}"
        )
    if not Path(data_root).expanduser().is_dir():
        raise DataError(f"the data root {str(data_root)!r} is not a folder; correct --data-root or NEARKIN_DATA")
    folder = benchmark.find(data_root)
    if folder is None:
        looked_for = ", ".join(repr(folder) for folder in benchmark.folders)
        raise DataError(
            f"{benchmark.title} was not found below {str(data_root)!r} (looked for a folder called "
            f"{looked_for})\n{benchmark.expectation()}"
        )
    return benchmark.read(folder, check_counts=check_counts)


@dataclass(frozen=True)
class Availability:
    """What was found of a benchmark: its folder, and what is wrong there as far as a quick look tells."""

    benchmark: Benchmark
    path: Path | None
    problem: str | None

    @property
    def name(self) -> str:
        return self.benchmark.name

    @property
    def title(self) -> str:
        return self.benchmark.title

    @property
    def counts(self) -> Mapping[str, tuple[int, int]]:
        return self.benchmark.counts

    @property
    def ready(self) -> bool:
        return self.benchmark.embedded or (self.path is not None and self.problem is None)


def survey(data_root: str | Path | None) -> list[Availability]:
    """What lies below ``data_root``, for every benchmark. Only key files are looked for; nothing is read.

    >>> [entry.path for entry in survey(None) if entry.name == "cub"]
    [None]
    """
    return [_look_for(benchmark, data_root) for benchmark in _catalogue()]


def _look_for(benchmark: Benchmark, data_root: str | Path | None) -> Availability:
    path = None if benchmark.embedded or data_root is None else benchmark.find(data_root)
    lacking = benchmark.missing(path) if path is not None else []
    return Availability(benchmark, path, f"there is no {', no '.join(lacking)}" if lacking else None)
