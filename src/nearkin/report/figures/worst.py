"""Queries with the worst results: their hits, and the rank of the first image of their class."""

from __future__ import annotations

from typing import Any

from nearkin.report.figure_style import RIGHT, class_name, new_figure, run_title, set_title, show_row
from nearkin.report.figures.neighbours import hit_cells, query_cell
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
    figure = new_figure(0.98 * (shown + 2.5) + 1.3, 1.16 * len(queries) + 1.1)
    wrong, total = int((results.recall == 0).sum()), int((results.true > 0).sum())
    title = f"Worst queries: {wrong:,} of {total:,} have a wrong nearest neighbour"
    set_title(figure, f"{title} (last column: the nearest image of the query's class)", run_title(run))
    grid = figure.subplots(len(queries), 3, width_ratios=[1, shown, 1], squeeze=False)
    for (left, middle, right), query in zip(grid, queries, strict=True):
        show_row(left, [query_cell(results, query)], name=class_name(run, int(results.queries.labels[query]), 18))
        show_row(middle, hit_cells(run, results.neighbours_of(query)))
        first, rank = results.first_right(query)
        show_row(right, [(run.data.images[first.row], RIGHT, f"rank {rank:,}")])
    return figure
