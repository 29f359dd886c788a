"""How the projection begins, where the training images are to decide it."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nearkin import ranks
from nearkin.errors import DataError, TrainingError
from nearkin.training.state import TrainingState

MOST_IMAGES = 10_000
"""More than these say nothing more of how a few thousand channels vary."""


@torch.no_grad()
def start_head(state: TrainingState) -> None:
    """With ``encoder.head_init: pca``, project onto the principal axes of the training images' features.

    A random projection to a few hundred dimensions loses some of what a pretrained backbone knows, and a few photos do
    not teach it back. The weights are as long as those that they replace, so that learning rates mean the same.
    Dimensions beyond the backbone's channels begin at zero.
    """
    head = state.encoder.head
    if state.recipe.encoder.head_init != "pca" or not isinstance(head, nn.Linear):
        return
    rows = np.random.default_rng(state.recipe.training.seed).permutation(len(state.train_set))[:MOST_IMAGES]
    watch, what = state.watch, "learning how the training images differ"
    features = state.train_set.embed(
        np.sort(rows),
        encoder=state.encoder.without_head().without_normalisation(),
        progress=None if watch is None else lambda done: watch(what, done, len(rows)),
    )
    if not features.isfinite().all():
        raise TrainingError("the backbone's features of the training images are not finite: are its weights damaged?")
    mean, axes = ranks.from_first(lambda: principal_axes(features.cpu().numpy()))
    kept = min(head.out_features, head.in_features)
    directions = torch.zeros(head.weight.shape, dtype=torch.float64)
    directions[:kept] = torch.from_numpy(axes[:, :kept].T) * (head.weight.norm().item() / math.sqrt(kept))
    head.weight.copy_(directions)
    if head.bias is not None:
        head.bias.copy_(-directions @ torch.from_numpy(mean))
    if state.ema is not None:
        state.ema.encoder.head.load_state_dict(head.state_dict())


def principal_axes(vectors: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean ``[D]`` and principal axes, the columns of ``[D, D]``, of ``vectors [N, D]``: those of most variance first.

    Computed in float64. The sign of an axis is such that its largest number is positive.

    >>> mean, axes = principal_axes(np.array([[0.0, 3.0], [0.0, -3.0], [1.0, 0.0], [-1.0, 0.0]]))
    >>> axes.tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    if len(vectors) < 2:
        raise DataError(f"at least two training images are needed to learn how they differ, got {len(vectors)}")
    mean = vectors.mean(axis=0, dtype=np.float64)
    centred = vectors - mean
    axes = np.linalg.eigh(centred.T @ centred / len(vectors))[1][:, ::-1]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=0)[None], axis=0)
    return mean, axes * np.where(largest < 0, -1.0, 1.0)
