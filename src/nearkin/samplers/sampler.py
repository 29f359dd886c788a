"""Samplers of batches: random rows, or a number of classes with a number of images of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.numerics import check_at_least


class BatchSampler(ABC):
    """Chooses the rows of the training table for the next batch.

    A sampler never ends; ``batches_per_epoch`` is the length of an epoch. ``lookahead`` is how many batches may be
    drawn in advance: 0 for a sampler that depends on the last training step.
    """

    lookahead = 4
    batch_size: int
    """The most rows that a batch has."""
    batches_per_epoch: int
    drawn = 0
    """The number of batches so far, the whole state of most samplers."""

    @abstractmethod
    def next_batch(self) -> NDArray[np.int64]: ...

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = int(state["drawn"])


class ClassSampler(BatchSampler):
    """Batches of ``batch_size / images_per_class`` classes (all, where there are fewer), from the ``rows`` of each."""

    def __init__(self, labels: NDArray[np.int64], *, batch_size: int, images_per_class: int) -> None:
        if batch_size < images_per_class or batch_size % images_per_class:
            raise ValueError(f"batch_size ({batch_size}) must be a multiple of images_per_class ({images_per_class})")
        order = np.argsort(labels, kind="stable")
        _, starts = np.unique(labels[order], return_index=True)
        self.rows = np.split(order.astype(np.int64), starts[1:])
        self.classes_per_batch = min(batch_size // images_per_class, len(self.rows))
        self.batch_size = self.classes_per_batch * images_per_class
        self.batches_per_epoch = max(1, len(labels) // self.batch_size)


def generator(seed: int, *stream: int) -> np.random.Generator:
    """An independent random generator for every (seed, stream …)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy=seed, spawn_key=stream)))


class FairStream:
    """Groups of ``group`` items out of ``count``, every item once per round.

    Round r is a permutation drawn from (seed, stream, r). Where a group extends into the next round, its items are
    moved back in that round, so that a group has no item twice unless ``group > count``. A stream has no state.

    >>> stream = FairStream(5, 2, seed=0, stream=(7,))
    >>> sorted(item for g in range(5) for item in stream[g].tolist())
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    """

    def __init__(self, count: int, group: int, *, seed: int, stream: tuple[int, ...] = ()) -> None:
        self.count, self.group = count, group
        self.seed, self.stream = seed, stream
        self._recent: dict[int, NDArray[np.int64]] = {}

    def __getitem__(self, number: int) -> NDArray[np.int64]:
        start = number * self.group
        parts, taken = [], 0
        while taken < self.group:
            turn, offset = divmod(start + taken, self.count)
            part = self._round(turn)[offset : offset + self.group - taken]
            parts.append(part)
            taken += len(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def round_of(self, number: int) -> NDArray[np.int64]:
        """The round of every item of group ``number``, counted from 0."""
        return (number * self.group + np.arange(self.group, dtype=np.int64)) // self.count

    def _round(self, turn: int) -> NDArray[np.int64]:
        if turn in self._recent:
            return self._recent[turn]
        first = turn
        while self._begun(first) and first - 1 not in self._recent:
            first -= 1
        for t in range(first, turn + 1):
            order = generator(self.seed, *self.stream, t).permutation(self.count).astype(np.int64)
            begun = self._begun(t)
            if begun:
                held = self._recent[t - 1][self.count - begun :]
                order = self._keep_back(order, held, self.group - begun)
            self._recent = {k: v for k, v in self._recent.items() if k == t - 1} | {t: order}
        return self._recent[turn]

    def _begun(self, turn: int) -> int:
        """How many items of the last round are in the first group of this round, so must not come first again."""
        return (turn * self.count) % self.group if self.group <= self.count else 0

    @staticmethod
    def _keep_back(order: NDArray[np.int64], last_of_round: NDArray[np.int64], first: int) -> NDArray[np.int64]:
        early = np.isin(order[:first], last_of_round)
        if not early.any():
            return order
        free = first + np.flatnonzero(~np.isin(order[first:], last_of_round))[: int(early.sum())]
        blocked = np.flatnonzero(early)
        order = order.copy()
        order[blocked], order[free] = order[free], order[blocked]
        return order


class RandomSampler(BatchSampler):
    """Shuffles ``count`` rows each epoch and cuts them into batches, without the last if it is not full.

    Fewer rows than ``batch_size`` make one batch.

    >>> sampler = RandomSampler(5, batch_size=2, seed=0)
    >>> sampler.batches_per_epoch, [len(sampler.next_batch()) for _ in range(3)]
    (2, [2, 2, 2])
    """

    def __init__(self, count: int, *, batch_size: int, seed: int) -> None:
        check_at_least(1, count=count, batch_size=batch_size)
        self.batch_size = min(batch_size, count)
        self.batches_per_epoch = count // self.batch_size
        self._epochs = FairStream(count, count, seed=seed)

    def next_batch(self) -> NDArray[np.int64]:
        epoch, position = divmod(self.drawn, self.batches_per_epoch)
        self.drawn += 1
        return self._epochs[epoch][position * self.batch_size : (position + 1) * self.batch_size]


class BalancedSampler(ClassSampler):
    """Batches of ``batch_size / images_per_class`` classes with ``images_per_class`` images each.

    Classes come in shuffled rounds, and so do the images of each class, across epochs. A class with fewer than
    ``images_per_class`` images repeats them.

    >>> labels = np.array([0, 0, 0, 1, 1, 2, 2])
    >>> sampler = BalancedSampler(labels, batch_size=4, images_per_class=2, seed=0)
    >>> np.unique(labels[sampler.next_batch()], return_counts=True)[1].tolist()
    [2, 2]
    """

    def __init__(self, labels: NDArray[np.int64], *, batch_size: int, images_per_class: int, seed: int) -> None:
        super().__init__(labels, batch_size=batch_size, images_per_class=images_per_class)
        self._classes = FairStream(len(self.rows), self.classes_per_batch, seed=seed, stream=(0,))
        self._images = [
            FairStream(len(rows), images_per_class, seed=seed, stream=(1, label))
            for label, rows in enumerate(self.rows)
        ]

    def next_batch(self) -> NDArray[np.int64]:
        classes = self._classes[self.drawn]
        turns = self._classes.round_of(self.drawn)
        self.drawn += 1
        return np.concatenate(
            [self.rows[c][self._images[c][t]] for c, t in zip(classes.tolist(), turns.tolist(), strict=True)]
        )
