"""Several updates of the proxies per batch, with which VCPA's Newton steps are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from nearkin.data.loader import Batch
from nearkin.errors import RecipeError
from nearkin.losses.proxy_anchor import ProxyAnchor
from nearkin.losses.vcpa import newton_update
from nearkin.numerics import check_at_least, check_positive
from nearkin.proxies import ProxyBank
from nearkin.ranks import gather_rows
from nearkin.recipe import Recipe
from nearkin.training.state import Method, TrainingState

__all__ = ["ProxyUpdates"]


@dataclass(kw_only=True, eq=False)
class ProxyUpdates(Method):
    """Proxy-Anchor with several steps of the proxies per batch, the embeddings held constant (VCPA, section 4.6).

    Args:
        updates: M, steps of the proxies per batch. One of the first order is plain training.
        order: ``"first"``: M − 1 steps of a separate AdamW, at the proxies' learning rate, before the step of the
            training's optimiser. ``"second"``: M Newton steps with VCPA's gradient and diagonal of the Hessian, and
            none by the optimiser.
        damping: added to the Hessian, which is next to zero where a class is learnt (second order).

    >>> ProxyUpdates(order="second").updates
    10
    """

    updates: int = 10
    order: Literal["first", "second"] = "first"
    damping: float = 1e-3
    bank: ProxyBank = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_at_least(1, updates=self.updates)
        check_positive(damping=self.damping)

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        super().check(recipe)
        if recipe.objective.name != "proxy_anchor" or recipe.objective.options.get("weighting") is not None:
            raise RecipeError(f"method proxy_updates is for proxy_anchor, got {recipe.objective.name}")

    def build(self, *, num_classes: int, dim: int, objective: nn.Module) -> nn.Module | None:
        self.bank = cast(ProxyAnchor, objective).bank
        self._optimiser = torch.optim.AdamW(self.bank.parameters())
        return None

    def loss(self, state: TrainingState, embeddings: Tensor, labels: Tensor, batch: Batch) -> Tensor:
        update = self._first_order if self.order == "first" else self._second_order
        update(state, embeddings.detach(), labels)
        return super().loss(state, embeddings, labels, batch)

    def adjust_gradients(self, state: TrainingState) -> None:
        if self.order == "second":
            self.bank.vectors.grad = None  # the optimiser skips parameters without a gradient

    def _first_order(self, state: TrainingState, embeddings: Tensor, labels: Tensor) -> None:
        rate = next(group["lr"] for group in state.optimiser.param_groups if group["name"] == "proxies")
        self._optimiser.param_groups[0] |= {"lr": rate, "weight_decay": state.recipe.training.weight_decay}
        for _ in range(self.updates - 1):
            self._optimiser.zero_grad(set_to_none=True)
            state.objective(embeddings, labels).backward()
            self._optimiser.step()

    def _second_order(self, state: TrainingState, embeddings: Tensor, labels: Tensor) -> None:
        objective = cast(ProxyAnchor, state.objective)
        proxies = objective.bank.vectors.detach()
        still = torch.zeros_like(proxies)
        for _ in range(self.updates):
            # One step at a time: the KL to the start of a step has no gradient there, and only damps.
            proxies, _ = newton_update(
                proxies,
                torch.ones_like(proxies),
                embeddings,
                labels,
                [still],
                tau=self.damping,
                alpha=objective.alpha,
                margin=objective.margin,
                first_class=objective.bank.local.start,
                num_classes=objective.num_classes,
            )
        with torch.no_grad():
            objective.bank.vectors.copy_(proxies)

    def state_dict(self) -> dict[str, Any]:
        return {"optimiser": _moments(self._optimiser.state_dict(), lambda own: gather_rows(own, self.bank.classes))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        local = self.bank.local
        moments = _moments(state["optimiser"], lambda whole: whole[local.start : local.stop].clone())
        self._optimiser.load_state_dict(moments)


def _moments(saved: dict[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """An optimiser's state with its values per class changed: gathered from all ranks, or reduced to the local ones."""
    state = {
        number: {key: change(value) if value.ndim else value for key, value in kept.items()}
        for number, kept in saved["state"].items()
    }
    return {**saved, "state": state}
