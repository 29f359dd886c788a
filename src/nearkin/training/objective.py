"""From a recipe's objective section to a loss with its proxies."""

from __future__ import annotations

from typing import Any

from torch import nn

from nearkin import losses
from nearkin.recipe import PartSection


def build_objective(
    section: PartSection, *, num_classes: int, dim: int, num_images: int, normalisation: str
) -> nn.Module:
    """Build the loss that ``section`` names.

    Two things a recipe need not repeat: a pair loss takes the encoder's normalisation, and a memory that is to hold
    the training set takes its size.

    >>> loss = build_objective(PartSection("contrastive"), num_classes=3, dim=8, num_images=30, normalisation="ball")
    >>> loss.normalisation
    'ball'
    """
    loss = losses.catalogue()[section.name]
    known = losses.options(loss)
    options: dict[str, Any] = dict(section.options)
    inferred: dict[str, Any] = {"normalisation": normalisation, "memory_size": num_images}
    options = {key: value for key, value in inferred.items() if key in known} | options
    if "weighting" in options:
        weighting: PartSection = options["weighting"]
        make = losses.weightings()[weighting.name]
        options["weighting"] = make(num_classes, dim, **({"memory_size": num_images} | dict(weighting.options)))
    kind = losses.kind(loss)
    if kind == "wrapper":
        inner = build_objective(
            options.pop("pair_loss"),
            num_classes=num_classes,
            dim=dim,
            num_images=num_images,
            normalisation=normalisation,
        )
        return loss(inner, **options)
    return loss(num_classes, dim, **options) if kind == "proxy" else loss(**options)
