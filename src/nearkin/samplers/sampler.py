"""What the loop asks of a sampler."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class BatchSampler(Protocol):
    """Decides which rows of the training table make the next batch.

    A sampler never ends; ``batches_per_epoch`` says what the loop counts as an epoch. ``lookahead`` is how many
    batches may be drawn before they are used: 0 for a sampler that looks at what training has just done.
    """

    lookahead: int

    @property
    def batches_per_epoch(self) -> int: ...

    def next_batch(self) -> NDArray[np.int64]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
