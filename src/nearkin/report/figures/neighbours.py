"""Nearest neighbours of the same queries for several runs, or before and after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearkin.report.figure_style import (
    PLAIN,
    RIGHT,
    STYLE,
    WRONG,
    class_name,
    new_figure,
    run_title,
    save_figure,
    set_title,
    shared_title,
    show_image,
)
from nearkin.report.opened_run import CannotDrawError, OpenedRun, open_runs
from nearkin.report.query_results import SHOWN, Neighbour, QueryResults, retrieve
from nearkin.runs.folder import RunFolder
from nearkin.training.build import encoder_from

QUERIES = 6
_SHOWN = {1: SHOWN, 2: SHOWN, 3: 4}
_FEWEST = 3


def check(run: OpenedRun) -> None:
    _ = run.test_rows  # raises where the run has no test classes


def draw_runs(runs: Sequence[OpenedRun]) -> Any:
    """A row for each query, and in it a block of neighbours for each run (VCPA, figures 15 to 18)."""
    for run in runs[1:]:
        if not np.array_equal(run.test_rows, runs[0].test_rows):
            raise CannotDrawError(
                f"the test classes of {run.name} are not those of {runs[0].name}: protocol.test_share or "
                f"protocol.split_seed differs"
            )
    results = [retrieve(run, run.test_sample) for run in runs]
    if len(runs) == 1:
        return _figure({"nearest first": results[0]}, run_title(runs[0]))
    return _figure({run.label: result for run, result in zip(runs, results, strict=True)}, shared_title(runs))


def draw_neighbours(folder: RunFolder) -> Path | None:
    """Write ``neighbours.png`` into a run folder: what some queries find before and after training.

    Returns the file, or None when the run has no test classes or they hold nothing to find.
    """
    import matplotlib

    (run,) = open_runs([folder.path])
    if run.protocol.test is None:
        return None
    trained, sample = run.trained, run.test_sample
    torch.manual_seed(run.recipe.training.seed)  # as in training, for a backbone without pretrained weights
    untrained = encoder_from(run.recipe.encoder).without_head().to(trained.device)
    embeddings = replace(trained, encoder=untrained).embed(run.data.images, sample.rows).cpu()
    file = folder.path / "neighbours.png"
    try:
        before = retrieve(run, replace(sample, embeddings=embeddings), untrained.distance)
        with matplotlib.rc_context(STYLE):
            figure = _figure({"before training": before, "after training": retrieve(run, sample)}, run_title(run))
            save_figure(figure, file, dpi=110)
    except CannotDrawError:
        return None
    return file


def _figure(blocks: Mapping[str, QueryResults], subtitle: str) -> Any:
    """Queries in the first column, then a block of their neighbours for each heading of ``blocks``."""
    first = next(iter(blocks.values()))
    run, queries = first.run, first.choose_queries(QUERIES)
    if not queries:
        raise CannotDrawError("no test class has two images")
    # In a class of five there are four to find: a fifth neighbour would be wrong in any case.
    shown = min(_SHOWN.get(len(blocks), _FEWEST), *first.true[queries].tolist())
    widths = [1.0] + len(blocks) * [0.12, *shown * [1.0]]
    figure = new_figure(0.98 * sum(widths) + 1.3, 1.16 * len(queries) + 1.1)
    title = f"Nearest neighbours among {run.protocol.test_classes}"
    set_title(figure, f"{title} (green: same class, red and ×: another)", subtitle)
    grid = figure.add_gridspec(len(queries), len(widths), width_ratios=widths)
    for q, query in enumerate(queries):
        show_query(figure.add_subplot(grid[q, 0]), first, query, titled=q == 0)
    for b, (heading, results) in enumerate(blocks.items()):
        for q, query in enumerate(queries):
            for n, neighbour in enumerate(results.neighbours_of(query)[:shown]):
                axis = figure.add_subplot(grid[q, 2 + b * (shown + 1) + n])
                show_neighbour(axis, results.run, neighbour)
                if q == 0 and n == 0:
                    axis.set_title(heading[: 14 * shown], fontsize=9, loc="left")
    return figure


def show_query(axis: Any, results: QueryResults, query: int, *, titled: bool) -> None:
    """A query's image with its class at the left."""
    show_image(axis, results.run.data.images[int(results.queries.rows[query])], PLAIN)
    name = class_name(results.run, int(results.queries.labels[query]), 18)
    axis.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
    if titled:
        axis.set_title("query", fontsize=9)


def show_neighbour(axis: Any, run: OpenedRun, neighbour: Neighbour) -> None:
    """A hit in a green frame, or in a red one with a cross and its class, so that colour is not the only sign."""
    show_image(axis, run.data.images[neighbour.row], RIGHT if neighbour.right else WRONG)
    if not neighbour.right:
        axis.text(
            0.93, 0.93, "×", transform=axis.transAxes, ha="right", va="top", fontsize=9, color="white", weight="bold",
            bbox={"boxstyle": "square,pad=0.1", "facecolor": WRONG, "edgecolor": "none"},
        )  # fmt: skip
        axis.set_xlabel(class_name(run, neighbour.label, 16), fontsize=6)
