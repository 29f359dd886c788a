"""MNIST and Fashion-MNIST: small grey images of ten classes, in idx files that are read into memory."""

from __future__ import annotations

import functools
import gzip
import itertools
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
    """The array of bytes in an idx file, compressed or not, which must have so many dimensions."""
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
            there = f"{len(pixels):,} images, but {labels_file.name} has {len(numbers):,} labels"
            raise DataError(f"{pixels_file.name} has {there}")
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
_FILES = [_spellings(prefix, content) for prefix in PREFIXES.values() for content in DIMENSIONS]


MNIST = Benchmark(
    name="mnist",
    title="MNIST",
    home="http://yann.lecun.com/exdb/mnist/",
    layout=_LAYOUT.format(folder="MNIST"),
    counts={"train": (60000, 10), "test": (10000, 10)},
    reader=functools.partial(_read, name="mnist", class_names=DIGITS),
    folders=("MNIST", "mnist"),
    inner_folders=("raw",),
    missing=needs(*_FILES),
    archive_size="12 MB",
    parts=tuple(itertools.chain(*_FILES)),
    downloads={
        f"https://ossci-datasets.s3.amazonaws.com/mnist/{file}": checksum
        for file, checksum in {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        }.items()
    },
)
FASHION_MNIST = replace(
    MNIST,
    name="fashion_mnist",
    title="Fashion-MNIST",
    home="https://github.com/zalandoresearch/fashion-mnist",
    layout=_LAYOUT.format(folder="FashionMNIST"),
    reader=functools.partial(_read, name="fashion_mnist", class_names=GARMENTS),
    folders=("FashionMNIST", "fashion-mnist", "fashion_mnist"),
    archive_size="31 MB",
    downloads={
        f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{file}": checksum
        for file, checksum in {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        }.items()
    },
)
BENCHMARKS = (MNIST, FASHION_MNIST)
