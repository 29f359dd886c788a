"""A table of images, the form in which all other parts take a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearkin.errors import DataError

SPLITS = ("train", "validation", "test", "query", "gallery")


@dataclass(frozen=True)
class LeftOut:
    """Files of a data set that are not in its table, and why."""

    count: int
    what: str
    """The files' ending, or what they are, in the plural."""
    reason: str
    example: str
    is_photo: bool = False
    """Whether they are photos, which the user may have meant to be read."""

    def __str__(self) -> str:
        what = self.what[:-1] if self.count == 1 and not self.what.startswith(".") else self.what
        example = f", for instance {self.example!r}" if self.count > 1 else f": {self.example!r}"
        return f"{self.count:,} {what} ({self.reason}){example}"


def split_class_name(name: str) -> tuple[str, str]:
    """The last part of a class name from nested folders, and the parts above it.

    >>> split_class_name("Fruit/Citrus/Lemon"), split_class_name("Lemon")
    (('Lemon', 'Fruit/Citrus'), ('Lemon', ''))
    """
    above, _, last = name.rpartition("/")
    return (last, above) if above and last else (name, "")


@dataclass(frozen=True)
class ImageTable:
    """Images, each with a label, a split and an id, and the names of the classes.

    ``images`` is either a sequence of paths or one uint8 array ``[N, H, W]`` or ``[N, H, W, 3]``. ``labels`` are
    positions in ``class_names``, and mean the same class in every part of a data set. ``ids`` name the images, usually
    by their path relative to the data set. Files of a folder that are not in the table are counted in ``left_out``.

    >>> pixels = np.zeros((3, 8, 8), dtype=np.uint8)
    >>> table = ImageTable.build("toy", pixels, ["cat", "dog", "cat"], splits=["train", "train", "test"])
    >>> len(table), table.class_names, table.split("train").labels.tolist()
    (3, ('cat', 'dog'), [0, 1])
    """

    name: str
    images: Sequence[Path] | NDArray[np.uint8]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    ids: tuple[str, ...]
    splits: NDArray[np.str_]
    columns: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()

    def __post_init__(self) -> None:
        rows = len(self.images)
        lengths = {"labels": len(self.labels), "ids": len(self.ids), "splits": len(self.splits)}
        lengths |= {f"column {name!r}": len(values) for name, values in self.columns.items()}
        for what, length in lengths.items():
            if length != rows:
                raise DataError(f"table {self.name!r} has {rows} images but {length} {what}")
        unknown = set(np.unique(self.splits).tolist()) - set(SPLITS)
        if unknown:
            raise DataError(f"table {self.name!r} has unknown splits {sorted(unknown)}; valid: {', '.join(SPLITS)}")
        if rows and (self.labels.min() < 0 or self.labels.max() >= len(self.class_names)):
            raise DataError(f"table {self.name!r} has labels outside its {len(self.class_names)} classes")

    @classmethod
    def build(
        cls,
        name: str,
        images: Sequence[Path] | NDArray[np.uint8],
        class_of: Sequence[str],
        *,
        splits: Sequence[str],
        ids: Sequence[str] | None = None,
        class_names: Sequence[str] | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
        left_out: Sequence[LeftOut] = (),
    ) -> ImageTable:
        """A table from a class name per image; classes are numbered as in ``class_names``, else as they appear."""
        names = tuple(class_names) if class_names is not None else tuple(dict.fromkeys(class_of))
        position = {class_name: index for index, class_name in enumerate(names)}
        if ids is None and isinstance(images, np.ndarray):
            ids = [f"{row:0{len(str(len(images) - 1))}d}" for row in range(len(images))]
        return cls(
            name=name,
            images=images if isinstance(images, np.ndarray) else tuple(images),
            labels=np.array([position[c] for c in class_of], dtype=np.int64),
            class_names=names,
            ids=tuple(map(str, images) if ids is None else ids),
            splits=np.array(splits, dtype=np.str_),
            columns={key: np.array(values, dtype=np.str_) for key, values in (columns or {}).items()},
            left_out=tuple(left_out),
        )

    def __len__(self) -> int:
        return len(self.images)

    def classes(self) -> NDArray[np.int64]:
        """The labels that occur in this table, ascending."""
        return np.unique(self.labels)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_] | Sequence[int]) -> ImageTable:
        """The given rows (indices or a mask), with the same class names."""
        index = np.asarray(rows)
        index = np.flatnonzero(index) if index.dtype == np.bool_ else index.astype(np.int64)
        images = self.images
        return replace(
            self,
            images=images[index] if isinstance(images, np.ndarray) else tuple(images[i] for i in index.tolist()),
            labels=self.labels[index],
            ids=tuple(self.ids[i] for i in index.tolist()),
            splits=self.splits[index],
            columns={key: values[index] for key, values in self.columns.items()},
        )

    def split(self, *names: str) -> ImageTable:
        """The rows of the named splits."""
        return self.take(np.isin(self.splits, names))

    def training_labels(self) -> NDArray[np.int64]:
        """Labels renumbered 0, 1, … over the classes that occur, as an objective with proxies needs them."""
        return np.searchsorted(self.classes(), self.labels).astype(np.int64)
