"""Tables, figures and the HTML report of runs."""

from nearkin.report.figures.neighbours import draw_neighbours

__all__ = ["draw_neighbours"]
