"""Stanford Online Products: photographs of things for sale, a class for each thing."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.benchmarks.benchmark import Benchmark, needs, read_rows
from nearkin.data.folder import existing_images
from nearkin.data.table import ImageTable

LISTS = {"train": "Ebay_train.txt", "test": "Ebay_test.txt"}
COLUMNS = ("image_id", "class_id", "super_class_id", "path")


def _read(root: Path) -> ImageTable:
    rows = [(split, *row) for split, file in LISTS.items() for row in read_rows(root / file, COLUMNS, header=1)]
    names = [name for *_, name in rows]
    return ImageTable.build(
        "sop",
        existing_images(root, names, listed_in=" and ".join(LISTS.values())),
        [label for _, _, label, *_ in rows],
        splits=[split for split, *_ in rows],
        ids=names,
        columns={"category": [name.partition("/")[0].removesuffix("_final") for name in names]},
    )


BENCHMARKS = (
    Benchmark(
        name="sop",
        title="Stanford Online Products",
        home="https://cvgl.stanford.edu/projects/lifted_struct/",
        layout="""
Stanford_Online_Products/
  Ebay_train.txt  image_id class_id super_class_id path
                  1 1 1 bicycle_final/111085122871_0.JPG
  Ebay_test.txt   the same columns
  bicycle_final/
    111085122871_0.JPG
  cabinet_final/
""",
        counts={"train": (59551, 11318), "test": (60502, 11316)},
        reader=_read,
        folders=("Stanford_Online_Products", "stanford-online-products", "online_products", "sop"),
        archives="Stanford_Online_Products.zip (3 GB)",
        missing=needs(*LISTS.values(), "bicycle_final"),
    ),
)
