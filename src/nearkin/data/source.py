"""One way in: a benchmark's name, a folder or a manifest becomes a table of images."""

from __future__ import annotations

import os
from pathlib import Path

from nearkin.data.benchmarks import benchmarks, read_benchmark
from nearkin.data.folder import Kinds, folder_table, nearest_folder
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


def is_benchmark(source: str | Path) -> bool:
    """Whether ``source`` names a benchmark rather than somebody's own images."""
    return str(source) in benchmarks()


def read_source(source: str | Path, *, root: str | Path | None = None, kinds: Kinds | None = None) -> ImageTable:
    """Read the data set that ``source`` names.

    A name of a benchmark wins over a folder of the same name; write ``./cub`` for the folder. ``kinds`` says which
    folders are the classes where a folder has several levels of them (:func:`~nearkin.data.folder.read_folder`). What
    was left out is in the table's ``left_out``.
    """
    text = str(source)
    if is_benchmark(text):
        return read_benchmark(text, data_root(root))
    path = Path(text).expanduser()
    if path.is_file():
        return read_manifest(path)
    if path.exists() or any(mark in text for mark in "/\\. ~"):
        return folder_table(path, kinds=kinds)
    near = nearest_folder(path) or f": {did_you_mean(text, benchmarks())}"
    raise DataError(f"{text!r} is neither a folder or manifest here nor a benchmark{near}")
