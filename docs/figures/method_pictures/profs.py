"""PROFS: representatives that are held for a while, and the pairs that are left of a batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from method_pictures._plane import COLOURS, LIGHT, figure
from nearkin.losses import Contrastive
from nearkin.losses.pair_loss import hardest_negatives
from nearkin.samplers import ClassRepresentativeSampler


class Batches(NamedTuple):
    """What PROFS's sampler draws: rows per batch, and the representatives of every projection."""

    labels: NDArray[np.int64]
    steps_per_projection: int
    rows: list[NDArray[np.int64]]
    representatives: list[NDArray[np.int64]]


def batches_drawn(steps: int = 36) -> Batches:
    labels = np.repeat(np.arange(6), 5)
    sampler = ClassRepresentativeSampler(labels, batch_size=6, images_per_class=2, seed=3)
    rows = [sampler.next_batch() for _ in range(steps)]
    projections = [sampler.representatives(n) for n in range(steps // sampler.steps_per_projection)]
    return Batches(labels, sampler.steps_per_projection, rows, projections)


def pairs_left() -> tuple[Tensor, Tensor]:
    """Of a batch of four classes with three images each, representatives first: its pairs, all and those of PROFS.

    1 is a positive pair, −1 a negative one, 0 no part of the loss.
    """
    labels = torch.tensor([0, 1, 2, 3, 0, 0, 1, 1, 2, 2, 3, 3])
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.nn.functional.one_hot(labels, 6) + 0.45 * torch.randn(12, 6, generator=generator)
    loss = Contrastive()
    every = loss.pairs(embeddings, labels)
    heads = loss.pairs(embeddings[:4], labels[:4], embeddings, labels)
    heads = hardest_negatives(replace(heads, positive=heads.positive.clone().fill_diagonal_(False)))
    kept = torch.zeros(12, 12)
    kept[:4] = heads.positive.float() - heads.negative.float()
    return every.positive.float() - every.negative.float(), kept


def draw(path: Path) -> None:
    drawn = batches_drawn()
    per_class, steps = 5, drawn.steps_per_projection
    with figure(path, 3) as (made, panels):
        for axes in panels:
            axes.remove()
        grid = made.add_gridspec(1, 3, width_ratios=(2.2, 1, 1))
        held, every, kept = (made.add_subplot(grid[0, i]) for i in range(3))
        for projection, representatives in enumerate(drawn.representatives):
            for row in representatives:
                begin = projection * steps - 0.5
                held.fill_between(
                    [begin, begin + steps], row - 0.5, row + 0.5, color=COLOURS[0], alpha=0.2, linewidth=0
                )
        for step, rows in enumerate(drawn.rows):
            heads = len(rows) // 2
            held.scatter([step] * heads, rows[:heads], s=13, color=COLOURS[0], zorder=3)
            held.scatter([step] * heads, rows[heads:], s=7, color=COLOURS[1], zorder=3)
        for edge in range(1, 6):
            held.axhline(edge * per_class - 0.5, color=LIGHT, linewidth=0.8)
        held.set(xlabel="step", yticks=[c * per_class + 2 for c in range(6)], xlim=(-0.5, len(drawn.rows) - 0.5))
        held.set(yticklabels=[f"class {c + 1}" for c in range(6)], ylim=(-0.5, 29.5))
        held.set_title(f"representatives (blue) stay for M = {steps} steps")
        for axes, pairs, title in zip((every, kept), pairs_left(), ("all pairs", "PROFS's pairs"), strict=True):
            colours = mpl.colors.ListedColormap([COLOURS[1], "#f4f4f4", COLOURS[0]])
            axes.imshow(pairs.numpy(), cmap=colours, vmin=-1, vmax=1)
            axes.set(title=title, xlabel="image of the batch", xticks=[], yticks=[])
            axes.axhline(3.5, color="black", linewidth=0.8)
            axes.axvline(3.5, color="black", linewidth=0.8)
        every.set_ylabel("examples  |  repr.")
