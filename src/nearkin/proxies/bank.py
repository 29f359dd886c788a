"""The proxies of a loss: ``[classes, per_class, dim]`` in one parameter."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from nearkin.errors import RecipeError
from nearkin.numerics import check_at_least
from nearkin.ranks import gather_rows, share_of, world

_ROWS_AT_ONCE = 4096


class ProxyBank(nn.Module):
    """Learnable proxies, ``per_class`` for each class.

    ``vectors`` is a float32 Parameter ``[classes, per_class, dim]``, drawn Kaiming-normal with fan-out as in the
    official Proxy-Anchor code: std ``sqrt(2 / (classes · per_class))``, times ``scale``. Losses use the normalised
    vectors; their length decides how fast a proxy turns under a given learning rate.

    With several processes ``vectors`` are the proxies of this process's share of the classes, drawn as in one process.

    >>> ProxyBank(10, 2, 4).vectors.shape
    torch.Size([10, 2, 4])
    """

    def __init__(self, classes: int, per_class: int, dim: int, *, scale: float = 1.0) -> None:
        super().__init__()
        check_at_least(1, num_classes=classes, proxies_per_class=per_class, dim=dim)
        self.classes = classes
        self.local = share_of(classes)
        """The classes whose proxies are in this process."""
        if not self.local:
            raise RecipeError(
                f"{world()} processes cannot share the proxies of {classes} training classes: start torchrun with "
                f"--nproc-per-node={classes} at most, or give data.source with more classes"
            )
        shape = (classes, per_class, dim)
        drawn = torch.randn(shape) if world() == 1 else _rows_of_normal(self.local, *shape)
        self.vectors = nn.Parameter(drawn * (scale * math.sqrt(2.0 / (classes * per_class))))

    @property
    def per_class(self) -> int:
        return self.vectors.shape[1]

    @property
    def dim(self) -> int:
        return self.vectors.shape[2]

    @property
    def local_share(self) -> float:
        """The share of all classes whose proxies are in this process."""
        return len(self.local) / self.classes

    def whole(self) -> Tensor:
        """The vectors of all classes, with gradients to those that are here."""
        return gather_rows(self.vectors, self.classes)

    @torch.no_grad()
    def restart(self, vectors: Tensor) -> None:
        """Start again from ``vectors [classes, per_class, dim]``."""
        self.vectors.copy_(vectors[self.local.start : self.local.stop])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Take this rank's classes from a state with all of them."""
        for name, tensor in (*self._parameters.items(), *self._buffers.items()):
            saved = state_dict.get(prefix + name)
            if tensor is not None and saved is not None and len(saved) == self.classes:
                state_dict[prefix + name] = saved[self.local.start : self.local.stop]
        super()._load_from_state_dict(state_dict, prefix, *others)

    def extra_repr(self) -> str:
        return f"classes={self.classes}, per_class={self.per_class}, dim={self.dim}"


def banks_in(*modules: nn.Module | None) -> list[ProxyBank]:
    """The proxy banks of modules, each once."""
    parts = [part for module in modules if module is not None for part in module.modules()]
    return [part for part in dict.fromkeys(parts) if isinstance(part, ProxyBank)]


def _rows_of_normal(rows: range, classes: int, *shape: int) -> Tensor:
    """The ``rows`` of ``torch.randn(classes, *shape)``, without keeping the others in memory.

    Torch draws sixteen numbers at a time, so blocks of sixteen rows give the same numbers. The last has the remainder.
    """
    block = 16 * _ROWS_AT_ONCE
    starts = list(range(0, max(1, classes - block + 1), block))
    kept = []
    for start, end in zip(starts, [*starts[1:], classes], strict=True):
        drawn = torch.randn(end - start, *shape)
        kept.append(drawn[max(rows.start - start, 0) : max(rows.stop - start, 0)].clone())
    return torch.cat(kept)
