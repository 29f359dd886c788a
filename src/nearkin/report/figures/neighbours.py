"""Nearest neighbours of the same queries for several runs, or before and after training, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearkin.report.figure_style import PLAIN, RIGHT, STYLE, WRONG, head, new_figure, save_figure, show_image
from nearkin.report.figures._runs import Drawing, class_name, run_title, shared_title, together
from nearkin.report.opened_run import CannotDrawError, OpenedRun, open_runs
from nearkin.report.query_results import SHOWN, Neighbour, QueryResults, retrieve
from nearkin.runs.folder import RunFolder
from nearkin.training.build import encoder_from

__all__ = ["draw", "draw_neighbours"]

QUERIES = 6
_SHOWN = {1: SHOWN, 2: SHOWN, 3: 4}
_FEWEST = 3


def draw(runs: Sequence[OpenedRun]) -> Drawing:
    """A row for each query, and in it a block of neighbours for each run (VCPA, figures 15 to 18)."""
    ready: list[OpenedRun] = []

    def shown_of(run: OpenedRun) -> QueryResults:
        if ready and not np.array_equal(run.test_sample.rows, ready[0].test_sample.rows):
            raise CannotDrawError(
                f"its test classes are not those of {ready[0].name}: protocol.test_share or protocol.split_seed differs"
            )
        found = retrieve(run, run.test_sample)
        ready.append(run)
        return found

    return together(runs, shown_of, _figure_of_runs)


def draw_neighbours(folder: RunFolder) -> Path | None:
    """Write ``neighbours.png`` into a run folder: what some queries find before and after training.

    Returns the file, or None when the run has no test classes or nothing is to be found in them.
    """
    import matplotlib

    (run,) = open_runs([folder.path])
    if run.protocol.test is None:
        return None
    trained, sample = run.trained, run.test_sample
    torch.manual_seed(run.recipe.training.seed)  # as when it was built, for a backbone that begins as random numbers
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


def _figure_of_runs(found: Sequence[QueryResults]) -> Any:
    runs = [each.run for each in found]
    if len(runs) == 1:
        return _figure({"nearest first": found[0]}, run_title(runs[0]))
    return _figure({run.label: each for run, each in zip(runs, found, strict=True)}, shared_title(runs))


def _figure(blocks: Mapping[str, QueryResults], whose: str) -> Any:
    """Queries in the first column, then for each heading of ``blocks`` what they found."""
    first = next(iter(blocks.values()))
    run, queries = first.run, first.choose_queries(QUERIES)
    if not queries:
        raise CannotDrawError("no test class has two images")
    # A class of five has four to find, and a fifth neighbour would be wrong in any case.
    shown = min(_SHOWN.get(len(blocks), _FEWEST), *first.true[queries].tolist())
    widths = [1.0] + len(blocks) * [0.12, *shown * [1.0]]
    figure = new_figure(0.98 * sum(widths) + 1.3, 1.16 * len(queries) + 1.1)
    what = f"Nearest neighbours among {run.protocol.test_classes}"
    head(figure, f"{what} (green: same class, red and ×: another)", whose)
    grid = figure.add_gridspec(len(queries), len(widths), width_ratios=widths)
    for q, query in enumerate(queries):
        axis = figure.add_subplot(grid[q, 0])
        show_image(axis, run.data.images[int(first.queries.rows[query])], PLAIN)
        name = class_name(run, int(first.queries.labels[query]), 18)
        axis.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
        if q == 0:
            axis.set_title("query", fontsize=9)
    for b, (heading, found) in enumerate(blocks.items()):
        for q, query in enumerate(queries):
            for n, neighbour in enumerate(found.neighbours_of(query)[:shown]):
                axis = figure.add_subplot(grid[q, 2 + b * (shown + 1) + n])
                _show_neighbour(axis, found.run, neighbour)
                if q == 0 and n == 0:
                    axis.set_title(heading[: 14 * shown], fontsize=9, loc="left")
    return figure


def _show_neighbour(axis: Any, run: OpenedRun, neighbour: Neighbour) -> None:
    show_image(axis, run.data.images[neighbour.row], RIGHT if neighbour.right else WRONG)
    if not neighbour.right:
        # Not by colour alone: a cross in the corner, and the class it is of.
        axis.text(
            0.93, 0.93, "×", transform=axis.transAxes, ha="right", va="top", fontsize=9, color="white", weight="bold",
            bbox={"boxstyle": "square,pad=0.1", "facecolor": WRONG, "edgecolor": "none"},
        )  # fmt: skip
        axis.set_xlabel(class_name(run, neighbour.label, 16), fontsize=6)
