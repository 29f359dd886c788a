"""Opening the images of a run, split as when the run began, and a report on them to read before training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearkin.data.cache import OpenedImages, Progress, cache_root, open_images
from nearkin.data.duplicates import MAX_IMAGES, find_duplicates
from nearkin.data.source import is_benchmark, read_source
from nearkin.data.table import ImageTable, LeftOut
from nearkin.errors import DataError, notice
from nearkin.evaluation.protocol import Protocol
from nearkin.evaluation.splits import HOLDOUT, Changes
from nearkin.recipe import DataSection, Recipe
from nearkin.runs.folder import RunFolder
from nearkin.training.build import data_of

SCORED = ("validation", "test", "query", "gallery", HOLDOUT)
TRAINING, NEW_IMAGES, UNUSED = "training", "new images", "not used"
_EXAMPLES = 3


@dataclass(frozen=True)
class RunData:
    """A run's images, with the classes and the split they had when it began."""

    images: OpenedImages
    protocol: Protocol
    changes: Changes


def open_data(
    section: DataSection, *, table: ImageTable | None = None, progress: Progress | None = None
) -> OpenedImages:
    """Read the table that a recipe names and decode its images once."""
    return open_images(
        read_source(section.source, root=section.root, class_folders=section.class_folders) if table is None else table,
        cache_dir=None if section.cache == "memory" else cache_root() / "decoded",
        shorter_side=section.shorter_side,
        tolerance=section.unreadable_tolerance,
        workers=section.workers,
        progress=progress,
    )


def open_run_data(
    folder: RunFolder,
    recipe: Recipe,
    *,
    data_root: str | Path | None = None,
    progress: Progress | None = None,
    scored: Sequence[str] = SCORED,
) -> RunData:
    """Open the data that a run was trained on, split as they were then (:func:`split_as_stored`)."""
    section = data_of(recipe)
    if data_root is not None:
        section = dataclasses.replace(section, root=str(data_root))
    return split_as_stored(folder, recipe, open_own_data(folder, section, progress=progress), scored=scored)


def open_own_data(folder: RunFolder, section: DataSection, *, progress: Progress | None = None) -> OpenedImages:
    """Open the data of a run; the error says what to do where its folder of images has moved."""
    try:
        return open_data(with_root_found(section), progress=progress)
    except DataError as error:
        if is_benchmark(section.source) or Path(section.source).expanduser().exists():
            raise
        raise DataError(
            f"{error}. If the images of {folder.path} have moved, say where to: {folder.resume_command} "
            f"data.source=FOLDER"
        ) from error


def with_root_found(section: DataSection) -> DataSection:
    """The section of a run; a ``root`` that no longer exists is replaced by the default folder of benchmarks."""
    gone = section.root is not None and not Path(section.root).is_dir()
    return dataclasses.replace(section, root=None) if gone else section


def split_as_stored(
    folder: RunFolder, recipe: Recipe, now: OpenedImages, *, scored: Sequence[str] = SCORED, trains: bool = False
) -> RunData:
    """The run's images among those that exist now, with the classes and split that the run stored.

    Images are recognised by their content. Notices say what has changed, but not which images are missing from splits
    that are not ``scored``. With ``trains``, for a training that resumes, a missing training image is an error.
    """
    images, splits, changes = folder.split.restore(now, by_name=is_benchmark(recipe.data.source))
    if trains:
        changes.check_training(str(folder.path))
    for line in changes.describe(scored=scored):
        notice(f"{folder.path}: {line}")
    return RunData(images, Protocol(recipe.protocol, images.table, splits=splits), changes)


def notice_changed_images(folders: Iterable[RunFolder]) -> None:
    """Give a notice if the images of one source changed between runs that are compared."""
    first: dict[str, RunFolder] = {}
    for folder in folders:
        if folder.images is None:
            continue
        source, _ = folder.images
        other = first.setdefault(source, folder)
        if folder.images != other.images:
            notice(
                f"the images of {source} changed between {other.path} and {folder.path}, so their scores cannot be "
                f"compared: run them again in another folder"
            )
            return


@dataclass(frozen=True)
class Part:
    """The rows that train, that choose the epoch, or that are scored at the end."""

    name: str
    classes: int
    images: int
    unseen: bool = False
    """Whether none of its classes trains."""


@dataclass(frozen=True)
class Repeated:
    """Pictures that occur more than once; an example is two images, each as id and part."""

    count: int = 0
    examples: tuple[tuple[tuple[str, str], tuple[str, str]], ...] = ()


@dataclass(frozen=True)
class RepeatedPictures:
    """Pictures that occur, nearly the same, twice where this makes scores wrong."""

    leaks: Repeated = Repeated()
    """In training and among what is scored."""
    two_classes: Repeated = Repeated()
    """In two classes that both train, or are both scored: one of the labels is wrong."""
    copies: Repeated = Repeated()
    """Twice in a class that is scored: each copy finds the other."""
    complete: bool = True


@dataclass(frozen=True)
class DataReport:
    """Classes and images, how they are divided, what was left out, and pictures that occur more than once."""

    name: str
    images: int
    classes: int
    smallest: tuple[str, int]
    """The class with the fewest images, and their number; ``largest`` likewise."""
    largest: tuple[str, int]
    single: int
    """Classes with one image only."""
    parts: tuple[Part, ...]
    left_out: tuple[LeftOut, ...] = ()
    unreadable: tuple[str, ...] = ()
    repeated: RepeatedPictures | None = None
    """None where they were not searched for, as in published benchmarks."""
    kept_in: str | None = None
    """The folder of the decoded images."""


Announce = Callable[[DataReport], None]


def report_on(recipe: Recipe, data: OpenedImages, protocol: Protocol | None = None) -> DataReport:
    """The report on a recipe's data, with the parts of its protocol where there are classes enough for one."""
    try:
        parts = _parts(protocol or Protocol(recipe.protocol, data.table))
    except DataError:  # too few classes; the images that were left out may be why
        parts = {}
    kept = recipe.data.cache != "memory" and not isinstance(data.table.images, np.ndarray)
    return describe_data(
        data, parts, compare=not is_benchmark(recipe.data.source), kept_in=str(cache_root()) if kept else None
    )


def describe_data(
    opened: OpenedImages, parts: Mapping[str, NDArray[np.int64]], *, compare: bool = True, kept_in: str | None = None
) -> DataReport:
    """The report on ``opened`` and its ``parts``, given as rows; ``compare`` searches for repeated pictures."""
    table = opened.table
    rows_used = np.concatenate(list(parts.values())) if parts else np.arange(len(table))
    unused = np.setdiff1d(np.arange(len(table)), rows_used)
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


def _parts(protocol: Protocol) -> dict[str, NDArray[np.int64]]:
    """The rows of a protocol's parts, by their use."""
    parts = {TRAINING: protocol.train_rows}
    if len(protocol.holdout):
        parts[NEW_IMAGES] = protocol.holdout
    if protocol.validation is not None:
        parts["validation"] = protocol.validation.query
    test = protocol.test
    if test is not None and test.gallery is None:
        parts["test"] = test.query
    elif test is not None and test.gallery is not None:
        parts |= {"queries": test.query, "gallery": test.gallery}
    return parts


def _repeated(opened: OpenedImages, parts: Mapping[str, NDArray[np.int64]]) -> RepeatedPictures:
    table = opened.table
    if len(table) > MAX_IMAGES:
        return RepeatedPictures(complete=False)
    names, part_of = [UNUSED, *parts], np.zeros(len(table), dtype=np.int64)
    for number, rows in enumerate(parts.values(), start=1):
        part_of[rows] = number
    groups, complete = find_duplicates(opened.images, table.labels * len(names) + part_of)
    leaks, two_classes, copies = [], [], []
    for group in groups:
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

    return RepeatedPictures(repeated(leaks), repeated(two_classes), repeated(copies), complete)
