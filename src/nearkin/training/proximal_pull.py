"""The proximal term: a pull of the weights back to where a sub-problem, or the whole training, began."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class ProximalPull:
    r"""Adds the gradient of :math:`\frac{\lambda}{2} \lVert \theta - \theta^* \rVert^2` to gradients that are there.

    :math:`\theta^*` is what the parameters were when :meth:`remember` was last called. The term never enters a graph:
    its gradient :math:`\lambda (\theta - \theta^*)` is added in place, fused over the tensors. Parameters are matched
    by their place, so every call must give the same ones in the same order. One without a gradient (frozen, or resting
    during warm-up) is left alone.

    >>> weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    >>> pull = ProximalPull()
    >>> pull.remember([weight])
    >>> with torch.no_grad():
    ...     _ = weight.add_(1.0)
    >>> weight.grad = torch.tensor([10.0, 10.0])
    >>> pull.add_to_gradients([weight], 0.5)
    >>> weight.grad
    tensor([10.5000, 10.5000])
    """

    def __init__(self) -> None:
        self.centre: list[Tensor] | None = None

    def remember(self, parameters: Iterable[Tensor]) -> None:
        """Make the present values the centre θ* of the pull."""
        self.centre = [parameter.detach().clone() for parameter in parameters]

    @torch.no_grad()
    def add_to_gradients(self, parameters: Iterable[Tensor], weight: float) -> None:
        """``grad += weight · (θ − θ*)`` for every parameter that has a gradient; nothing before :meth:`remember`."""
        if self.centre is None or weight == 0:
            return
        given = list(parameters)
        if len(given) != len(self.centre):
            raise ValueError(
                f"parameters must be the {len(self.centre)} that were remembered, in the same order, got {len(given)}"
            )
        # A checkpoint is read on the host: its tensors follow the parameters when they are first needed.
        if given and self.centre[0].device != given[0].device:
            self.centre = [c.to(p.device, non_blocking=True) for p, c in zip(given, self.centre, strict=True)]
        pulled = [(p, p.grad, c) for p, c in zip(given, self.centre, strict=True) if p.grad is not None]
        if pulled:
            values, gradients, centres = (list(part) for part in zip(*pulled, strict=True))
            torch._foreach_add_(gradients, torch._foreach_sub(values, centres), alpha=weight)

    def state_dict(self) -> dict[str, Any]:
        return {"centre": self.centre}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        centre = state["centre"]
        self.centre = None if centre is None else [tensor.detach().clone() for tensor in centre]
