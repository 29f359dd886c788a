"""The training classes closest together and farthest apart, with images of both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nearkin.numerics import l2_normalise
from nearkin.report.figure_style import (
    RUN_COLOURS,
    class_name,
    examples,
    new_figure,
    number,
    run_title,
    set_title,
    show_row,
)
from nearkin.report.opened_run import CannotDrawError, OpenedRun

PAIRS_SHOWN = 3
IMAGES_SHOWN = 6
_BLOCK = 1024

Pairs = list[tuple[int, int, float]]


def draw_run(run: OpenedRun) -> Any:
    """By the cosine similarity of the classes' mean embeddings: learned proxies are nearly all equally far apart."""
    _ = run.trained  # first: without weights there is no need to read the images
    if len(run.training_classes) < 2:
        raise CannotDrawError("a pair needs two training classes")
    means = run.class_means
    count = len(means.labels)
    shown = min(PAIRS_SHOWN, count * (count - 1) // 2)
    figure = new_figure(13.2, 2.1 * shown + 0.9)
    title = f"Closest and farthest of {count:,} training classes, by the cosine similarity of their mean embeddings"
    set_title(figure, title, run_title(run))
    grid = figure.subplots(2 * shown, 2, squeeze=False)
    for column, (title, pairs) in enumerate(
        zip(("closest", "farthest"), extreme_pairs(means.embeddings, shown), strict=True)
    ):
        for rank, (first, second, cosine) in enumerate(pairs):
            for row, index in enumerate((first, second)):
                axis, label, colour = grid[2 * rank + row, column], int(means.labels[index]), RUN_COLOURS[row]
                cells = examples(run, label, IMAGES_SHOWN, colour)
                show_row(axis, cells, name=class_name(run, label, 20), colour=colour, columns=IMAGES_SHOWN)
                if row == 0:
                    axis.set_title(f"{title}, similarity {number(cosine, 3)}", loc="left", fontsize=9)
    return figure


def extreme_pairs(vectors: Tensor, count: int) -> tuple[Pairs, Pairs]:
    """The ``count`` closest and farthest pairs ``(i, j, cosine)``, ``i < j``, of the rows of ``vectors [C, D]``.

    The similarities are computed in blocks, so that many classes need little memory.

    >>> vectors = torch.tensor([[1.0, 0.0], [2.0, 0.1], [-1.0, 0.0]])
    >>> closest, farthest = extreme_pairs(vectors, 1)
    >>> closest[0][:2], farthest[0][:2]
    ((0, 1), (0, 2))
    """
    unit = l2_normalise(vectors.double())
    number = len(unit)
    closest: Pairs = []
    farthest: Pairs = []
    for start in range(0, number - 1, _BLOCK):
        block = unit[start : start + _BLOCK] @ unit.T
        later = torch.arange(number) > torch.arange(start, start + len(block))[:, None]
        kept = min(count, int(later.sum()))
        for pairs, fill, largest in ((closest, -torch.inf, True), (farthest, torch.inf, False)):
            values, indices = block.masked_fill(~later, fill).flatten().topk(kept, largest=largest)
            rows, columns = indices // number + start, indices % number
            pairs.extend(zip(rows.tolist(), columns.tolist(), values.tolist(), strict=True))
    closest.sort(key=lambda pair: (-pair[2], pair))
    farthest.sort(key=lambda pair: (pair[2], pair))
    return closest[:count], farthest[:count]
