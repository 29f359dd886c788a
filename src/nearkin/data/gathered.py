"""The images of files, folders and manifests, as they are to be embedded: with or without labels, of no split."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nearkin.data.folder import Kinds, folder_images, nearest_folder
from nearkin.data.formats import is_image_file
from nearkin.data.listing import readable
from nearkin.data.manifest import manifest_images
from nearkin.data.table import ImageTable
from nearkin.errors import DataError, RecipeError


def images_of(sources: str | Path | Sequence[str | Path], *, kinds: Kinds | None = None) -> ImageTable:
    """Every image of the given files, folders and manifests, each once, in the order given.

    >>> images_of([])
    Traceback (most recent call last):
    ...
    nearkin.errors.RecipeError: give at least one image, folder or manifest
    """
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    if not given:
        raise RecipeError("give at least one image, folder or manifest")
    tables = [_table_of(Path(source).expanduser(), kinds, alone=len(given) == 1) for source in given]
    if len(tables) == 1:
        return tables[0]
    rows: dict[str, tuple[Path, str, str]] = {}
    for table in tables:
        for image, label, name in zip(table.images, table.labels.tolist(), table.ids, strict=True):
            rows.setdefault(os.path.abspath(image), (Path(image), table.class_names[label], name))
    paths, labels, ids = zip(*rows.values(), strict=True)
    joined = ImageTable.build(f"{len(tables)} sources", paths, labels, splits=["test"] * len(paths), ids=ids)
    return replace(joined, left_out=tuple(each for table in tables for each in table.left_out))


def _table_of(source: Path, kinds: Kinds | None, *, alone: bool) -> ImageTable:
    if source.is_file() and is_image_file(source):
        return ImageTable.build(source.name, [source], [""], splits=["test"], ids=[readable(source.as_posix())])
    if source.is_file():
        return manifest_images(source)
    if not source.exists():
        raise DataError(f"there is no image, folder or manifest {str(source)!r}{nearest_folder(source)}")
    table = folder_images(source, kinds=kinds)
    if alone:
        return table
    return replace(table, ids=tuple(f"{readable(source.as_posix())}/{name}" for name in table.ids))
