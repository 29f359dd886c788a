"""A map of some test classes."""

from __future__ import annotations

from collections.abc import Sequence

from nearkin.report.figures._maps import map_figure, map_of
from nearkin.report.figures._runs import Drawing, one_by_one
from nearkin.report.opened_run import OpenedRun


def draw(runs: Sequence[OpenedRun]) -> Drawing:
    """Images as points, a map for each run."""
    return one_by_one(
        runs, lambda run: map_figure(run, map_of(run, run.test_sample), f"Test: {run.protocol.test_classes}")
    )
