"""A second network that follows the trained one and feeds the queue of a momentum loss."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from nearkin import losses
from nearkin.data.loader import Batch
from nearkin.encoders import Encoder
from nearkin.errors import RecipeError
from nearkin.losses.momentum_proxy_anchor import update_ema
from nearkin.ranks import gather_rows
from nearkin.recipe import Recipe
from nearkin.samplers import BatchSampler
from nearkin.training.device import autocast
from nearkin.training.state import Method, TrainingState

__all__ = ["Momentum"]


class Momentum(Method):
    r"""MoCo-PA's momentum network (VCPA, section 4.7), for a loss with a queue.

    The follower starts as a copy of the encoder and moves towards it after every step, :math:`w \leftarrow m w +
    (1-m)\theta`, with the loss's ``momentum``. It embeds each batch in evaluation mode, without gradient, and the loss
    queues these embeddings. The trained encoder is the one that is evaluated and saved.
    """

    _follower: Encoder

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        name = recipe.objective.name
        if not getattr(losses.loss_named(name), "wants_momentum_encoder", False):
            raise RecipeError(f"{name} has no queue for a momentum network to fill: use method.name=plain")

    def sampler(self, default: BatchSampler, state: TrainingState) -> BatchSampler:
        self.start(state)  # a resumed run loads its weights into it
        return default

    def start(self, state: TrainingState) -> None:
        self._follower = copy.deepcopy(state.encoder).eval().requires_grad_(False)

    def loss(self, state: TrainingState, embeddings: Tensor, labels: Tensor, batch: Batch) -> Tensor:
        pieces = state.pieces(batch.images.to(state.device, non_blocking=True))
        with torch.no_grad(), autocast(state.device, state.dtype):
            keys = torch.cat([self._follower(piece) for piece in pieces])
        keys = gather_rows(keys, len(batch.rows))
        value: Tensor = state.objective(embeddings, labels, keys=keys)
        return value

    def after_step(self, state: TrainingState) -> None:
        momentum: float = state.objective.momentum  # type: ignore[assignment]
        update_ema(self._follower, state.encoder, momentum=momentum)

    def state_dict(self) -> dict[str, Any]:
        return {"follower": self._follower.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._follower.load_state_dict(state["follower"])
