"""In-shop Clothes Retrieval (DeepFashion): photographs of clothes, a class for each item, with query and gallery."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.benchmarks.benchmark import Benchmark, needs, read_rows
from nearkin.data.folder import existing_images
from nearkin.data.table import ImageTable
from nearkin.errors import DataError

LISTS = ("Eval/list_eval_partition.txt", "list_eval_partition.txt")
IMAGE_FOLDERS = ("img", "Img/img", "img_highres", "Img/img_highres", "Img")
COLUMNS = ("image_name", "item_id", "evaluation_status")


def _read(root: Path) -> ImageTable:
    listed = next((root / file for file in LISTS if (root / file).is_file()), root / LISTS[0])
    rows = read_rows(listed, COLUMNS, header=2)  # the first line holds the number of images
    names = [name.removeprefix("img/") for name, _, _ in rows]
    return ImageTable.build(
        "inshop",
        existing_images(_image_folder(root, names), names, listed_in=listed.name),
        [item for _, item, _ in rows],
        splits=[split for _, _, split in rows],
        ids=names,
        columns={"category": ["/".join(name.split("/")[:2]) for name in names]},
    )


def _image_folder(root: Path, names: list[str]) -> Path:
    """The folder with the images, recognised by what it holds: some file systems take ``img`` and ``Img`` for one."""
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
        archives="img.zip and list_eval_partition.txt",
        parts=("img", "img.zip", "list_eval_partition.txt"),
        missing=needs(LISTS, IMAGE_FOLDERS),
    ),
)
