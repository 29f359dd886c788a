"""Where the time of a run goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

PARTS = ("steps", "evaluations", "checkpoints")


class RunTime:
    """Seconds of a run by what took them, over all the sittings of a run that was interrupted.

    ``steps`` includes waiting for their images. What the parts leave of ``seconds`` went into preparations.

    >>> moments = iter([0.0, 1.0, 3.0])
    >>> spent = RunTime(clock=lambda: next(moments))
    >>> spent.begin()
    >>> with spent.on("steps"):
    ...     pass
    >>> spent.by
    {'steps': 2.0, 'evaluations': 0.0, 'checkpoints': 0.0}
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.by = dict.fromkeys(PARTS, 0.0)
        self.images_scored = 0
        self._clock = clock
        self._before = 0.0
        self._began: float | None = None

    def begin(self) -> None:
        """From here on time counts; a second call changes nothing."""
        if self._began is None:
            self._began = self._clock()

    @property
    def seconds(self) -> float:
        """Seconds since the very beginning, without those between two sittings."""
        return self._before if self._began is None else self._before + self._clock() - self._began

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """What happens within is that part's time."""
        began = self._clock()
        try:
            yield
        finally:
            self.by[part] += self._clock() - began

    def state_dict(self) -> dict[str, float]:
        return {"all": self.seconds, "images_scored": self.images_scored, **self.by}

    def load_state_dict(self, saved: Mapping[str, float]) -> None:
        self._before = saved["all"]
        self.images_scored = int(saved.get("images_scored", 0))
        self.by = {part: saved.get(part, 0.0) for part in PARTS}
