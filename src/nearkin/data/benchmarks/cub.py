"""CUB-200-2011: photographs of 200 species of birds."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.benchmarks.benchmark import Benchmark, malformed, needs, read_rows, whole_number
from nearkin.data.folder import existing_images, some_of
from nearkin.data.table import ImageTable
from nearkin.errors import DataError

TRAINING_CLASSES = 100


def _read(root: Path) -> ImageTable:
    class_names = _by_number(root / "classes.txt", "class_name")
    names = _by_number(root / "images.txt", "image_name")
    labels_file = root / "image_class_labels.txt"
    class_of: dict[int, int] = {}
    for line, (image_id, class_id) in read_rows(labels_file, ("image_id", "class_id")):
        image = whole_number(image_id, labels_file, line, "image_id")
        label = whole_number(class_id, labels_file, line, "class_id")
        if label not in class_names:
            raise malformed(labels_file, line, f"class {label} is not in classes.txt")
        if image not in names:
            raise malformed(labels_file, line, f"image {image} is not in images.txt")
        class_of[image] = label
    unlabelled = [f"{image} {name}" for image, name in names.items() if image not in class_of]
    if unlabelled:
        raise DataError(
            f"{len(unlabelled):,} images in images.txt have no line in {labels_file.name}:\n{some_of(unlabelled)}"
        )
    return ImageTable.build(
        "cub",
        existing_images(root / "images", list(names.values()), listed_in="images.txt"),
        [class_names[class_of[image]] for image in names],
        splits=["train" if class_of[image] <= TRAINING_CLASSES else "test" for image in names],
        ids=list(names.values()),
        class_names=[class_names[number] for number in sorted(class_names)],
    )


def _by_number(path: Path, column: str) -> dict[int, str]:
    """The second field of each line by the number in the first."""
    texts: dict[int, str] = {}
    for line, (number, text) in read_rows(path, ("id", column)):
        key = whole_number(number, path, line, "id")
        if key in texts:
            raise malformed(path, line, f"number {key} occurs twice")
        texts[key] = text
    return texts


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
        missing=needs("classes.txt", "images.txt", "image_class_labels.txt", "images"),
    ),
)
