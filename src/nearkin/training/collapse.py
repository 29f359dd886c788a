"""Collapse: training has destroyed the network, and an evaluation shows it while the run still trains."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from nearkin.numerics import at_least_float32
from nearkin.recipe import Recipe

FALLEN = 0.5
"""R@1 below this share of the untrained backbone's is a collapse. In 1,032 of the 1,033 curves of ``results/`` it never
fell below 0.74, in the other it was 0.13."""
ERRORS = 4.0
"""Standard errors of R@1 that a fall must exceed, as few test images can lose half of their hits by chance."""
NARROW = 32
"""Embeddings of fewer dimensions hold less than the untrained backbone's features, and may score below them."""
COINCIDE = 1e-3
"""Embeddings with a smaller :func:`spread` coincide; in healthy runs on Glyphs it stays above 2e-3."""
STILL = 0.01
"""A loss that changes by a smaller share of itself between two evaluations stands still."""


@dataclass(frozen=True)
class Collapse:
    """When a network collapsed, the evidence, and what to do."""

    epoch: float
    evidence: str
    remedy: str

    def __str__(self) -> str:
        return f"The network collapsed by epoch {self.epoch:g}: {self.evidence}. {self.remedy}"


def spread(embeddings: Tensor) -> float:
    """How much embeddings differ: their variance as a share of their mean squared length, from 0 to 1.

    >>> import torch
    >>> spread(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])), spread(torch.ones(2, 2)), spread(torch.zeros(2, 2))
    (1.0, 0.0, 0.0)
    """
    embeddings = at_least_float32(embeddings.detach())
    variance = (embeddings - embeddings.mean(0)).square().sum(1).mean()
    return float(variance / embeddings.square().sum(1).mean().clamp_min(1e-30))


def find_collapse(evaluations: Sequence[Mapping[str, float]], queries: int, recipe: Recipe) -> Collapse | None:
    """The first evaluation that shows a collapse, by either of two signs.

    R@1 is less than half of the untrained backbone's, by more than chance explains with this number of ``queries``. Or
    the loss stands still from one evaluation to the next while the embeddings of a batch coincide, and R@1 is no better
    than the untrained backbone's.

    >>> rows = [{"epoch": 0, "R@1": 0.511}, {"epoch": 1, "R@1": 0.032}]
    >>> print(find_collapse(rows, 4000, Recipe()).evidence)
    R@1 51.1 → 3.2
    """
    narrow = (recipe.encoder.dim or NARROW) < NARROW
    for before, row in itertools.pairwise(evaluations):
        untrained, score = (of.get("R@1", math.nan) for of in (evaluations[0], row))
        evidence = ""
        if score < FALLEN * untrained and not narrow:
            error = math.sqrt((untrained * (1 - untrained) + score * (1 - score)) / queries)
            evidence = f"R@1 {100 * untrained:.1f} → {100 * score:.1f}" if untrained - score > ERRORS * error else ""
        if not evidence and not score > untrained and _stands_still(before, row):
            evidence = f"all embeddings coincide, and the loss stands still at {row['loss']:.3g}"
        if evidence:
            return Collapse(row["epoch"], evidence, _remedy(recipe))
    return None


def is_pretrained(recipe: Recipe) -> bool:
    """Whether the network began with pretrained weights: those of the recipe, or its library's own."""
    encoder = recipe.encoder
    return encoder.weights is not None or (":" in encoder.backbone and encoder.options.get("pretrained", True))


def lacks_warmup(recipe: Recipe) -> bool:
    """Whether a pretrained network trains from the first step on, while head and proxies are still random."""
    return is_pretrained(recipe) and not recipe.training.warmup_epochs


def _stands_still(before: Mapping[str, float], row: Mapping[str, float]) -> bool:
    coincide = max(of.get("spread", math.inf) for of in (before, row)) < COINCIDE
    return coincide and abs(row["loss"] - before["loss"]) <= STILL * abs(before["loss"])


def _remedy(recipe: Recipe) -> str:
    if lacks_warmup(recipe):
        return "Train again with training.warmup_epochs=1: head and proxies alone, before the pretrained network moves."
    return f"Train again with a smaller training.learning_rate (now {recipe.training.learning_rate:g})."
