"""In-shop Clothes Retrieval (DeepFashion): photographs of clothes, a class for each item, with query and gallery."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.benchmarks.benchmark import Benchmark, malformed, needs, read_rows, whole_number
from nearkin.data.folder import existing_images
from nearkin.data.table import ImageTable
from nearkin.errors import DataError

LISTS = ("Eval/list_eval_partition.txt", "list_eval_partition.txt")
IMAGE_FOLDERS = ("img", "Img/img", "img_highres", "Img/img_highres", "Img")
COLUMNS = ("image_name", "item_id", "evaluation_status")
SPLITS = ("train", "query", "gallery")


def _read(root: Path) -> ImageTable:
    listed = next((root / file for file in LISTS if (root / file).is_file()), root / LISTS[0])
    # The first line holds one number, so the lines are read with a single field and divided here.
    lines = [(line, content.split()) for line, (content,) in read_rows(listed, ("line",))]
    announced = whole_number(" ".join(lines[0][1]), listed, lines[0][0], "the number of images") if lines else 0
    if len(lines) < 2 or tuple(lines[1][1]) != COLUMNS:
        raise malformed(listed, 2, f"the header '{' '.join(COLUMNS)}' is missing")
    rows = []
    for line, fields in lines[2:]:
        if len(fields) != len(COLUMNS):
            raise malformed(listed, line, f"expected '{' '.join(COLUMNS)}', got {' '.join(fields)!r}")
        name, item, split = fields
        if split not in SPLITS:
            raise malformed(listed, line, f"evaluation_status must be {', '.join(SPLITS)}, got {split!r}")
        rows.append((name.removeprefix("img/"), item, split))
    if len(rows) != announced:
        raise DataError(f"{listed.name} announces {announced:,} images but lists {len(rows):,}")
    names = [name for name, _, _ in rows]
    return ImageTable.build(
        "inshop",
        existing_images(_image_folder(root, names), names, listed_in=listed.name),
        [item for _, item, _ in rows],
        splits=[split for _, _, split in rows],
        ids=names,
        columns={"category": ["/".join(name.split("/")[:2]) for name in names]},
    )


def _image_folder(root: Path, names: list[str]) -> Path:
    """The folder with the images, recognised by what it holds: where case does not matter, ``img`` is also ``Img``."""
    wanted = names[0].partition("/")[0] if names else ""
    for folder in IMAGE_FOLDERS:
        if (root / folder / wanted).is_dir():
            return root / folder
    raise DataError(f"there is no folder img/{wanted} (nor {', '.join(f'{f}/{wanted}' for f in IMAGE_FOLDERS[1:])})")


BENCHMARKS = (
    Benchmark(
        name="inshop",
        title="In-shop Clothes Retrieval",
        home="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
        layout="""
In-shop Clothes Retrieval Benchmark/
  Eval/
    list_eval_partition.txt  52712
                             image_name item_id evaluation_status
                             img/WOMEN/Dresses/id_00000002/02_1_front.jpg id_00000002 train
  img/  (or Img/img/, img_highres/)
    WOMEN/
      Dresses/
        id_00000002/
          02_1_front.jpg
""",
        counts={"train": (25882, 3997), "query": (14218, 3985), "gallery": (12612, 3985)},
        reader=_read,
        folders=(
            "In-shop Clothes Retrieval Benchmark",
            "In_shop Clothes Retrieval Benchmark",
            "Inshop_Clothes",
            "inshop",
            "in-shop",
            "in_shop",
        ),
        missing=needs(LISTS, IMAGE_FOLDERS),
    ),
)
