"""An endless, fair, seeded order: shuffled rounds, cut into groups without repeats inside a group."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def generator(seed: int, *stream: int) -> np.random.Generator:
    """A random generator of its own for every (seed, stream …)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy=seed, spawn_key=stream)))


class FairStream:
    """Groups of ``group`` items out of ``count``, every item once per round.

    Round r is a permutation drawn from (seed, stream, r). Where a group runs over the end of a round, the items it
    already holds are moved back in the next round, so a group has no item twice unless ``group > count``. Group g is
    a function of g alone, so there is no state to lose.

    >>> stream = FairStream(5, 2, seed=0, stream=(7,))
    >>> groups = [stream[g].tolist() for g in range(5)]
    >>> sorted(item for group in groups for item in group)
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    >>> all(len(set(group)) == 2 for group in groups)
    True
    """

    def __init__(self, count: int, group: int, *, seed: int, stream: tuple[int, ...] = ()) -> None:
        if count < 1 or group < 1:
            raise ValueError(f"count and group must be at least 1, got {count} and {group}")
        self.count = count
        self.group = group
        self.seed = seed
        self.stream = stream
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
    def _keep_back(order: NDArray[np.int64], held: NDArray[np.int64], first: int) -> NDArray[np.int64]:
        early = np.isin(order[:first], held)
        if not early.any():
            return order
        free = first + np.flatnonzero(~np.isin(order[first:], held))[: int(early.sum())]
        places = np.flatnonzero(early)
        order = order.copy()
        order[places], order[free] = order[free], order[places]
        return order
