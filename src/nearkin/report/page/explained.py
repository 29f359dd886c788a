"""What the scores mean, in plain words, for whoever is sent a report and not a paper."""

from __future__ import annotations

from collections.abc import Sequence

from nearkin.evaluation.scores import is_score, score_named
from nearkin.report.page._parts import details, escape


def meanings_of(metrics: Sequence[str]) -> dict[str, str]:
    """What the scores mean: names that share an explanation together, in the order in which they come first.

    >>> list(meanings_of(["R@1", "R@8", "NMI", "unheard of"]))
    ['R@1, R@8', 'NMI']
    """
    headings: dict[str, list[str]] = {}
    for score in map(score_named, filter(is_score, metrics)):
        headings.setdefault(score.meaning, []).append(score.heading)
    return {", ".join(each): meaning for meaning, each in headings.items()}


def explanation(metrics: Sequence[str]) -> str:
    """A block that opens at a click, a tap or a key, with every score that is shown."""
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in meanings_of(metrics).items())
    opening = "Every test image in turn is a query and looks for images of its own kind among the others."
    return details("What the scores mean", f"<p>{escape(opening)}</p><dl>{listed}</dl>") if listed else ""
