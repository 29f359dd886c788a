"""Cars196 (Stanford Cars): photographs of 196 models of cars.

There are three layouts. In the two with annotations the classes have their published numbers and names, and the images
the order of the annotations: that of ``cars_annos.mat``, or that of the file for ``cars_train`` and then that of the
file for ``cars_test``. Both halves hold images of every class; the first 98 classes train, the last 98 test. Where the
folders are the classes, these are in the order of their names, and so are their images.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from nearkin.data.benchmarks.benchmark import TOLERANCE, Benchmark
from nearkin.data.folder import existing_images, find_images, read_folder
from nearkin.data.table import ImageTable
from nearkin.errors import DataError

ANNOTATIONS = "cars_annos.mat"
CLASSES = "cars_meta.mat"
HALVES = {"cars_train": "cars_train_annos.mat", "cars_test": "cars_test_annos_withlabels.mat"}
WITHOUT_CLASSES = "cars_test_annos.mat"
"""The published devkit has this for the test half; some copies of it hold the classes."""
DEVKITS = ("devkit", "", "car_devkit/devkit")
TRAINING_CLASSES = 98


def _read(root: Path) -> ImageTable:
    if _in_halves(root):
        return _read_halves(root)
    if (root / ANNOTATIONS).is_file():
        content = _load(root / ANNOTATIONS, "class_names", "annotations")
        names, labels = _listed(content, "relative_im_path", ANNOTATIONS)
        return _table(root, names, names, labels, content["class_names"], listed_in=ANNOTATIONS)
    # Class folders at the top, or below ``train`` and ``test``, which divide the images of each class. The published
    # numbering goes by make, and the alphabet puts the same 98 classes first: up to the Eagle, before the Ferraris.
    table = read_folder(root, class_folders="top", warn=False)
    return replace(table, name="cars", splits=np.where(table.labels < TRAINING_CLASSES, "train", "test"))


def _read_halves(root: Path) -> ImageTable:
    files: list[str] = []
    ids: list[str] = []
    labels: list[int] = []
    for half, name in HALVES.items():
        annotations = _devkit_file(root, name) or _devkit_file(root, WITHOUT_CLASSES) or root / name
        in_half, of_half = _listed(_load(annotations, "annotations"), "fname", annotations.name)
        folder = f"{half}/{half}" if (root / half / half).is_dir() else half  # as a common mirror nests it
        files += [f"{folder}/{file}" for file in in_half]
        ids += [f"{half}/{file}" for file in in_half]
        labels += of_half
    class_names = _load(_devkit_file(root, CLASSES) or root / CLASSES, "class_names")["class_names"]
    return _table(root, files, ids, labels, class_names, listed_in="the devkit")


def _table(
    root: Path, files: list[str], ids: list[str], labels: list[int], names: ArrayLike, *, listed_in: str
) -> ImageTable:
    """The table of the images that are there; a copy may lack a few, which ``Benchmark.read`` counts."""
    class_names = [str(name) for name in np.atleast_1d(names).tolist()]
    if not all(1 <= label <= len(class_names) for label in labels):
        raise DataError(f"{listed_in} has classes other than 1 to {len(class_names)}, the ones with a name")
    found = find_images(root, files)
    if found.count(None) > TOLERANCE * len(files):
        existing_images(root, files, listed_in=listed_in)
    rows = [(path, name, label) for path, name, label in zip(found, ids, labels, strict=True) if path is not None]
    return ImageTable.build(
        "cars",
        [path for path, _, _ in rows],
        [class_names[label - 1] for _, _, label in rows],
        splits=["train" if label <= TRAINING_CLASSES else "test" for _, _, label in rows],
        ids=[name for _, name, _ in rows],
        class_names=class_names,
    )


def _load(path: Path, *variables: str) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        content = loadmat(str(path), squeeze_me=True)
        return {name: content[name] for name in variables}
    except Exception as error:  # a file that is cut short or is something else can raise nearly anything
        raise DataError(f"cannot read {path.name} as a MATLAB file with {' and '.join(variables)}: {error}") from error


def _listed(content: dict[str, Any], file_field: str, name: str) -> tuple[list[str], list[int]]:
    """The files and the classes of ``annotations``, in their order."""
    annotations = np.atleast_1d(content["annotations"])
    try:
        files = [str(file) for file in annotations[file_field].tolist()]
        return files, [int(label) for label in annotations["class"].tolist()]
    except (IndexError, ValueError, TypeError) as error:
        advice = f". Bring {HALVES['cars_test']}, which has the classes" if name == WITHOUT_CLASSES else ""
        raise DataError(f"{name} has no annotations with {file_field} and class: {error}{advice}") from error


def _in_halves(root: Path) -> bool:
    return not (root / "car_ims").is_dir() and any((root / half).is_dir() for half in HALVES)


def _devkit_file(root: Path, name: str) -> Path | None:
    return next((root / kit / name for kit in DEVKITS if (root / kit / name).is_file()), None)


def _missing(root: Path) -> list[str]:
    if _in_halves(root):
        kit = [name for name in (CLASSES, *HALVES.values()) if not _devkit_file(root, name)]
        if _devkit_file(root, WITHOUT_CLASSES) and HALVES["cars_test"] in kit:
            kit.remove(HALVES["cars_test"])
        return [half for half in HALVES if not (root / half).is_dir()] + [f"devkit/{name}" for name in kit]
    old = [name for name in (ANNOTATIONS, "car_ims") if not (root / name).exists()]
    if len(old) < 2:
        return old
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
        "cars_annos.mat (the page is gone; https://github.com/pytorch/vision/issues/7545 names copies)",
        archive_size="2 GB",
        parts=("cars_train", "cars_test", "devkit", "car_devkit", *HALVES.values(), CLASSES, "car_ims", ANNOTATIONS),
    ),
)
