"""Which rows of a table train, choose the epoch and test: drawn when a run begins, and stored as ``split.csv``.

Every draw is a function of the table and a seed, and a larger share always contains a smaller one. A stored split
identifies images by a hash of their content, so files and class folders may be moved or renamed.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nearkin.data.cache import OpenedImages, SelectedImages
from nearkin.data.table import SPLITS, ImageTable
from nearkin.errors import DataError
from nearkin.recipe import ProtocolSection

Rows = NDArray[np.int64]

HOLDOUT = "holdout"
"""The split of an image of a training class that is kept out of training (``protocol.holdout_share``)."""
HOLDOUT_SHARE = 0.1
"""The default for a final model, which has no other images to learn confidences from."""
FEWEST_TO_HOLD_OUT = 8
"""Classes with fewer images need all of them to train."""
UNUSED = "unused"
"""The split of an image that neither trains nor is scored, for instance because of ``protocol.train_share``."""

COLUMNS = ("image", "label", "class", "split", "content")
_TESTED = ("test", "query", "gallery")
_STORED = (*SPLITS, HOLDOUT, UNUSED)
_SMALL_DATA, _LABEL_NOISE, _TEST_IMAGES, _HOLDOUT = 101, 102, 103, 104
"""Different streams, so that draws with the same seed are independent of each other."""


def drawn_splits(section: ProtocolSection, table: ImageTable) -> NDArray[np.str_]:
    """The part of each row under a protocol: one of :data:`~nearkin.data.table.SPLITS`, ``holdout`` or ``unused``.

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
        splits[_test_rows(section, table)] = "test"
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
    train = np.setdiff1d(train, held_out)
    if section.train_share < 1:
        train = _of_each_class(table, train, section.train_share, (section.split_seed, _SMALL_DATA))
    splits[np.isin(splits, ("train", "validation"))] = UNUSED
    splits[train] = "train"
    splits[held_out] = "validation"
    share = section.holdout_share
    if share is None:
        share = HOLDOUT_SHARE if section.name == "everything" else 0.0
    if share:
        seeds = section.split_seed, _HOLDOUT
        splits[_of_each_class(table, train, share, seeds, fewest=FEWEST_TO_HOLD_OUT)] = HOLDOUT
    if {"query", "gallery"} <= set(splits.tolist()):
        splits[splits == "test"] = UNUSED
    return splits


def _test_rows(section: ProtocolSection, table: ImageTable) -> Rows:
    """The rows to test: a share of the images of every class (``in-distribution``), or of the classes."""
    train, share, seed = np.flatnonzero(table.splits == "train"), section.test_share, section.split_seed
    if section.name == "in-distribution":
        # Two at least, or they could not find each other; a class of fewer than three images only trains.
        return _of_each_class(table, train, share, (seed, _TEST_IMAGES), fewest=3, least=2, stay=1)
    test = choose_classes(table, train, share, seed, keep=2)
    if not len(test):
        raise DataError(
            f"{table.name!r} has {len(table.classes())} classes; a score on classes never seen in training needs at "
            f"least 4 with 2 images or more in two of them. Add classes, or set protocol.test_share=0 to train "
            f"without a score."
        )
    return test


def _of_each_class(
    table: ImageTable,
    rows: Rows,
    share: float,
    seeds: tuple[int, int],
    *,
    fewest: int = 1,
    least: int = 1,
    stay: int = 0,
) -> Rows:
    """A share of the rows of every class with ``fewest`` or more: at least ``least``, and leaving at least ``stay``."""
    labels = table.labels[rows]
    order = np.argsort(labels, kind="stable")
    names, starts = np.unique(labels[order], return_index=True)
    chosen = [np.empty(0, dtype=np.int64)]
    for label, members in zip(names.tolist(), np.split(rows[order], starts)[1:], strict=True):
        if len(members) >= fewest:
            count = min(max(least, round(share * len(members))), len(members) - stay)
            chosen.append(_generator(*seeds, label).permutation(members)[:count])
    return np.sort(np.concatenate(chosen))


def choose_classes(table: ImageTable, rows: Rows, share: float, seed: int, *, keep: int) -> Rows:
    """Rows of a share of the classes: at least two, with two images or more each, and leaving ``keep`` classes."""
    labels, counts = np.unique(table.labels[rows], return_counts=True)
    wanted = min(max(2, round(share * len(labels))), len(labels) - keep)
    eligible = labels[counts >= 2]
    if share == 0 or wanted < 2 or len(eligible) < wanted:
        return np.empty(0, dtype=np.int64)
    chosen = np.random.Generator(np.random.Philox(seed)).choice(eligible, wanted, replace=False)
    return rows[np.isin(table.labels[rows], chosen)]


def class_fold(table: ImageTable, rows: Rows, *, folds: int, fold: int) -> Rows:
    """The rows of one of ``folds`` contiguous groups of classes; sizes differ by one at most, larger groups first.

    >>> pixels = np.zeros((5, 4, 4), dtype=np.uint8)
    >>> table = ImageTable.build("toy", pixels, list("abcde"), splits=["train"] * 5)
    >>> [class_fold(table, np.arange(5), folds=2, fold=fold).tolist() for fold in (0, 1)]
    [[0, 1, 2], [3, 4]]
    """
    members = np.array_split(np.unique(table.labels[rows]), folds)[fold]
    return rows[np.isin(table.labels[rows], members)]


def with_wrong_labels(labels: NDArray[np.int64], share: float, seed: int) -> NDArray[np.int64]:
    """Labels 0, 1, … of which exactly ``round(share * N)`` are replaced, each by another class drawn at random.

    One image of every class keeps its label, so that no class disappears. A larger share makes the replacements of a
    smaller one, and more.

    >>> labels = np.repeat(np.arange(4), 5)
    >>> int((with_wrong_labels(labels, 0.2, seed=0) != labels).sum())
    4
    """
    wanted = round(share * len(labels))
    if not wanted:
        return labels
    classes = int(labels.max()) + 1
    rng = _generator(seed, _LABEL_NOISE)
    order = rng.permutation(len(labels))
    others = rng.integers(0, max(classes - 1, 1), len(labels))
    others += others >= labels  # skips the label itself
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


def _generator(*seeds: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seeds)))


@dataclass(frozen=True)
class StoredSplit:
    """One row per image, in the order of the run's table.

    >>> table = ImageTable.build("toy", np.zeros((2, 4, 4), np.uint8), ["a", "b"], splits=["train", "test"])
    >>> split = StoredSplit.of(replace(table, ids=("a/1.jpg", "b/1.jpg")), table.splits, ["x", "y"])
    >>> print(split.to_csv().decode().splitlines()[1])
    a/1.jpg,0,a,train,x
    >>> StoredSplit.from_csv(split.to_csv()).class_names
    ('a', 'b')
    """

    ids: tuple[str, ...]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    """By label; empty for a label without images."""
    splits: NDArray[np.str_]
    digests: tuple[str, ...]

    @classmethod
    def of(cls, table: ImageTable, splits: NDArray[np.str_], digests: Sequence[str]) -> StoredSplit:
        """The split of a table, with the content hash of each image."""
        used = set(table.labels.tolist())
        names = [name if label in used else "" for label, name in enumerate(table.class_names)]
        return cls(table.ids, table.labels, tuple(names[: max(used, default=-1) + 1]), splits, tuple(digests))

    def to_csv(self) -> bytes:
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        classes = [self.class_names[label] for label in self.labels.tolist()]
        writer.writerows(zip(self.ids, self.labels.tolist(), classes, self.splits.tolist(), self.digests, strict=True))
        return text.getvalue().encode()

    @classmethod
    def from_csv(cls, content: bytes) -> StoredSplit:
        """Read what :meth:`to_csv` wrote, or raise ``ValueError``."""
        reader = csv.reader(io.StringIO(content.decode(), newline=""), strict=True)
        if tuple(next(reader, ())) != COLUMNS:
            raise ValueError(f"line 1: the columns should be {', '.join(COLUMNS)}")
        rows = []
        for row in reader:
            if len(row) != len(COLUMNS) or row[3] not in _STORED or not row[1].isdecimal():
                raise ValueError(f"line {reader.line_num}: {','.join(row)[:80]!r} is not an image of a split")
            rows.append(row)
        if not rows or not content.endswith(b"\n"):
            raise ValueError("the end is missing")
        ids, labels, classes, splits, digests = zip(*rows, strict=True)
        named = {int(label): name for label, name in zip(labels, classes, strict=True)}
        return cls(
            ids,
            np.array([int(label) for label in labels], dtype=np.int64),
            tuple(named.get(label, "") for label in range(max(named) + 1)),
            np.array(splits, dtype=np.str_),
            digests,
        )

    @cached_property
    def content_hash(self) -> str:
        """Equal for runs that train and test on the same images of the same classes."""
        return _hash(self.labels.tolist(), self.class_names, self.splits.tolist(), self.digests)

    @cached_property
    def images_hash(self) -> str:
        """Equal for runs on the same images of the same classes, however they are split."""
        return _hash(self.labels.tolist(), self.class_names, self.digests)

    @cached_property
    def trained(self) -> frozenset[str]:
        """Digests of the training images."""
        return frozenset(digest for digest, split in zip(self.digests, self.splits, strict=True) if split == "train")

    @cached_property
    def trained_classes(self) -> frozenset[str]:
        return frozenset(self.class_names[label] for label in np.unique(self.labels[self.splits == "train"]).tolist())

    def restore(self, now: OpenedImages, *, by_name: bool = False) -> tuple[OpenedImages, NDArray[np.str_], Changes]:
        """Find the run's images among those that exist now, and give them the run's labels.

        With ``by_name`` an image whose content is missing is identified by its name, for published benchmarks, whose
        images may have been drawn or encoded again.

        Returns the remaining images in the run's order, the split of each, and what has changed. Where nothing has
        changed, that is the object ``now``, so that runs opened together share it.
        """
        named = {name: row for row, name in enumerate(now.table.ids)}
        by_content = {digest: row for row, digest in reversed(list(enumerate(now.digests)))}
        # The name decides between files with the same content.
        by_both = {image: row for row, image in enumerate(zip(now.table.ids, now.digests, strict=True))}
        images = zip(self.ids, self.digests, strict=True)
        rows = np.array([by_both.get(image, by_content.get(image[1], -1)) for image in images], dtype=np.int64)
        changes = self._changes(now, rows, named)
        if by_name:
            for number in np.flatnonzero(rows < 0).tolist():
                rows[number] = named.get(self.ids[number], -1)
            changes = replace(changes, by_name=True)
        if self._is_same(now.table) and np.array_equal(rows, np.arange(len(now.table))):
            return now, self.splits, changes
        kept = np.flatnonzero(rows >= 0)
        table = replace(
            now.table.take(rows[kept]),
            labels=self.labels[kept],
            class_names=self.class_names,
            ids=tuple(self.ids[number] for number in kept.tolist()),
        )
        digests = tuple(self.digests[number] for number in kept.tolist())
        opened = OpenedImages(table, SelectedImages(now.images, rows[kept]), now.unreadable, digests)
        return opened, self.splits[kept], changes

    def _is_same(self, table: ImageTable) -> bool:
        if self.ids != table.ids or not np.array_equal(self.labels, table.labels):
            return False
        used = np.unique(self.labels).tolist()
        return all(self.class_names[label] == table.class_names[label] for label in used)

    def _changes(self, now: OpenedImages, rows: NDArray[np.int64], named: dict[str, int]) -> Changes:
        lost = np.flatnonzero(rows < 0).tolist()
        known = set(self.digests)
        changed = {self.ids[number] for number in lost if self.ids[number] in named}
        new = [
            row
            for row, (name, digest) in enumerate(zip(now.table.ids, now.digests, strict=True))
            if digest not in known and name not in changed
        ]
        classes = [now.table.class_names[label] for label in now.table.labels.tolist()]
        ours = [self.class_names[label] for label in self.labels.tolist()]
        pairs = [(name, classes[row]) for name, row in zip(ours, rows.tolist(), strict=True) if row >= 0]
        reclassed = Counter((before, after) for before, after in pairs if before != after)
        old_names = set(ours) | {after for _, after in reclassed}
        return Changes(
            lost={
                split: tuple(self.ids[number] for number in lost if self.splits[number] == split) for split in _STORED
            },
            counts={split: int((self.splits == split).sum()) for split in _STORED},
            changed=frozenset(changed),
            new=tuple(now.table.ids[row] for row in new),
            new_classes=tuple(dict.fromkeys(name for row in new if (name := classes[row]) not in old_names)),
            reclassed=dict(reclassed),
        )


@dataclass(frozen=True)
class Changes:
    """What has changed since a run began. Files that were only moved or renamed do not count."""

    lost: dict[str, tuple[str, ...]]
    """By split, the images whose content no longer exists."""
    counts: dict[str, int]
    """By split, how many images there were."""
    changed: frozenset[str]
    """The lost images whose name now belongs to something else."""
    new: tuple[str, ...]
    new_classes: tuple[str, ...]
    reclassed: dict[tuple[str, str], int]
    """How many images have moved to another class, by the old and the new name."""
    by_name: bool = False
    """Whether changed images are still used, by their name."""

    def check_training(self, run: str) -> None:
        """Refuse to resume training without all of its images."""
        if lost := self.lost["train"]:
            raise DataError(
                f"{self._lost(lost, 'train', 'training')} ({_some(lost)}): training of {run} cannot resume. "
                f"Put them back as they were, or begin again with --overwrite or in another folder with -o"
            )

    def describe(self, *, scored: Sequence[str]) -> list[str]:
        """One line for each kind of change; lost images only matter in the ``scored`` splits."""
        lines = []
        if self.new:
            classes = f" of {_count(len(self.new_classes), 'new class', 'new classes')}" if self.new_classes else ""
            in_them = tuple(f"{name}/" for name in self.new_classes)
            among = " and others" if in_them and not all(name.startswith(in_them) for name in self.new) else ""
            lines.append(
                f"{_count(len(self.new), 'image')}{classes}{among} came after the run began: left out "
                f"({_some(self.new_classes or self.new)})"
            )
        for split in scored:
            lost = self.lost[split]
            kept = [name for name in lost if self.by_name and name in self.changed]
            gone = [name for name in lost if name not in kept]
            for names, how in ((gone, "without them"), (kept, "as they are now")):
                if names:
                    lines.append(f"{self._lost(names, split, split)} ({_some(names)}): scored {how}")
        if self.reclassed:
            pairs = [f"{before} → {now}" for before, now in self.reclassed]
            lines.append(
                f"{_count(sum(self.reclassed.values()), 'image')} in another class than when the run began "
                f"({_some(pairs)}): the run's own classes count"
            )
        return lines

    def _lost(self, names: Sequence[str], split: str, kind: str) -> str:
        changed = sum(name in self.changed for name in names)
        what = "changed" if changed == len(names) else "missing or changed" if changed else "missing"
        return f"{len(names):,} of {_count(self.counts[split], f'{kind} image')} {what}"


def _hash(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(errors="surrogateescape"), digest_size=8).hexdigest()


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
