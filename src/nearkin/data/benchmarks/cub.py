"""CUB-200-2011: photographs of 200 species of birds."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.benchmarks.benchmark import Benchmark, needs, read_rows
from nearkin.data.folder import existing_images, some_of
from nearkin.data.table import ImageTable
from nearkin.errors import DataError

TRAINING_CLASSES = 100


def _read(root: Path) -> ImageTable:
    class_names = dict(read_rows(root / "classes.txt", ("class_id", "class_name")))
    names = dict(read_rows(root / "images.txt", ("image_id", "image_name")))
    class_of = dict(read_rows(root / "image_class_labels.txt", ("image_id", "class_id")))
    unlabelled = [f"{image} {name}" for image, name in names.items() if class_of.get(image) not in class_names]
    if unlabelled:
        raise DataError(
            f"{len(unlabelled):,} images in images.txt have no class of classes.txt in image_class_labels.txt:\n"
            f"{some_of(unlabelled)}"
        )
    training = list(class_names)[:TRAINING_CLASSES]
    return ImageTable.build(
        "cub",
        existing_images(root / "images", list(names.values()), listed_in="images.txt"),
        [class_names[class_of[image]] for image in names],
        splits=["train" if class_of[image] in training else "test" for image in names],
        ids=list(names.values()),
        class_names=list(class_names.values()),
    )


BENCHMARKS = (
    Benchmark(
        name="cub",
        title="CUB-200-2011",
        home="https://www.vision.caltech.edu/datasets/cub_200_2011/",
        layout="""
CUB_200_2011/
  classes.txt             1 001.Black_footed_Albatross
  images.txt              1 001.Black_footed_Albatross/Black_Footed_Albatross_0001_796111.jpg
  image_class_labels.txt  1 1
  images/
    001.Black_footed_Albatross/
      Black_Footed_Albatross_0001_796111.jpg
""",
        counts={"train": (5864, 100), "test": (5924, 100)},
        reader=_read,
        folders=("CUB_200_2011", "CUB-200-2011", "cub", "cub200"),
        archives="CUB_200_2011.tgz (1.2 GB)",
        address="https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
        md5="97eceeb196236b17998738112f37df78",
        missing=needs("classes.txt", "images.txt", "image_class_labels.txt", "images"),
    ),
)
