"""A map of some training classes, with their proxies where there are any."""

from __future__ import annotations

from collections.abc import Sequence

from nearkin.report.figures._maps import map_figure, training_map
from nearkin.report.figures._runs import Drawing, one_by_one
from nearkin.report.opened_run import OpenedRun


def draw(runs: Sequence[OpenedRun]) -> Drawing:
    """Images as points and proxies as stars, a map for each run."""
    return one_by_one(runs, lambda run: map_figure(run.at_proxies, training_map(run.at_proxies)))
