"""Cars196 (Stanford Cars): photographs of 196 models of cars, of which the first 98 train.

With annotations, classes have their published numbers, and images the order of ``cars_annos.mat``, or of ``cars_train``
followed by ``cars_test``. Without annotations, both are in the order of the names of folders and files.
"""

from __future__ import annotations

import os
import posixpath
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.data.benchmarks.benchmark import TOLERANCE, Benchmark
from nearkin.data.folder import existing_images, read_folder
from nearkin.data.table import ImageTable
from nearkin.errors import DataError

ANNOTATIONS = "cars_annos.mat"
CLASSES = "cars_meta.mat"
HALVES = {"cars_train": "cars_train_annos.mat", "cars_test": "cars_test_annos_withlabels.mat"}
WITHOUT_CLASSES = "cars_test_annos.mat"
"""The devkit's annotations of the test half, published without classes; some mirrors have added them."""
DEVKITS = ("devkit", "", "car_devkit/devkit")
TRAINING_CLASSES = 98


def _read(root: Path) -> ImageTable:
    halves = HALVES if _in_halves(root) else {"": ANNOTATIONS}
    if not _in_halves(root) and not (root / ANNOTATIONS).is_file():
        # Class folders at the top, or in ``train`` and ``test``, which divide the images of each class. The first 98 in
        # the alphabet are also the first 98 of the published numbering.
        table = read_folder(root, class_folders="top", warn=False)
        return replace(table, name="cars", splits=np.where(table.labels < TRAINING_CLASSES, "train", "test"))
    names = np.atleast_1d(_load(root, "class_names", ANNOTATIONS if "" in halves else CLASSES)).tolist()
    rows = []
    for half, file in halves.items():
        folder = f"{half}/{half}" if half and (root / half / half).is_dir() else half  # as a mirror nests it
        for name, label in _annotated(root, file):
            rows.append((posixpath.join(half, name), posixpath.join(folder, name), label))
    listed_in = " and ".join(halves.values())
    if not all(1 <= label <= len(names) for _, _, label in rows):
        raise DataError(f"{listed_in} has classes other than 1 to {len(names)}, the ones with a name")
    folders = {posixpath.dirname(file) for _, file, _ in rows}
    files = {f"{folder}/{name}" for folder in folders if (root / folder).is_dir() for name in os.listdir(root / folder)}
    present = [row for row in rows if row[1] in files]
    if len(rows) - len(present) <= TOLERANCE * len(rows):  # which Benchmark.read counts
        rows = present
    return ImageTable.build(
        "cars",
        existing_images(root, [file for _, file, _ in rows], listed_in=listed_in),
        [names[label - 1] for _, _, label in rows],
        splits=["train" if label <= TRAINING_CLASSES else "test" for _, _, label in rows],
        ids=[name for name, _, _ in rows],
        class_names=names,
    )


def _load(root: Path, variable: str, *files: str) -> Any:
    """A variable of the first of the ``files`` that exists."""
    from scipy.io import loadmat

    path = next((path for file in files if (path := _in_devkit(root, file))), root / files[0])
    try:
        return loadmat(str(path), squeeze_me=True)[variable]
    except Exception as error:  # a file that is cut short or is something else can raise nearly anything
        raise DataError(f"cannot read {path.name} as a MATLAB file with {variable}: {error}") from error


def _annotated(root: Path, file: str) -> list[tuple[str, int]]:
    """File and class of every image, in the order of the annotations."""
    annotations = np.atleast_1d(_load(root, "annotations", file, WITHOUT_CLASSES))
    field = "relative_im_path" if file == ANNOTATIONS else "fname"
    try:
        return [(str(name), int(label)) for name, label in annotations[[field, "class"]].tolist()]
    except (IndexError, KeyError, ValueError, TypeError) as error:
        other = f" (nor {WITHOUT_CLASSES}, as it was published)" if file == HALVES["cars_test"] else ""
        raise DataError(f"{file}{other} has no annotations with {field} and class: {error}") from error


def _in_halves(root: Path) -> bool:
    return not (root / "car_ims").is_dir() and any((root / half).is_dir() for half in HALVES)


def _in_devkit(root: Path, name: str) -> Path | None:
    return next((root / kit / name for kit in DEVKITS if (root / kit / name).is_file()), None)


def _missing(root: Path) -> list[str]:
    if _in_halves(root):
        files = [CLASSES, HALVES["cars_train"]] + [HALVES["cars_test"]] * (not _in_devkit(root, WITHOUT_CLASSES))
        lacking = [f"devkit/{name}" for name in files if not _in_devkit(root, name)]
        return [half for half in HALVES if not (root / half).is_dir()] + lacking
    lacking = [name for name in (ANNOTATIONS, "car_ims") if not (root / name).exists()]
    if len(lacking) < 2:
        return lacking
    folders = [entry for entry in root.iterdir() if entry.is_dir()] if root.is_dir() else []
    return [] if len(folders) > 1 else ["cars_train, no car_ims and no class folders"]


BENCHMARKS = (
    Benchmark(
        name="cars",
        title="Cars196",
        home="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        layout="""
cars196/
  cars_train/
    00001.jpg
  cars_test/
    00001.jpg
  devkit/
    cars_meta.mat
    cars_train_annos.mat
    cars_test_annos_withlabels.mat  (or next to devkit/)
or as first published:
cars196/
  cars_annos.mat
  car_ims/
    000001.jpg
or one folder per class, at the top or in train/ and test/:
cars196/
  AM General Hummer SUV 2000/
    00163.jpg
""",
        counts={"train": (8054, 98), "test": (8131, 98)},
        reader=_read,
        folders=("cars196", "cars", "stanford_cars", "stanford-cars", "stanford-cars-dataset", "car_data", "CARS_196"),
        inner_folders=("images",),
        missing=_missing,
        archives="cars_train.tgz, cars_test.tgz, car_devkit.tgz and cars_test_annos_withlabels.mat, or car_ims.tgz and "
        "cars_annos.mat (2 GB; the page is gone, https://github.com/pytorch/vision/issues/7545 names copies)",
        parts=("cars_train", "cars_test", "devkit", "car_devkit", *HALVES.values(), CLASSES, "car_ims", ANNOTATIONS),
    ),
)
