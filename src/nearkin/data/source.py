"""One way in: a benchmark's name, a folder or a manifest becomes a table of images."""

from __future__ import annotations

import os
from pathlib import Path

from nearkin.data.benchmarks import benchmarks, read_benchmark
from nearkin.data.folder import read_folder
from nearkin.data.manifest import read_manifest
from nearkin.data.table import ImageTable
from nearkin.errors import DataError
from nearkin.suggest import did_you_mean


def data_root(given: str | Path | None = None) -> Path | None:
    """The folder that holds the benchmarks: as given, or NEARKIN_DATA, or ``data`` here if there is such a folder."""
    named = given or os.environ.get("NEARKIN_DATA")
    if named:
        return Path(named).expanduser()
    return Path("data") if Path("data").is_dir() else None


def read_source(source: str | Path, *, root: str | Path | None = None) -> ImageTable:
    """Read the data set that ``source`` names.

    A name of a benchmark wins over a folder of the same name; write ``./cub`` for the folder.
    """
    text = str(source)
    if text in benchmarks():
        return read_benchmark(text, data_root(root))
    path = Path(text).expanduser()
    if path.is_file():
        return read_manifest(path)
    if path.exists() or _looks_like_path(text):
        return read_folder(path)
    raise DataError(
        f"{text!r} is neither a folder or manifest here nor a benchmark: {did_you_mean(text, benchmarks())}"
    )


def _looks_like_path(text: str) -> bool:
    return any(mark in text for mark in ("/", "\\", ".", " ", "~"))
