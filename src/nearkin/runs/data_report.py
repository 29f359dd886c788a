"""What a run has understood of its data, to be read before it trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearkin.data.cache import OpenedImages
from nearkin.data.duplicates import MAX_IMAGES, find_duplicates
from nearkin.data.table import LeftOut
from nearkin.evaluation.protocol import Protocol

TRAINING, UNUSED = "training", "not used"
_EXAMPLES = 3


@dataclass(frozen=True)
class Part:
    """The rows that train, or that are scored to choose the epoch, or at the end."""

    name: str
    classes: int
    images: int
    unseen: bool = False
    """Whether none of its classes trains."""


@dataclass(frozen=True)
class Repeated:
    """Pictures that occur more than once; an example is two of their rows, each as id and part."""

    count: int = 0
    examples: tuple[tuple[tuple[str, str], tuple[str, str]], ...] = ()


@dataclass(frozen=True)
class RepeatedPictures:
    """The same picture, or one that is nearly the same, where it makes scores wrong."""

    leaks: Repeated = Repeated()
    """In training and among what is scored."""
    two_classes: Repeated = Repeated()
    """In two classes that both train, or are both scored: one of the labels is wrong."""
    copies: Repeated = Repeated()
    """Twice in a class that is scored: each finds its copy."""
    complete: bool = True


@dataclass(frozen=True)
class DataReport:
    """Classes and images, how they are divided, what was left out, and pictures that occur more than once."""

    name: str
    images: int
    classes: int
    smallest: tuple[str, int]
    """The class with the fewest images, and their number."""
    largest: tuple[str, int]
    single: int
    """Classes with one image only."""
    parts: tuple[Part, ...]
    left_out: tuple[LeftOut, ...] = ()
    unreadable: tuple[str, ...] = ()
    repeated: RepeatedPictures | None = None
    """None where it was not looked for, as in published benchmarks."""
    kept_in: str | None = None
    """The folder of the decoded images."""


Announce = Callable[[DataReport], None]


def describe_data(
    opened: OpenedImages, parts: Mapping[str, NDArray[np.int64]], *, compare: bool = True, kept_in: str | None = None
) -> DataReport:
    """The report on ``opened``, whose rows are divided into ``parts``.

    With ``compare`` it says which pictures occur more than once, which takes some seconds for ten thousand images.
    """
    table = opened.table
    every = np.arange(len(table), dtype=np.int64)
    unused = np.setdiff1d(every, np.concatenate(list(parts.values()))) if parts else every[:0]
    trained = np.unique(table.labels[parts[TRAINING]]) if TRAINING in parts else np.empty(0, dtype=np.int64)
    counts = np.bincount(table.labels, minlength=len(table.class_names))
    present = np.flatnonzero(counts)
    least, most = present[counts[present].argmin()], present[counts[present].argmax()]
    return DataReport(
        name=table.name,
        images=len(table),
        classes=len(present),
        smallest=(table.class_names[least], int(counts[least])),
        largest=(table.class_names[most], int(counts[most])),
        single=int((counts == 1).sum()),
        parts=tuple(
            Part(name, len(classes), len(rows), not np.isin(classes, trained).any())
            for name, rows in {**parts, UNUSED: unused}.items()
            if len(classes := np.unique(table.labels[rows]))
        ),
        left_out=table.left_out,
        unreadable=tuple(str(error) for error in opened.unreadable),
        repeated=_repeated(opened, parts) if compare and parts else None,
        kept_in=kept_in,
    )


def parts_of(protocol: Protocol) -> dict[str, NDArray[np.int64]]:
    """The rows of a protocol's parts by what they are for."""
    parts = {TRAINING: protocol.train_rows}
    if protocol.validation is not None:
        parts["validation"] = protocol.validation.query
    if protocol.test is not None and protocol.test.gallery is None:
        parts["test"] = protocol.test.query
    elif protocol.test is not None and protocol.test.gallery is not None:
        parts |= {"queries": protocol.test.query, "gallery": protocol.test.gallery}
    return parts


def _repeated(opened: OpenedImages, parts: Mapping[str, NDArray[np.int64]]) -> RepeatedPictures:
    table = opened.table
    if len(table) > MAX_IMAGES:
        return RepeatedPictures(complete=False)
    part_of = np.zeros(len(table), dtype=np.int64)
    names = [UNUSED, *parts]
    for number, rows in enumerate(parts.values(), start=1):
        part_of[rows] = number
    found = find_duplicates(opened.images, table.labels * len(names) + part_of)
    leaks, two_classes, copies = [], [], []
    for group in found.groups:
        rows = np.array([row for row in group if part_of[row]], dtype=np.int64)
        trains = np.array([names[part_of[row]] == TRAINING for row in rows], dtype=bool)
        other_class = table.labels[rows] != table.labels[rows[:1]]
        if trains.any() and not trains.all():
            leaks.append((rows[trains][0], rows[~trains][0]))
        elif other_class.any():
            two_classes.append((rows[0], rows[other_class][0]))
        elif len(rows) > 1 and not trains.any():
            copies.append((rows[0], rows[1]))

    def repeated(pairs: list[tuple[np.int64, np.int64]]) -> Repeated:
        named = [[(table.ids[row], names[part_of[row]]) for row in pair] for pair in pairs[:_EXAMPLES]]
        return Repeated(len(pairs), tuple((one, other) for one, other in named))

    return RepeatedPictures(repeated(leaks), repeated(two_classes), repeated(copies), found.complete)
