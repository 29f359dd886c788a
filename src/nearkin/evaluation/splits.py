"""Which rows of a table train, choose the epoch and test, and which training labels are made wrong.

Every choice is a function of the table and a seed. Draws are made class by class or as one order of all rows, so that a
larger share always holds what a smaller one does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkin.data.table import ImageTable
from nearkin.errors import DataError
from nearkin.recipe import ProtocolSection

Rows = NDArray[np.int64]

UNUSED = "unused"
"""The split of an image that neither trains nor is scored, as where ``protocol.train_share`` leaves it out."""

_TESTED = ("test", "query", "gallery")
_SMALL_DATA, _LABEL_NOISE, _TEST_IMAGES = 101, 102, 103
"""Apart from each other, so that no choice follows from another with the same seed."""


def drawn_splits(section: ProtocolSection, table: ImageTable) -> NDArray[np.str_]:
    """What a protocol makes of each row: ``train``, ``validation``, ``test``, ``query``, ``gallery`` or ``unused``.

    >>> from nearkin.recipe import ProtocolSection
    >>> pixels = np.zeros((8, 4, 4), dtype=np.uint8)
    >>> table = ImageTable.build("toy", pixels, list("aabbccdd"), splits=["train"] * 8)
    >>> drawn_splits(ProtocolSection(test_share=0.5), table).tolist()
    ['test', 'test', 'train', 'train', 'train', 'train', 'test', 'test']
    """
    splits = table.splits.astype("<U10")
    if section.name == "everything":
        splits[:] = "train"
    elif section.name != "query-gallery" and section.test_share and not np.isin(splits, _TESTED).any():
        draw = _test_images if section.name == "in-distribution" else _test_classes
        splits[draw(table, section.test_share, section.split_seed)] = "test"
    train = np.flatnonzero(splits == "train")
    held_out = np.empty(0, dtype=np.int64)
    if section.name == "validation":
        held_out = np.flatnonzero(splits == "validation")
        if not len(held_out):
            seed = section.split_seed if section.validation_seed is None else section.validation_seed
            held_out = choose_classes(table, train, section.validation_share, seed + 1, keep=4)
    elif section.name == "mlrc":
        train = np.flatnonzero(np.isin(splits, ("train", "validation")))
        held_out = class_fold(table, train, folds=section.folds, fold=section.fold)
    train = share_of_each_class(table, np.setdiff1d(train, held_out), section.train_share, section.split_seed)
    splits[np.isin(splits, ("train", "validation"))] = UNUSED
    splits[train] = "train"
    splits[held_out] = "validation"
    if {"query", "gallery"} <= set(splits.tolist()):
        splits[splits == "test"] = UNUSED
    return splits


def _test_classes(table: ImageTable, share: float, seed: int) -> Rows:
    """All images of a share of the classes."""
    test = choose_classes(table, np.flatnonzero(table.splits == "train"), share, seed, keep=2)
    if not len(test):
        raise DataError(
            f"{table.name!r} has {len(table.classes())} classes; a score on classes never seen in training needs at "
            f"least 4 with 2 images or more in two of them. Add classes, or set protocol.test_share=0 to train "
            f"without a score."
        )
    return test


def _test_images(table: ImageTable, share: float, seed: int) -> Rows:
    """A share of the images of every class.

    Two at least, or they could not find each other; a class of fewer than three images only trains.
    """
    chosen = [np.empty(0, dtype=np.int64)]
    for label, rows in _rows_by_class(table, np.flatnonzero(table.splits == "train")):
        count = min(max(2, round(share * len(rows))), len(rows) - 1)
        if count >= 2:
            chosen.append(_generator(seed, _TEST_IMAGES, label).permutation(rows)[:count])
    return np.concatenate(chosen)


def choose_classes(table: ImageTable, rows: Rows, share: float, seed: int, *, keep: int) -> Rows:
    """Rows of a share of the classes, at least two, drawn among classes with two images or more; ``keep`` stay."""
    labels, counts = np.unique(table.labels[rows], return_counts=True)
    wanted = min(max(2, round(share * len(labels))), len(labels) - keep)
    eligible = labels[counts >= 2]
    if share == 0 or wanted < 2 or len(eligible) < wanted:
        return np.empty(0, dtype=np.int64)
    chosen = np.random.Generator(np.random.Philox(seed)).choice(eligible, wanted, replace=False)
    return rows[np.isin(table.labels[rows], chosen)]


def class_fold(table: ImageTable, rows: Rows, *, folds: int, fold: int) -> Rows:
    """The rows of one of ``folds`` contiguous groups of classes, as equal in number as can be, larger ones first.

    >>> pixels = np.zeros((5, 4, 4), dtype=np.uint8)
    >>> table = ImageTable.build("toy", pixels, list("abcde"), splits=["train"] * 5)
    >>> [class_fold(table, np.arange(5), folds=2, fold=fold).tolist() for fold in (0, 1)]
    [[0, 1, 2], [3, 4]]
    """
    members = np.array_split(np.unique(table.labels[rows]), folds)[fold]
    return rows[np.isin(table.labels[rows], members)]


def share_of_each_class(table: ImageTable, rows: Rows, share: float, seed: int) -> Rows:
    """A share of the rows of every class, at least one; a larger share holds all of a smaller one."""
    if share == 1 or not len(rows):
        return rows
    chosen = [
        _generator(seed, _SMALL_DATA, label).permutation(members)[: max(1, round(share * len(members)))]
        for label, members in _rows_by_class(table, rows)
    ]
    return np.sort(np.concatenate(chosen))


def with_wrong_labels(labels: NDArray[np.int64], share: float, seed: int) -> NDArray[np.int64]:
    """Labels of which exactly ``round(share * N)`` are replaced, each by another class drawn at random.

    One image of every class keeps its label, so that no class disappears. A larger share replaces the same labels as a
    smaller one by the same classes, and others too.

    Args:
        labels: ``[N]``, numbered 0, 1, … over the classes.
        share: of the labels that are replaced.
        seed: decides which, and by what.

    Example:
        >>> labels = np.repeat(np.arange(4), 5)
        >>> wrong = with_wrong_labels(labels, 0.2, seed=0)
        >>> int((wrong != labels).sum())
        4
    """
    wanted = round(share * len(labels))
    if not wanted:
        return labels
    classes = int(labels.max()) + 1
    rng = _generator(seed, _LABEL_NOISE)
    order = rng.permutation(len(labels))
    others = rng.integers(0, max(classes - 1, 1), len(labels))
    others += others >= labels  # every class but one's own
    kept = order[np.unique(labels[order], return_index=True)[1]]
    replaceable = order[~np.isin(order, kept)]
    if classes < 2 or wanted > len(replaceable):
        raise DataError(
            f"protocol.label_noise={share:g} would replace {wanted:,} of {len(labels):,} training labels, but each of "
            f"the {classes:,} classes keeps one image: at most {len(replaceable):,} can be replaced"
        )
    wrong = labels.copy()
    wrong[replaceable[:wanted]] = others[replaceable[:wanted]]
    return wrong


def _rows_by_class(table: ImageTable, rows: Rows) -> list[tuple[int, Rows]]:
    labels = table.labels[rows]
    order = np.argsort(labels, kind="stable")
    names, starts = np.unique(labels[order], return_index=True)
    return list(zip(names.tolist(), np.split(rows[order], starts[1:]), strict=True))


def _generator(seed: int, *what: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *what])))
