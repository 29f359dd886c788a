"""MNIST and Fashion-MNIST: small grey images of ten classes, in idx files that are read into memory."""

from __future__ import annotations

import functools
import gzip
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearkin.data.benchmarks.benchmark import Benchmark, needs
from nearkin.data.table import ImageTable
from nearkin.errors import DataError

DIGITS = tuple("0123456789")
GARMENTS = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
PREFIXES = {"train": "train", "test": "t10k"}
DIMENSIONS = {"images": 3, "labels": 1}


def read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """The array of bytes in an idx file, compressed or not, which must have this number of dimensions."""
    magic = bytes([0, 0, 8, dimensions])
    try:
        content = path.read_bytes()
        # Recognised by its first bytes: files that were unpacked without losing their ending are common.
        content = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
        if content[:4] != magic:
            raise ValueError(f"it must start with {magic.hex()}, got {content[:4].hex() or 'nothing'}")
        shape = struct.unpack_from(f">{dimensions}I", content, offset=4)
        return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (OSError, EOFError, zlib.error, struct.error, ValueError) as error:
        raise DataError(
            f"cannot read {path.name} as an idx file of bytes in {dimensions} dimensions ({error}): download it again"
        ) from error


def _spellings(prefix: str, content: str) -> tuple[str, ...]:
    names = [f"{prefix}-{content}{mark}idx{DIMENSIONS[content]}-ubyte" for mark in "-."]
    return tuple(name + ending for name in names for ending in ("", ".gz"))


def _file(root: Path, prefix: str, content: str) -> Path:
    spellings = _spellings(prefix, content)
    return next((root / file for file in spellings if (root / file).is_file()), root / spellings[0])


def _read(root: Path, *, name: str, class_names: tuple[str, ...]) -> ImageTable:
    images, labels, splits, ids = [], [], [], []
    for split, prefix in PREFIXES.items():
        pixels_file, labels_file = _file(root, prefix, "images"), _file(root, prefix, "labels")
        pixels = read_idx(pixels_file, dimensions=DIMENSIONS["images"])
        numbers = read_idx(labels_file, dimensions=DIMENSIONS["labels"])
        if len(pixels) != len(numbers):
            labels_found = f"{labels_file.name} has {len(numbers):,} labels"
            raise DataError(f"{pixels_file.name} has {len(pixels):,} images, but {labels_found}")
        images.append(pixels)
        labels.append(numbers)
        splits += [split] * len(pixels)
        ids += [f"{split}/{row:05d}" for row in range(len(pixels))]
    return ImageTable(
        name=name,
        images=np.concatenate(images),
        labels=np.concatenate(labels).astype(np.int64),
        class_names=class_names,
        ids=tuple(ids),
        splits=np.array(splits, dtype=np.str_),
    )


_LAYOUT = """
{folder}/  (or {folder}/raw/)
  train-images-idx3-ubyte.gz
  train-labels-idx1-ubyte.gz
  t10k-images-idx3-ubyte.gz
  t10k-labels-idx1-ubyte.gz
each with or without .gz, or with a dot before idx
"""


MNIST = Benchmark(
    name="mnist",
    title="MNIST",
    home="http://yann.lecun.com/exdb/mnist/",
    layout=_LAYOUT.format(folder="MNIST"),
    counts={"train": (60000, 10), "test": (10000, 10)},
    reader=functools.partial(_read, name="mnist", class_names=DIGITS),
    folders=("MNIST", "mnist"),
    inner_folders=("raw",),
    missing=needs(*(_spellings(prefix, content) for prefix in PREFIXES.values() for content in DIMENSIONS)),
)
FASHION_MNIST = replace(
    MNIST,
    name="fashion_mnist",
    title="Fashion-MNIST",
    home="https://github.com/zalandoresearch/fashion-mnist",
    layout=_LAYOUT.format(folder="FashionMNIST"),
    reader=functools.partial(_read, name="fashion_mnist", class_names=GARMENTS),
    folders=("FashionMNIST", "fashion-mnist", "fashion_mnist"),
)
BENCHMARKS = (MNIST, FASHION_MNIST)
