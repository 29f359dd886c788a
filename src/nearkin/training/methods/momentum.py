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
from nearkin.training.device import autocast
from nearkin.training.state import Method, TrainingState

__all__ = ["Momentum"]


class Momentum(Method):
    r"""MoCo-PA's momentum network (VCPA, section 4.7), for a loss that wants one.

    The follower starts as a copy of the encoder and after every step moves towards it, :math:`w \leftarrow m w +
    (1-m)\theta`, with the loss's ``momentum``. It embeds each batch in evaluation mode, without gradient, and the loss
    queues what it gives. The trained encoder is what is evaluated and saved.

    >>> Momentum().state_dict()
    {'follower': None}
    """

    def __init__(self) -> None:
        self._follower: Encoder | None = None
        self._saved: dict[str, Tensor] | None = None

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        name = recipe.objective.name
        if not getattr(losses.catalogue()[name], "wants_momentum_encoder", False):
            raise RecipeError(f"{name} has no queue for a momentum network to fill: use method.name=plain")

    def start(self, state: TrainingState) -> None:
        self._following(state)

    def loss(self, state: TrainingState, embeddings: Tensor, labels: Tensor, batch: Batch) -> Tensor:
        follower, pieces = self._following(state), state.pieces(batch.images.to(state.device, non_blocking=True))
        with torch.no_grad(), autocast(state.device, state.dtype):
            keys = torch.cat([follower(piece) for piece in pieces])
        keys = gather_rows(keys, len(batch.rows))
        value: Tensor = state.objective(embeddings, labels, keys=keys)
        return value

    def after_step(self, state: TrainingState) -> None:
        momentum: float = state.objective.momentum  # type: ignore[assignment]
        update_ema(self._following(state), state.encoder, momentum=momentum)

    def _following(self, state: TrainingState) -> Encoder:
        if self._follower is None:
            self._follower = copy.deepcopy(state.encoder).eval().requires_grad_(False)
            if self._saved is not None:
                self._follower.load_state_dict(self._saved)
                self._saved = None
        return self._follower

    def state_dict(self) -> dict[str, Any]:
        return {"follower": self._saved if self._follower is None else self._follower.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # The encoder to copy is seen at the first step; until then the weights wait.
        self._follower, self._saved = None, state["follower"]
