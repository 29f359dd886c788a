"""The images of a run: opened, and for a run that was begun before, with the split that it keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nearkin.data.cache import OpenedImages, cache_root, open_images
from nearkin.data.source import is_benchmark, read_source
from nearkin.data.table import ImageTable
from nearkin.errors import DataError, notice
from nearkin.evaluation.protocol import Protocol
from nearkin.evaluation.stored_split import Changes
from nearkin.recipe import DataSection, Recipe
from nearkin.runs.data_report import DataReport, describe_data, parts_of
from nearkin.runs.folder import RunFolder
from nearkin.training.build import data_of

Progress = Callable[[int, int], None]

SCORED = ("validation", "test", "query", "gallery")


@dataclass(frozen=True)
class RunData:
    """A run's images, with the classes and the split they had when it began."""

    images: OpenedImages
    protocol: Protocol
    changes: Changes | None
    """What has changed since; None where the run does not say what there was."""


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


def report_on(recipe: Recipe, data: OpenedImages, protocol: Protocol | None = None) -> DataReport:
    """What is understood of a recipe's data, and how its protocol divides them, if it can."""
    try:
        parts = parts_of(protocol or Protocol(recipe.protocol, data.table))
    except DataError:  # too few classes: what was left out may be why
        parts = {}
    kept = recipe.data.cache != "memory" and not data.table.in_memory
    return describe_data(
        data,
        parts,
        compare=not is_benchmark(recipe.data.source),
        kept_in=str(cache_root()) if kept else None,
    )


def open_run_data(
    folder: RunFolder,
    recipe: Recipe,
    *,
    data_root: str | Path | None = None,
    progress: Progress | None = None,
    scored: Sequence[str] = SCORED,
) -> RunData:
    """Open the data that a run folder was trained on, split as they were then (:func:`split_as_stored`)."""
    section = data_of(recipe)
    if data_root is not None:
        section = dataclasses.replace(section, root=str(data_root))
    return split_as_stored(folder, recipe, open_own_data(folder, section, progress=progress), scored=scored)


def open_own_data(folder: RunFolder, section: DataSection, *, progress: Progress | None = None) -> OpenedImages:
    """Open the data of a run; an error says what to do where a folder has moved."""
    try:
        return open_data(with_root_found(section), progress=progress)
    except DataError as error:
        if is_benchmark(section.source) or Path(section.source).expanduser().exists():
            raise
        if folder.split_file.exists():
            advice = (
                f"If the images of {folder.path} have moved, say where to: {folder.resume_command} data.source=FOLDER"
            )
        else:
            advice = f"{folder.path} is of an earlier version: use it from the folder that it was trained from"
        raise DataError(f"{error}. {advice}") from error


def with_root_found(section: DataSection) -> DataSection:
    """The section of a run whose benchmarks may lie elsewhere now: where its root is gone, the usual one is taken."""
    gone = section.root is not None and not Path(section.root).is_dir()
    return dataclasses.replace(section, root=None) if gone else section


def split_as_stored(
    folder: RunFolder, recipe: Recipe, now: OpenedImages, *, scored: Sequence[str] = SCORED, trains: bool = False
) -> RunData:
    """What a run was trained and tested on, among the images that are there now; what has changed is said.

    The one way from a run folder to a protocol: images are known by their content, classes and split are those that
    the run kept. A run of an earlier version kept none, and gets a split made anew from its recipe.

    Args:
        folder: of the run.
        recipe: of the run.
        now: its data as they are.
        scored: the splits that will be looked at; images lost from others need no word.
        trains: whether training goes on, which it cannot without any one of its images.
    """
    stored = folder.stored_split
    if stored is None:
        notice(
            f"{folder.path} was written by an earlier version of nearkin, which did not keep its split: it is made "
            f"anew from the recipe, which is right if no image or class has been added or taken away since"
            f"{_counted_otherwise(folder, now)}"
        )
        return RunData(now, Protocol(recipe.protocol, now.table), None)
    images, splits, changes = stored.restore(now, by_name=is_benchmark(recipe.data.source))
    if trains:
        changes.check_training(str(folder.path))
    for line in changes.said(scored=scored):
        notice(f"{folder.path}: {line}")
    return RunData(images, Protocol(recipe.protocol, images.table, splits=splits), changes)


def say_if_images_differ(folders: Iterable[RunFolder]) -> None:
    """Say it where images of one source changed between runs that are held against each other."""
    first: dict[str, tuple[str, RunFolder]] = {}
    for folder in folders:
        if folder.images is None:
            continue
        source, images = folder.images
        before, other = first.setdefault(source, (images, folder))
        if images != before:
            notice(
                f"the images of {source} changed between {other.path} and {folder.path}: scores of the one do not "
                f"compare with those of the other. Run them anew in another folder to compare them"
            )
            return


def _counted_otherwise(folder: RunFolder, now: OpenedImages) -> str:
    record = folder.environment().data
    then, there = (record.images, record.classes), (len(now.table), len(now.table.classes()))
    if not record.images or then == there:
        return ""
    return f". It had {then[0]:,} images of {then[1]:,} classes, and there are {there[0]:,} of {there[1]:,} now"
