"""Losses of pytorch-metric-learning: ``objective.name=pml:CircleLoss``, with its own options and ``objective.miner``.

Checkpoints, resume and comparisons work as with this package's losses. CCP and PROFS do not accept them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from nearkin.errors import RecipeError, did_you_mean, require
from nearkin.numerics import Labels, at_least_float32, check_embeddings, checked_labels, full_precision

PREFIX = "pml:"
TWO_VIEWS = "it compares two views of each image, and a batch has one"
REFUSED = {
    "CrossBatchMemory": "use objective.name=cross_batch_memory, whose memory is part of a checkpoint",
    "DynamicSoftMarginLoss": "its histogram keeps the graph of the step before, so that a second step fails",
    "ManifoldLoss": "it takes no labels",
    "MultipleLosses": "it is made of other losses",
    "SelfSupervisedLoss": TWO_VIEWS,
    "VICRegLoss": TWO_VIEWS,
}
SIZES = {"num_classes": "num_classes", "embedding_size": "dim", "descriptors_dim": "dim"}
"""The library's names of the sizes, and ours."""
OBJECTS = ("reducer", "distance", "collect_stats", "mat_based_loss", "weight_init_func")
"""Arguments that are objects, which a recipe cannot contain; so are those of regularisers."""


class PmlLoss(nn.Module):
    """``loss(embeddings [N, dim], labels [N]) -> scalar`` by a loss of pytorch-metric-learning and perhaps a miner."""

    loss_class: type[nn.Module]
    learns_classes: bool
    """Whether it has weights for each class."""

    def __init__(
        self, num_classes: int, dim: int, *, miner: str | Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        super().__init__()
        sizes = {"num_classes": num_classes, "dim": dim}
        required = {theirs: sizes[ours] for theirs, ours in SIZES.items() if theirs in _parameters(self.loss_class)}
        try:
            self.loss = self.loss_class(**required, **options)
        except (TypeError, ValueError, AssertionError) as error:
            raise RecipeError(f"{PREFIX}{self.loss_class.__name__} cannot be made with {options}: {error}") from error
        self.miner = None if miner is None else _build_miner(miner)

    @property
    def class_weights(self) -> list[nn.Parameter]:
        """The parameters with the learning rate of proxies."""
        return list(self.loss.parameters())

    def forward(self, embeddings: Tensor, labels: Labels) -> Tensor:
        check_embeddings(embeddings)
        labels = checked_labels(labels, embeddings)
        with full_precision(embeddings.device.type):
            embeddings = at_least_float32(embeddings)
            chosen = None if self.miner is None else self.miner(embeddings, labels)
            value: Tensor = self.loss(embeddings, labels, chosen)
        return value


@functools.cache
def pml_loss(name: str) -> type[PmlLoss]:
    """The loss ``pml:NAME`` as a class whose keyword-only arguments are its options.

    >>> import torch
    >>> loss = pml_loss("pml:CircleLoss")(num_classes=4, dim=8, m=0.3)
    >>> loss(torch.eye(4, 8), torch.tensor([0, 0, 1, 1])).item() > 0
    True
    """
    known = _losses()
    bare = name.removeprefix(PREFIX)
    if bare in REFUSED:
        raise RecipeError(f"{name} does not work here: {REFUSED[bare]}")
    if bare not in known:
        raise RecipeError(f"unknown objective {name!r}: {did_you_mean(bare, known)}")
    loss_class = known[bare]
    keyword = functools.partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY, annotation=Any)
    sizes = [inspect.Parameter(key, inspect.Parameter.POSITIONAL_OR_KEYWORD) for key in ("num_classes", "dim")]
    options = [
        keyword(key, default=parameter.default)
        for key, parameter in _parameters(loss_class).items()
        if key not in (*SIZES, *OBJECTS) and "regularizer" not in key and "_reg_" not in key
    ]
    members = {
        "loss_class": loss_class,
        "learns_classes": "num_classes" in _parameters(loss_class) and bare != "MarginLoss",
        "__signature__": inspect.Signature([*sizes, *options, keyword("miner", default=None)]),
        "__doc__": f"{bare} of pytorch-metric-learning.",
    }
    return type(bare, (PmlLoss,), members)


def pml_names() -> list[str]:
    """The losses of ``pml:`` by name.

    >>> pml_names()[:3]
    ['pml:AngularLoss', 'pml:ArcFaceLoss', 'pml:CircleLoss']
    """
    return sorted(f"{PREFIX}{name}" for name in _losses() if name not in REFUSED)


def _losses() -> dict[str, type[nn.Module]]:
    library = vars(require("pytorch_metric_learning.losses", "pml"))
    return {name: loss for name, loss in library.items() if name.endswith("Loss") and name != "GenericPairLoss"}


def _parameters(loss: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """The named arguments of a constructor and of its parents' constructors."""
    parameters: dict[str, inspect.Parameter] = {}
    for ancestor in loss.__mro__:
        if "__init__" not in vars(ancestor) or ancestor is nn.Module:
            continue
        for key, parameter in list(inspect.signature(vars(ancestor)["__init__"]).parameters.items())[1:]:
            if parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                parameters.setdefault(key, parameter)
    return parameters


def _build_miner(miner: str | Mapping[str, Any]) -> nn.Module:
    library = require("pytorch_metric_learning.miners", "pml")
    options = {"name": miner} if isinstance(miner, str) else dict(miner)
    name = str(options.pop("name", ""))
    known = sorted(key for key in vars(library) if key.endswith("Miner") and key != "BaseMiner")
    if name not in known:
        raise RecipeError(f"unknown objective.miner {name!r}: {did_you_mean(name, known)}")
    try:
        return getattr(library, name)(**options)  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise RecipeError(f"objective.miner {name} cannot be made with {options}: {error}") from error
