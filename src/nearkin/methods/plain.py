"""Plain training, and with it the hooks through which a method changes the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from nearkin.data.loader import Batch
    from nearkin.recipe import Recipe
    from nearkin.samplers import BatchSampler
    from nearkin.training.loop import TrainingState

__all__ = ["Plain"]


class Plain:
    """One loss, batches from the recipe's sampler, nothing else.

    Other methods override what they change. The loop calls, in this order: :meth:`check` before any work,
    :meth:`build` and :meth:`sampler` while the run is built, :meth:`start` before the very first step, and then for
    every step :meth:`loss`, :meth:`adjust_gradients` (after backward, before clipping) and :meth:`after_step`; after
    each evaluation :meth:`after_evaluation`, whose True ends the training. What a method keeps goes through
    :meth:`state_dict`, so that a resumed run continues where it was.

    >>> Plain().state_dict()
    {}
    """

    events: Sequence[Mapping[str, Any]] = ()
    """What the method did and when; left in the run folder as ``events.json``."""

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Refuse, with the reason, a recipe that this method cannot follow."""

    def build(self, *, num_classes: int, dim: int, objective: nn.Module) -> nn.Module | None:
        """What the method learns beside encoder and objective; its proxy banks are trained at the proxies' rate."""
        return None

    def sampler(self, default: BatchSampler, state: TrainingState) -> BatchSampler:
        """The batches to train on; ``default`` is what the recipe's ``training.sampler`` says."""
        return default

    def start(self, state: TrainingState) -> None:
        """Before the first step of a new run (not when one is resumed)."""

    def loss(self, state: TrainingState, embeddings: Tensor, labels: Tensor, batch: Batch) -> Tensor:
        """The loss of one batch; ``labels`` are on the embeddings' device."""
        value: Tensor = state.objective(embeddings, labels)
        return value

    def adjust_gradients(self, state: TrainingState) -> None:
        """Between backward and the optimiser's step."""

    def after_step(self, state: TrainingState) -> None:
        """After the optimiser's step; ``state.step`` already counts it."""

    def after_evaluation(self, state: TrainingState, scores: dict[str, float]) -> bool:
        """After an evaluation on the selection classes; True ends the training."""
        return False

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
