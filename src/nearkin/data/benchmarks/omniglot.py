"""Omniglot: characters of fifty alphabets, each drawn by twenty people."""

from __future__ import annotations

from pathlib import Path

from nearkin.data.benchmarks.benchmark import Benchmark, needs
from nearkin.data.folder import list_images
from nearkin.data.table import ImageTable
from nearkin.errors import DataError

FOLDERS = {"train": "images_background", "test": "images_evaluation"}


def _read(root: Path) -> ImageTable:
    rows = [(split, image) for split, folder in FOLDERS.items() for image in list_images(root / folder)]
    ids = [image.relative_to(root).as_posix() for _, image in rows]
    for name in ids:
        if name.count("/") != 3:
            raise DataError(f"{name!r} should lie in {name.partition('/')[0]}/alphabet/character/")
    parts = [name.split("/") for name in ids]
    return ImageTable.build(
        "omniglot",
        [image for _, image in rows],
        [f"{alphabet}/{character}" for _, alphabet, character, _ in parts],
        splits=[split for split, _ in rows],
        ids=ids,
        columns={"alphabet": [alphabet for _, alphabet, _, _ in parts]},
    )


BENCHMARKS = (
    Benchmark(
        name="omniglot",
        title="Omniglot",
        home="https://github.com/brendenlake/omniglot",
        layout="""
omniglot/  (or omniglot/python/)
  images_background/
    Alphabet_of_the_Magi/
      character01/
        0709_01.png
  images_evaluation/
    Angelic/
      character01/
        0965_01.png
""",
        counts={"train": (19280, 964), "test": (13180, 659)},
        reader=_read,
        folders=("omniglot", "omniglot-py", "omniglot-master"),
        inner_folders=("python",),
        missing=needs(*FOLDERS.values()),
    ),
)
