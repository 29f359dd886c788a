"""How much of a run's time is still to come."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nearkin.ranks import share_of
from nearkin.training.state import TrainingState

WARMUP_SHARE = 1 / 4
"""What a step with a frozen backbone takes of a whole one: a third by the count of operations, on a CPU 0.26."""


@dataclass(frozen=True)
class Estimate:
    """How long a run takes: in all, from now on, and for one of its evaluations; in seconds."""

    total: float
    left: float
    evaluation: float

    def __str__(self) -> str:
        """
        >>> print(Estimate(total=730.0, left=600.0, evaluation=9.2))
        about 12 minutes in all, 9 s per evaluation
        """
        each = f", {in_words(self.evaluation)} per evaluation" if self.evaluation else ""
        return f"about {in_words(self.total)} in all{each}"


class Estimator:
    """Foretells a run's time from the steps of this sitting and the evaluations so far.

    The first step of a sitting is left out, because it waits for the first images. Steps of the warm-up are counted
    apart: they train no backbone and take a share of the later ones' time.
    """

    def __init__(self) -> None:
        self._before: tuple[int, float] | None = None
        self._steps = {True: 0, False: 0}
        self._seconds = {True: 0.0, False: 0.0}

    @property
    def is_settled(self) -> bool:
        """Whether there is enough to go by: some steps, or ten seconds of them."""
        return sum(self._steps.values()) >= 5 or sum(self._seconds.values()) >= 10

    def after_step(self, state: TrainingState) -> Estimate | None:
        """What the steps so far foretell; None after the first."""
        step, spent = state.step, state.time.by["steps"]
        before, self._before = self._before, (step, spent)
        if before is None:
            return None
        warming = step <= state.warmup_steps
        self._steps[warming] += step - before[0]
        self._seconds[warming] += spent - before[1]
        return self._estimate(state)

    def _estimate(self, state: TrainingState) -> Estimate:
        warm, full = self._rates(state)
        left = state.total_steps - state.step
        warm_left = min(left, max(0, state.warmup_steps - state.step))
        steps = warm_left * warm + (left - warm_left) * full
        per_image = state.time.by["evaluations"] / max(1, state.time.images_scored)
        selection = state.protocol.selection_set()
        evaluation = 0.0 if selection is None else per_image * len(selection.rows)
        test = 0.0 if state.protocol.test is None else per_image * len(state.protocol.test.rows)
        written = sum(1 for row in state.history if row["step"])
        checkpoint = state.time.by["checkpoints"] / written if written else 0.0
        seconds = steps + state.evaluations_left * (evaluation + checkpoint) + test
        return Estimate(state.time.seconds + seconds, seconds, evaluation)

    def _rates(self, state: TrainingState) -> tuple[float, float]:
        """Seconds of a step of the warm-up and of one after it; at least one of the two kinds was seen."""
        warm, full = (self._seconds[kind] / max(1, self._steps[kind]) for kind in (True, False))
        if self._steps[False]:
            return warm, full
        batch = len(share_of(state.recipe.training.batch_size, of=0))
        pieces = math.ceil(batch / (state.micro_batch or batch))
        # All pieces but the last go forward twice, which a step of the warm-up does once.
        return warm, warm / WARMUP_SHARE + warm * (pieces - 1) / pieces


def in_words(seconds: float) -> str:
    """A time as a person says it.

    >>> [in_words(seconds) for seconds in (0.4, 9.2, 80, 130, 5400, 200_000)]
    ['0.4 s', '9 s', '80 s', '2 minutes', '90 minutes', '56 hours']
    """
    if seconds < 95:
        return f"{seconds:.1g} s" if seconds < 1 else f"{seconds:.0f} s"
    for unit, length in (("minutes", 60.0), ("hours", 3600.0), ("days", 86400.0)):
        if seconds < 95 * length or unit == "days":
            break
    count = seconds / length
    return f"{count:.0f} {unit}" if unit == "minutes" or count >= 10 else f"{count:.1f} {unit}"
