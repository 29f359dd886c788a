"""Cars196 (Stanford Cars): photographs of 196 models of cars."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from nearkin.data.benchmarks.benchmark import Benchmark
from nearkin.data.folder import existing_images, read_folder
from nearkin.data.table import ImageTable
from nearkin.errors import DataError

ANNOTATIONS = "cars_annos.mat"
TRAINING_CLASSES = 98


def _read(root: Path) -> ImageTable:
    if (root / ANNOTATIONS).is_file():
        return _read_annotations(root)
    # Class folders at the top, or below ``train`` and ``test``, which divide the images of each class. The published
    # numbering goes by make, and the alphabet puts the same 98 classes first: up to the Eagle, before the Ferraris.
    table = read_folder(root, class_folders="top", warn=False)
    return replace(table, name="cars", splits=np.where(table.labels < TRAINING_CLASSES, "train", "test"))


def _read_annotations(root: Path) -> ImageTable:
    from scipy.io import loadmat

    try:
        content = loadmat(str(root / ANNOTATIONS), squeeze_me=True)
        annotations = np.atleast_1d(content["annotations"])
        names = [str(name) for name in annotations["relative_im_path"].tolist()]
        labels = [int(label) for label in annotations["class"].tolist()]
        class_names = [str(name) for name in np.atleast_1d(content["class_names"]).tolist()]
        class_of = [class_names[label - 1] for label in labels]
    except Exception as error:  # a file that is cut short or is something else can raise nearly anything
        raise DataError(
            f"cannot read {ANNOTATIONS} as a MATLAB file with class_names, and annotations with relative_im_path and "
            f"class: {error}"
        ) from error
    return ImageTable.build(
        "cars",
        existing_images(root, names, listed_in=ANNOTATIONS),
        class_of,
        splits=["train" if label <= TRAINING_CLASSES else "test" for label in labels],
        ids=names,
        class_names=class_names,
    )


def _missing(root: Path) -> list[str]:
    if (root / ANNOTATIONS).is_file():
        return [] if (root / "car_ims").is_dir() else ["car_ims"]
    folders = [entry for entry in root.iterdir() if entry.is_dir()] if root.is_dir() else []
    return [] if len(folders) > 1 else [f"{ANNOTATIONS} (or class folders)"]


BENCHMARKS = (
    Benchmark(
        name="cars",
        title="Cars196",
        home="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        layout="""
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
        folders=("cars196", "cars", "stanford_cars", "stanford-cars", "car_data", "CARS_196"),
        inner_folders=("images",),
        missing=_missing,
    ),
)
