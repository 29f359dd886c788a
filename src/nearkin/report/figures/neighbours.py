"""Nearest neighbours of the same queries for several runs, or before and after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearkin.report import figure_style
from nearkin.report.figure_style import PLAIN, RIGHT, WRONG, Cell, class_name, run_title, save_figure, show_row
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
    labels = [run.label for run in runs]
    return _figure(dict(zip(labels, results, strict=True)), figure_style.shared_title(runs))


def draw_neighbours(folder: RunFolder) -> Path | None:
    """Write ``neighbours.png`` into a run folder: what some queries find before and after training.

    None where the run has no test classes or they hold nothing to find.
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
        with matplotlib.rc_context(figure_style.STYLE):
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
    figure = figure_style.new_figure(0.98 * (1 + (shown + 0.12) * len(blocks)) + 1.3, 1.16 * len(queries) + 1.1)
    title = f"Nearest neighbours among {run.protocol.test_classes}"
    figure_style.set_title(figure, f"{title} (green: same class, red and ×: another)", subtitle)
    widths = [1, *len(blocks) * [shown]]
    grid = figure.subplots(len(queries), 1 + len(blocks), width_ratios=widths, squeeze=False)
    for axes, query in zip(grid, queries, strict=True):
        show_row(axes[0], [query_cell(first, query)], name=class_name(run, int(first.queries.labels[query]), 18))
        for axis, results in zip(axes[1:], blocks.values(), strict=True):
            show_row(axis, hit_cells(results.run, results.neighbours_of(query)[:shown]), columns=shown)
    for axis, heading in zip(grid[0], ["query", *blocks], strict=True):
        axis.set_title(heading[: 14 * shown], fontsize=9, loc="left")
    return figure


def query_cell(results: QueryResults, query: int) -> Cell:
    return results.run.data.images[int(results.queries.rows[query])], PLAIN, ""


def hit_cells(run: OpenedRun, neighbours: Sequence[Neighbour]) -> list[Cell]:
    """Hits in green frames, or in red ones with their class."""
    frames = ((RIGHT, "") if hit.right else (WRONG, class_name(run, hit.label, 16)) for hit in neighbours)
    return [(run.data.images[hit.row], *frame) for hit, frame in zip(neighbours, frames, strict=True)]
