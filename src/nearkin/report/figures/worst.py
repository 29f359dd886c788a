"""Queries with the worst results: what they found, and the rank of the first image of their class."""

from __future__ import annotations

from typing import Any

from nearkin.report.figure_style import new_figure, run_title, set_title
from nearkin.report.figures.neighbours import show_neighbour, show_query
from nearkin.report.opened_run import NothingToShowError, OpenedRun
from nearkin.report.query_results import retrieve

QUERIES = 6


def draw_run(run: OpenedRun) -> Any:
    """The lowest MAP@R, one query of a class; of equal ones the mistake with the highest similarity."""
    results = retrieve(run, run.test_sample)
    queries = results.worst(QUERIES)
    if not queries:
        raise NothingToShowError("every query has an image of its class as the nearest neighbour")
    shown = results.hits.shape[1]
    widths = [1.0, 0.12, *shown * [1.0], 0.3, 1.0]
    figure = new_figure(0.98 * sum(widths) + 1.3, 1.16 * len(queries) + 1.1)
    wrong, total = int((results.recall == 0).sum()), int((results.true > 0).sum())
    title = f"Worst queries: {wrong:,} of {total:,} have a wrong nearest neighbour"
    set_title(figure, f"{title} (last column: the nearest image of the query's class)", run_title(run))
    grid = figure.add_gridspec(len(queries), len(widths), width_ratios=widths)
    for q, query in enumerate(queries):
        show_query(figure.add_subplot(grid[q, 0]), results, query, titled=q == 0)
        for n, neighbour in enumerate(results.neighbours_of(query)):
            show_neighbour(figure.add_subplot(grid[q, 2 + n]), run, neighbour)
        neighbour, rank = results.first_right(query)
        axis = figure.add_subplot(grid[q, len(widths) - 1])
        show_neighbour(axis, run, neighbour)
        axis.set_xlabel(f"rank {rank:,}", fontsize=7)
    return figure
