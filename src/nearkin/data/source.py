"""One way in: a benchmark's name, a folder or a manifest becomes a table of images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nearkin.data.benchmarks import benchmarks, read_benchmark
from nearkin.data.folder import ClassFolders, folder_images, printable, read_folder, suggest_path
from nearkin.data.images import is_image_file
from nearkin.data.manifest import read_manifest
from nearkin.data.table import ImageTable
from nearkin.errors import DataError, RecipeError, did_you_mean


def data_root(root: str | Path | None = None) -> Path | None:
    """The folder that holds the benchmarks: ``root``, else NEARKIN_DATA, else ``data`` where it exists."""
    if chosen := root or os.environ.get("NEARKIN_DATA"):
        return Path(chosen).expanduser()
    return Path("data") if Path("data").is_dir() else None


def is_benchmark(source: str | Path) -> bool:
    """Whether ``source`` names a benchmark rather than a user's own images."""
    return str(source) in benchmarks()


def read_source(
    source: str | Path, *, root: str | Path | None = None, class_folders: ClassFolders | None = None
) -> ImageTable:
    """Read a benchmark by its name, a folder or a manifest.

    A benchmark takes precedence over a folder of the same name; write ``./cub`` for the folder. ``class_folders`` is
    that of :func:`~nearkin.data.folder.read_folder`.
    """
    check_source(source)
    if is_benchmark(source):
        return read_benchmark(str(source), data_root(root))
    path = Path(source).expanduser()
    return read_manifest(path) if path.is_file() else read_folder(path, class_folders=class_folders, warn=False)


def check_source(source: str | Path) -> None:
    """Refuse what is neither a benchmark nor an existing path; the error suggests similar names."""
    text, path = str(source), Path(source).expanduser()
    if is_benchmark(text) or path.exists():
        return
    if any(mark in text for mark in "/\\. ~"):
        raise DataError(f"there is no folder or manifest {str(path)!r}{suggest_path(path)}")
    near = suggest_path(path) or f": {did_you_mean(text, benchmarks())}"
    raise DataError(f"{text!r} is neither a folder or manifest here nor one of 'nearkin datasets'{near}")


def collect_images(
    sources: str | Path | Sequence[str | Path], *, class_folders: ClassFolders | None = None
) -> ImageTable:
    """Every image of files, folders and manifests once, in the order given; labels are optional."""
    paths = [Path(source).expanduser() for source in ([sources] if isinstance(sources, (str, Path)) else sources)]
    if not paths:
        raise RecipeError("give at least one image, folder or manifest")
    tables = [_unlabelled_table(path, class_folders) for path in paths]
    if len(tables) == 1:
        return tables[0]
    rows: dict[str, tuple[Path, str, str]] = {}
    for source, table in zip(paths, tables, strict=True):
        prefix = f"{printable(source.as_posix())}/" if source.is_dir() else ""
        for image, label, name in zip(table.images, table.labels.tolist(), table.ids, strict=True):
            rows.setdefault(os.path.abspath(image), (Path(image), table.class_names[label], prefix + name))
    images, labels, ids = zip(*rows.values(), strict=True)
    joined = ImageTable.build(f"{len(tables)} sources", images, labels, splits=["test"] * len(images), ids=ids)
    return replace(joined, left_out=tuple(files for table in tables for files in table.left_out))


def _unlabelled_table(source: Path, class_folders: ClassFolders | None) -> ImageTable:
    if source.is_file() and is_image_file(source):
        return ImageTable.build(source.name, [source], [""], splits=["test"], ids=[printable(source.as_posix())])
    if source.is_file():
        return read_manifest(source, need_labels=False)
    if not source.exists():
        raise DataError(f"there is no image, folder or manifest {str(source)!r}{suggest_path(source)}")
    return folder_images(source, class_folders=class_folders)
