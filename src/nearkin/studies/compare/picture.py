"""A comparison as a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from nearkin.report.differences import COMPARED
from nearkin.report.figure_style import end_at_100, new_figure, save_figure
from nearkin.studies.compare.tables import Results, conditions_of, families, title_of

BASE, METHOD, BAND = "#555555", "#1f6fb4", "#ebebeb"


def draw_comparison(results: Results, file: Path) -> list[Path]:
    """A dot for every row with a bar for its spread and a small dot for each seed, a method below its base.

    The grey band is the spread of the base, from its own line down to the last of its methods. Nothing is drawn
    without a finished run.
    """
    rows = [(result, depth) for result, depth in families(results) if any(result.test(name) for name in COMPARED)]
    if not rows:
        return []
    names = [name for name in COMPARED if any(result.test(name) for result, _ in rows)]
    figure = new_figure(4.0 + 3.4 * len(names), 1.8 + 0.3 * len(rows))
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axis, name in zip(panels, names, strict=True):
        for place, (result, depth) in enumerate(rows):
            score = result.test(name)
            if score is None:
                continue
            value, colour = score.scaled(100), METHOD if depth else BASE
            if followers := _followers([depth for _, depth in rows], place):
                first, last, half = place, place + followers + 0.4, value.spread or 0.0
                ends = value.mean - half, value.mean + half
                axis.fill_betweenx([first - 0.4, last], *ends, color=BAND, zorder=0.5, linewidth=0)
                axis.plot([value.mean] * 2, [first, last], "--", color=BASE, linewidth=0.9, zorder=0.6)
            axis.plot(value.values, [place] * len(value.values), ".", color=colour, alpha=0.4)
            axis.errorbar(value.mean, place, xerr=value.spread, fmt="o", color=colour, capsize=3, markersize=6)
        axis.set_title(f"{name} (%)", fontsize=10)
        axis.grid(axis="x", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.margins(x=0.08)
        left, right = axis.get_xlim()
        axis.set_xlim(max(left, 0.0), right)
        end_at_100(axis, "x")
        axis.tick_params(axis="y", length=0)
        for side in ("top", "right", "left"):
            axis.spines[side].set_visible(False)
    most = max(len(result.seeds) for result, _ in rows)
    fewer = [f" ({len(result.seeds)} of {most} seeds)" if len(result.seeds) < most else "" for result, _ in rows]
    titles = ["    " * depth + result.row.title + note for (result, depth), note in zip(rows, fewer, strict=True)]
    panels[0].set_yticks(range(len(rows)), titles, ha="left", fontsize=9)
    # Labels that start at one line show by their indent what belongs to what; the longest decides how far out it is.
    panels[0].tick_params(axis="y", pad=5.6 * max(len(title) for title in titles))
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    shown = [result for result, _ in rows]
    figure.suptitle(title_of(shown), fontsize=11)
    figure.supxlabel("\n".join(textwrap.wrap(conditions_of(shown)[0], 105)), fontsize=7, color="#555555")
    save_figure(figure, file, dpi=130)
    return [file]


def _followers(depths: Sequence[int], place: int) -> int:
    """How many rows below ``place`` belong to it."""
    below = depths[place + 1 :]
    return next((count for count, depth in enumerate(below) if depth <= depths[place]), len(below))
