"""A map of some training classes, with their proxies where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nearkin.report.opened_run import OpenedRun
from nearkin.report.plots._maps import map_figure, training_map, training_words
from nearkin.report.plots._runs import Drawing, one_by_one


def draw(runs: Sequence[OpenedRun]) -> Drawing:
    """Images as points and proxies as stars, a map for each run."""
    return one_by_one(runs, lambda run: _figure(run.at_proxies))


def _figure(run: OpenedRun) -> Any:
    found = training_map(run)
    return map_figure(run, found, training_words(found))
