"""The section that holds rows against their base: differences with their intervals, drawn and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from nearkin.report.differences import (
    COMPARED,
    Held,
    difference_text,
    differences_part,
    how_to_read,
    interval_text,
)
from nearkin.report.formats import html_table, signed
from nearkin.report.run_groups import RunGroup

_WIDTH, _LINE, _LEFT = 560, 24, 190
_MOST_LETTERS = 28  # that fit to the left
_COLOURS = {"above": "#1a7f37", "below": "#b3261e"}


def differences_section(groups: Sequence[RunGroup]) -> str:
    """Empty where no group can be held against another, or all have one run, of which the table of scores says all."""
    rows = held_against_base(groups)
    if not (reading := how_to_read(rows)):
        return ""
    drawn = "".join(_drawing(rows, name) for name in COMPARED if any(name in row.apart for row in rows))
    return f"<div class=charts>{drawn}</div><p class=note>{escape(reading)}</p>{html_table(differences_part(rows))}"


def held_against_base(groups: Sequence[RunGroup]) -> list[Held]:
    """Every group against the one that its study names or, without a name, the first if it has the same protocol."""
    titles, rows = {group.title: group for group in groups}, []
    for group in groups:
        base = groups[0] if group.base is None else titles.get(group.base)
        if base is None or base is group or base.recipe.protocol.name != group.recipe.protocol.name:
            continue
        held = Held.of(group.title, group.test_by_run, base.title, base.test_by_run)
        rows += [held] if held is not None else []
    return rows


def _drawing(rows: Sequence[Held], name: str) -> str:
    """A dot for each difference and a bar for its interval, in points, one below the other; a rule marks 0."""
    shown = [(row, row.apart[name]) for row in rows if name in row.apart]
    ends = [100 * end for _, apart in shown for end in (apart.value, *(apart.interval or ()))]
    # An interval from two seeds may be wider than all scores together: it is cut off at three times the largest dot.
    most = min(max(map(abs, ends)), 3 * max(abs(100 * apart.value) for _, apart in shown)) or 1.0

    def place(points: float) -> float:
        share = 0.5 + 0.5 * max(-1.0, min(1.0, points / most))
        return round(_LEFT + share * (_WIDTH - _LEFT - 12), 1)

    height, lines = _LINE * len(shown) + 26, []
    for number, (row, apart) in enumerate(shown):
        y, colour = _LINE * number + 14, _COLOURS.get(apart.verdict or "", "var(--soft)")
        said = f"{row.title} − {row.base}: {difference_text(name, apart)} ({interval_text(name, apart)})"
        low, high = (100 * end for end in apart.interval or (apart.value, apart.value))
        lines.append(
            f'<g><title>{escape(said)}</title><text x="{_LEFT - 10}" y="{y + 4}" text-anchor="end">'
            f'{escape(_shortened(row.title))}</text><line x1="{place(low)}" y1="{y}" x2="{place(high)}" y2="{y}" '
            f'stroke="{colour}" stroke-width="2"></line><circle cx="{place(100 * apart.value)}" cy="{y}" r="4" '
            f'fill="{colour}"></circle></g>'
        )
    ticks = "".join(
        f'<text x="{place(at)}" y="{height - 4}" text-anchor="middle">{signed(at) if at else 0}</text>'
        for at in (-most, -most / 2, 0.0, most / 2, most)
    )
    zero = f'<line x1="{place(0)}" y1="0" x2="{place(0)}" y2="{height - 18}" stroke="var(--rule)"></line>'
    label = f"{name}: difference to what each is held against, in points, with its 95 % interval"
    return (
        f'<figure class="chart differences"><figcaption>{escape(label)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label)}">'
        f"{zero}{''.join(lines)}{ticks}</svg></figure>"
    )


def _shortened(title: str) -> str:
    return title if len(title) <= _MOST_LETTERS else f"{title[: _MOST_LETTERS - 1]}…"
