"""Reports: what a run found, for people to look at."""

from nearkin.report.plots.neighbours import draw_neighbours

__all__ = ["draw_neighbours"]
