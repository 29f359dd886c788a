"""Reports: what a run found, for people to look at."""

from nearkin.report.figures.neighbours import draw_neighbours

__all__ = ["draw_neighbours"]
