"""The images that a run was tested on, put into an index: what it can do with kinds that it has never seen."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from nearkin.disk import make_folder, writing
from nearkin.errors import DataError
from nearkin.index.adding import Added, Progress
from nearkin.index.index import Index
from nearkin.runs.data import open_own_data, split_as_stored
from nearkin.runs.trained import load_run
from nearkin.training.build import data_of


def add_test_images(index: Index, run: str | Path, *, progress: Progress | None = None) -> Added:
    """Add the test images of ``run`` with their labels.

    Images of a benchmark that lie in no files, such as Glyphs, become PNG files in the index's folder ``images``: then
    there are files to search with, and to embed again with another encoder.
    """
    trained = load_run(run)
    section = replace(data_of(trained.recipe), unreadable_tolerance=1.0)
    data = split_as_stored(trained.folder, trained.recipe, open_own_data(trained.folder, section), scored=("test",))
    if data.protocol.test is None:
        raise DataError(f"{run} has no test images, as all of its images train: give a folder of images")
    table = data.images.table
    rows = np.unique(data.protocol.test.rows)
    labels = [table.class_names[label] for label in table.labels[rows].tolist()]
    if isinstance(table.images, np.ndarray):
        paths = [index.path / "images" / f"{_name(table.ids[row])}-{row}.png" for row in rows.tolist()]
        for row, path in zip(rows.tolist(), paths, strict=True):
            make_folder(path.parent)
            with writing(path):
                Image.fromarray(table.images[row]).save(path)
    else:
        paths = [Path(table.images[row]) for row in rows.tolist()]
    return index.add(paths, labels, progress=progress)


def _name(id: str) -> str:
    """An id as the name of a file.

    >>> _name("U+002F/Deja Vu")
    'U+002F_Deja_Vu'
    """
    return re.sub(r"[^\w+.-]", "_", id)
