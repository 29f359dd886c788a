"""Ensembles of models trained on different folds: their embeddings side by side, and which models go together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.numerics import Normalisation


def concatenate_embeddings(parts: Sequence[Tensor], *, normalisation: Normalisation = "l2") -> Tensor:
    """Embeddings of the same images by several models, ``[N, D]`` each, side by side: ``[N, ΣD]``.

    Each model's are brought to length 1 first, so that all count the same. Those in the ball stay as they are, as
    their length means something; their squared distances add up.

    >>> concatenate_embeddings([torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0]])]).tolist()
    [[0.6000000238418579, 0.800000011920929, 0.0, 1.0]]
    """
    if not parts or len({len(part) for part in parts}) > 1:
        raise ValueError(f"parts must be embeddings of the same images, got {[len(part) for part in parts]} rows")
    if normalisation == "l2":
        parts = [torch.nn.functional.normalize(part, dim=1) for part in parts]
    return torch.cat(list(parts), dim=1)


def fold_combinations(folds: int, repeats: int, *, limit: int = 256, seed: int = 0) -> NDArray[np.int64]:
    """Which repeat each fold's model is taken from: all ``repeats ** folds`` combinations, or ``limit`` of them.

    Returns ``[N, folds]``, in ascending order. Those that are drawn are drawn without replacement.

    >>> fold_combinations(2, 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    possible = repeats**folds
    if possible <= limit:
        numbers = np.arange(possible)
    else:
        rng = np.random.Generator(np.random.Philox(seed))
        numbers = np.sort(rng.choice(possible, limit, replace=False))
    return np.stack(np.unravel_index(numbers, (repeats,) * folds), axis=1).astype(np.int64)
