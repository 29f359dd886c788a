"""The watch over a run's losses: one that is not finite ends the run before it is saved."""

from __future__ import annotations

import math
from typing import NoReturn

import torch
from torch import Tensor

from nearkin.data.loader import Batch
from nearkin.errors import TrainingError
from nearkin.numerics import at_least_float32
from nearkin.training.optimisation import gradient_norms
from nearkin.training.state import TrainingState


class HealthCheck:
    """Finds a loss that is not finite, before the step on a CPU and one step later on an accelerator.

    Reading a value from an accelerator waits for all work queued there, so the values of a step are copied while the
    next one runs, and an event says when they have come: the host stays up to a step ahead, and its own time hides
    behind the accelerator's. No checkpoint is written before the last step has been looked at (:meth:`settle`). Finite
    losses go into the state's ``recent_losses``.
    """

    def __init__(self, state: TrainingState) -> None:
        self.state = state
        self._pending: tuple[int, Batch, list[str], Tensor] | None = None
        self._copied = torch.cuda.Event() if state.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._latest = math.nan

    def watch(self, batch: Batch, loss: Tensor) -> float:
        """Take in the loss of a step, after its backward pass; the latest that is known to be finite."""
        norms = gradient_norms(self.state.optimiser)
        loss = at_least_float32(loss.detach())
        values = torch.stack([loss, *(norm.to(loss.dtype) for norm in norms.values())])
        if values.device.type == "cpu":
            self._check(self.state.step, batch, list(norms), values)
            return self._latest
        self.settle()  # before the event is recorded anew
        self._pending = (self.state.step, batch, list(norms), values.to("cpu", non_blocking=True))
        if self._copied is not None:
            self._copied.record(torch.cuda.current_stream(self.state.device))
        return self._latest

    def settle(self) -> None:
        """Wait for the last step's values and look at them."""
        if self._pending is not None:
            if self._copied is not None:
                self._copied.synchronize()
            pending, self._pending = self._pending, None
            self._check(*pending)

    def _check(self, step: int, batch: Batch, names: list[str], values: Tensor) -> None:
        loss, *norms = values.tolist()
        if math.isfinite(loss):
            self._latest = loss
            self.state.recent_losses.append(loss)
            return
        listing = ", ".join(f"{name} {norm:.3g}" for name, norm in zip(names, norms, strict=True)) or "none"
        self.diverged(batch, f"the loss became {loss} at step {step}. Gradient norms: {listing}")

    def diverged(self, batch: Batch, what: str) -> NoReturn:
        """End the run with ``what`` has happened, the images it happened on, and what usually helps."""
        ids = self.state.train_set.ids(batch.rows)
        shown = ", ".join(ids[:8]) + (f", … ({len(ids)} in all)" if len(ids) > 8 else "")
        raise TrainingError(
            f"{what}. Images of the batch: {shown}. "
            f"The last good checkpoint is untouched. A smaller training.learning_rate, training.max_grad_norm=10 or "
            f"training.precision=float32 usually helps."
        )
