"""Which rows make a batch: at random, or so many classes with so many images of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray


class BatchSampler(ABC):
    """Decides which rows of the training table make the next batch.

    A sampler never ends; ``batches_per_epoch`` says what the loop counts as an epoch. ``lookahead`` is how many
    batches may be drawn before they are used: 0 for a sampler that looks at what training has just done.
    """

    lookahead = 4
    batch_size: int
    """The most rows that a batch has."""
    batches_per_epoch: int
    drawn = 0
    """How many batches there have been, which is all that a sampler without further state must remember."""

    @abstractmethod
    def next_batch(self) -> NDArray[np.int64]: ...

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = int(state["drawn"])


class ClassSampler(BatchSampler):
    """Batches of ``batch_size / images_per_class`` classes (all, where there are fewer), as many images of each.

    ``rows`` are the rows of each class.
    """

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
    """A random generator of its own for every (seed, stream …)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy=seed, spawn_key=stream)))


class FairStream:
    """Groups of ``group`` items out of ``count``, every item once per round.

    Round r is a permutation drawn from (seed, stream, r). Where a group runs over the end of a round, the items it
    already holds are moved back in the next round, so a group has no item twice unless ``group > count``. Group g is
    a function of g alone, so there is no state to lose.

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
        return np.concatenate(parts)

    def round_of(self, number: int) -> NDArray[np.int64]:
        """For every place of group ``number``, how many rounds came before it."""
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
        """How many items the group that opens this round took from the last one: those must not come first again."""
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
    """Shuffles ``count`` rows each epoch and cuts them into batches, leaving out the last that is not full.

    Fewer rows than a batch make one batch of all of them.

    >>> sampler = RandomSampler(5, batch_size=2, seed=0)
    >>> sampler.batches_per_epoch, [len(sampler.next_batch()) for _ in range(3)]
    (2, [2, 2, 2])
    """

    def __init__(self, count: int, *, batch_size: int, seed: int) -> None:
        if count < 1 or batch_size < 1:
            raise ValueError(f"count and batch_size must be at least 1, got {count} and {batch_size}")
        self.count = count
        self.batch_size = min(batch_size, count)
        self.batches_per_epoch = count // self.batch_size
        self.seed = seed
        self._epoch = -1
        self._order = np.empty(0, dtype=np.int64)

    def next_batch(self) -> NDArray[np.int64]:
        epoch, position = divmod(self.drawn, self.batches_per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = generator(self.seed, epoch).permutation(self.count).astype(np.int64)
        self.drawn += 1
        return self._order[position * self.batch_size : (position + 1) * self.batch_size]


class BalancedSampler(ClassSampler):
    """Batches of ``batch_size / images_per_class`` classes with ``images_per_class`` images each.

    Classes come in shuffled rounds, and so do the images of each class, over the whole run and not only within an
    epoch. A class with fewer images than a group repeats them.

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
