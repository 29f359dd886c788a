"""Class representatives: one image per class, kept for many batches, and batches around some of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.numerics import check_at_least
from nearkin.samplers.sampler import ClassSampler, FairStream


class ClassRepresentativeSampler(ClassSampler):
    """The batches of PROFS: representatives of some classes, then examples of the same classes.

    One image of every class represents it for ``steps_per_projection`` batches (a projection), then another: all images
    of the class in shuffled rounds, none twice in a row. A batch has ``batch_size / images_per_class`` classes (all,
    where there are fewer). Its first ``num_representatives`` rows are their representatives. Then follow, class by
    class in the same order, ``images_per_class - 1`` examples of each. An example is never the representative, unless
    the class has no other image; a class with too few images repeats them.

    Classes come in shuffled rounds, and a batch depends on its number alone. With hard negative class mining
    (``embeddings`` given) only the first class of a batch comes from the rounds. The others are the classes whose
    representatives are nearest to its own in the last embeddings from :meth:`refresh`, so no batch is drawn in advance.

    Args:
        labels: the class of every row, 0, 1, ….
        batch_size: B, a multiple of ``images_per_class``.
        images_per_class: I, at least 2: the representative and its examples.
        steps_per_projection: M; None for ``ceil(occurrences · I · C / B)``, 0 for one endless projection.
        occurrences: ρ, how often a class is to be in a batch before its representative changes (section 5.4).
        embeddings: ``[C, D]``, the last known embeddings of the representatives, updated in place; turns mining on.
        seed: of all random choices.

    Example:
        >>> labels = np.array([0, 0, 0, 1, 1, 2, 2, 3])
        >>> sampler = ClassRepresentativeSampler(labels, batch_size=4, images_per_class=2, seed=0)
        >>> sampler.steps_per_projection, sampler.num_representatives
        (12, 2)
        >>> rows = sampler.next_batch()
        >>> labels[rows[:2]].tolist() == labels[rows[2:]].tolist(), set(rows[:2]) < set(sampler.representatives(0))
        (True, True)
    """

    def __init__(
        self,
        labels: NDArray[np.int64],
        *,
        batch_size: int,
        images_per_class: int,
        steps_per_projection: int | None = None,
        occurrences: int = 6,
        embeddings: Tensor | None = None,
        seed: int,
    ) -> None:
        check_at_least(2, images_per_class=images_per_class)
        check_at_least(1, occurrences=occurrences)
        check_at_least(0, steps_per_projection=steps_per_projection)
        super().__init__(labels, batch_size=batch_size, images_per_class=images_per_class)
        classes = len(self.rows)
        if embeddings is not None and len(embeddings) != classes:
            raise ValueError(f"embeddings must have a row for each of the {classes} classes, got {len(embeddings)}")
        if steps_per_projection is None:
            steps_per_projection = -(-occurrences * classes // self.classes_per_batch)
        self.steps_per_projection = steps_per_projection
        self.num_representatives = self.classes_per_batch
        self.embeddings = embeddings
        self.lookahead = 4 if embeddings is None else 0
        self._turns = np.zeros(classes, dtype=np.int64)
        at_once = 1 if embeddings is not None else self.classes_per_batch
        self._classes = FairStream(classes, at_once, seed=seed, stream=(0,))
        self._rounds = [FairStream(len(rows), len(rows), seed=seed, stream=(1, c)) for c, rows in enumerate(self.rows)]
        self._examples = [
            FairStream(max(1, len(rows) - 1), images_per_class - 1, seed=seed, stream=(2, c))
            for c, rows in enumerate(self.rows)
        ]

    def representatives(self, projection: int) -> NDArray[np.int64]:
        """The row that represents each class in a projection, ``[C]``."""
        return np.array([rows[self._representative(c, projection)] for c, rows in enumerate(self.rows)], dtype=np.int64)

    def next_batch(self) -> NDArray[np.int64]:
        projection = self.drawn // self.steps_per_projection if self.steps_per_projection else 0
        classes = self._classes[self.drawn]
        if self.embeddings is None:
            turns = self._classes.round_of(self.drawn)
        else:
            classes = self._nearest(self.embeddings, int(classes[0]))
            turns = self._turns[classes]
            self._turns[classes] += 1
        self.drawn += 1
        representatives, examples = [], []
        for c, turn in zip(classes.tolist(), turns.tolist(), strict=True):
            index = self._representative(c, projection)
            representatives.append(self.rows[c][index])
            examples.append(self.rows[c][self._others(c, index, turn)])
        return np.concatenate([np.array(representatives, dtype=np.int64), *examples])

    @torch.no_grad()
    def refresh(self, classes: Tensor, embeddings: Tensor) -> None:
        """Update the embeddings ``[n, D]`` of the representatives of ``classes [n]``."""
        if self.embeddings is not None:
            self.embeddings.index_copy_(0, classes, embeddings.to(self.embeddings.dtype))

    def state_dict(self) -> dict[str, Any]:
        if self.embeddings is None:
            return super().state_dict()
        # Not a copy of the embeddings: a loader asks for the state when it draws a batch, but the run saves it after
        # the training step on that batch, which has refreshed them.
        return super().state_dict() | {"turns": torch.from_numpy(self._turns.copy()), "embeddings": self.embeddings}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.embeddings is not None:
            self._turns = state["turns"].numpy().copy()
            self.embeddings.copy_(state["embeddings"])

    def _nearest(self, known: Tensor, first: int) -> NDArray[np.int64]:
        """``first`` and the classes nearest to it."""
        # ‖a‖² − ‖a − b‖² = 2 a·b − ‖b‖², larger for nearer b.
        closeness = torch.mv(known, known[first]).mul_(2.0).sub_(torch.linalg.vector_norm(known, dim=1).square_())
        closeness[first] = float("inf")
        nearest: NDArray[np.int64] = closeness.topk(self.classes_per_batch).indices.cpu().numpy()
        return nearest

    def _representative(self, c: int, projection: int) -> int:
        """The index of the image that represents class ``c``: each once per round, and none twice in a row."""
        rounds = self._rounds[c]
        if rounds.count <= 2:
            return int(rounds[0][projection % rounds.count])
        turn, index = divmod(projection, rounds.count)
        # The swap below never concerns the last image of a round, so one can compare with the last round as drawn.
        if turn and index < 2 and rounds[turn - 1][-1] == rounds[turn][0]:
            index = 1 - index
        return int(rounds[turn][index])

    def _others(self, c: int, representative: int, turn: int) -> NDArray[np.int64]:
        """The examples of a class's turn: fair among its other images, the last one replacing the representative."""
        indices = self._examples[c][turn]
        return np.where(indices == representative, len(self.rows[c]) - 1, indices)
