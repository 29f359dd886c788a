"""What the scores mean, in plain words, for whoever is sent a report and not a paper."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nearkin.report.page._parts import details, escape
from nearkin.report.score_tables import metric_name

MEANINGS: dict[str, str] = {
    r"R@\d+": "Recall at k: how many queries have at least one image of their own kind among the k most similar ones. "
    "R@1 asks whether the very first one is right.",
    r"P@R": "With R other images of the query's kind: the share of the R most similar images that are of that kind. "
    "100 if all of them come first.",
    r"P@\d+": "Precision at k: how many of the k most similar images are of the query's kind.",
    r"MAP@R": "Like P@R, but a right image counts for more the nearer to the front it stands. The strictest of these "
    "scores, and the one that luck moves least.",
    r"MAP@\d+": "Mean average precision over the first k: a right image counts for more the nearer to the front it is.",
    r"nDCG@\d+": "How good the order of the first k images is beside the best possible one; the front counts for more.",
    r"NMI": "Normalised mutual information: the images are put into as many groups as there are kinds, without their "
    "labels. 100 if the groups are the kinds, near 0 if they have nothing to do with them.",
    r"F1": "Of the same groups: how well the pairs of images that are together are the pairs of one kind.",
    r"covering_radius": "How widely the images of a kind are spread: how far the outermost lies from a few that stand "
    "for the kind, averaged. A distance and not a percentage; smaller is tighter.",
    r"inter_class_distance": "The mean distance between images of different kinds: a distance and not a percentage.",
}
"""By the pattern of a score's name."""


def meanings_of(metrics: Sequence[str]) -> dict[str, str]:
    """What the scores mean: names that share an explanation together, in the order in which they come first.

    >>> list(meanings_of(["R@1", "R@8", "NMI", "unheard of"]))
    ['R@1, R@8', 'NMI']
    """
    names: dict[str, list[str]] = {}
    for metric in metrics:
        found = next((pattern for pattern in MEANINGS if re.fullmatch(pattern, metric)), None)
        if found is not None:
            names.setdefault(found, []).append(metric_name(metric))
    return {", ".join(each): MEANINGS[pattern] for pattern, each in names.items()}


def explanation(metrics: Sequence[str]) -> str:
    """A block that opens at a click, a tap or a key, with every score that is shown."""
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in meanings_of(metrics).items())
    opening = "Every test image in turn is a query and looks for images of its own kind among the others."
    return details("What the scores mean", f"<p>{escape(opening)}</p><dl>{listed}</dl>") if listed else ""
