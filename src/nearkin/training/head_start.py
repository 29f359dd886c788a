"""How the projection begins, where the training images are to decide it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from nearkin import ranks
from nearkin.errors import TrainingError
from nearkin.evaluation.whitening import principal_axes
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
    axes = ranks.from_first(lambda: principal_axes(features.cpu().numpy()))
    kept = min(head.out_features, head.in_features)
    directions = torch.zeros(head.weight.shape, dtype=torch.float64)
    directions[:kept] = torch.from_numpy(axes.directions[:, :kept].T) * (head.weight.norm().item() / math.sqrt(kept))
    head.weight.copy_(directions)
    if head.bias is not None:
        head.bias.copy_(-directions @ torch.from_numpy(axes.mean))
    if state.average is not None:
        state.average.encoder.head.load_state_dict(head.state_dict())
