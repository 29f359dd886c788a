"""An average of the weights over the steps: what is evaluated and saved in the place of the weights that train."""

from __future__ import annotations

import copy
from typing import Any

import torch

from nearkin.encoders import Encoder


class WeightAverage:
    r"""An encoder whose weights follow those of the one that trains, :math:`w \leftarrow d\,w + (1-d)\,\theta`.

    After step :math:`t` it is :math:`d = \min(\text{decay}, (1+t)/(10+t))`: a short ramp, without which the head's
    random start would stay in the average for hundreds of steps. Buffers, such as batch-norm's running statistics, are
    copied. Training does not see any of it.

    >>> from nearkin.encoders import build_encoder
    >>> trained = build_encoder("small", dim=2)
    >>> average = WeightAverage(trained, 0.995)
    >>> with torch.no_grad():
    ...     _ = trained.head.bias.fill_(1.0)
    >>> average.update()
    >>> average.encoder.head.bias
    Parameter containing:
    tensor([0.8182, 0.8182])
    """

    def __init__(self, trained: Encoder, decay: float) -> None:
        self.encoder = copy.deepcopy(trained).eval().requires_grad_(False)
        self.decay = decay
        self.updates = 0
        # Listed once: walking the modules of a deep network takes time in every step.
        self._trained, self._averaged = ([p.detach() for p in each.parameters()] for each in (trained, self.encoder))
        # By kind, as one launch copies tensors of one kind.
        kinds = {buffer.dtype for buffer in trained.buffers()}
        self._buffers = [
            tuple([b for b in each.buffers() if b.dtype == kind] for each in (self.encoder, trained)) for kind in kinds
        ]

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are after a step."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self._averaged, self._trained, 1 - decay)
        for averaged, trained in self._buffers:
            torch._foreach_copy_(averaged, trained)

    def state_dict(self) -> dict[str, Any]:
        return {"encoder": self.encoder.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.encoder.load_state_dict(state["encoder"])
        self.updates = state["updates"]
