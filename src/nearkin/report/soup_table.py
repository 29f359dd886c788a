"""A soup's scores below those of the runs that it is the mean of, and the word on whether it was worth it."""

from __future__ import annotations

from nearkin.evaluation.scores import score_named
from nearkin.report.differences import COMPARED
from nearkin.report.run_table import LEGEND
from nearkin.report.table import NOTHING, Part, Table
from nearkin.runs.scores import Scores, Soup


def soup_table(soup: Soup, scores: Scores) -> Table:
    """A line for each run and one for the soup, with what all of them hold for."""
    held = scores.conditions
    shown = [score_named(name) for name in COMPARED if name in (soup.test or {})]
    lines = [(part.run, part.name, part.test) for part in soup.parts] + [("soup", "", soup.test)]
    cells = [
        [run, name, *(score.text(test[score.name]) if test and score.name in test else NOTHING for score in shown)]
        for run, name, test in lines
    ]
    said = [f"{held.protocol} protocol, {held.selection}", held.training_conditions, held.weights]
    said += [f"batch-norm: {soup.batch_norm}", held.hardware]
    return Table(
        f"{held.data}: {soup.title}, {held.test_classes}",
        (Part.of(["", "loss", *(score.heading for score in shown)], cells, texts=2),),
        (f"{'; '.join(part for part in said if part)}.", f"In per cent. {LEGEND}."),
    )


def soup_verdict(soup: Soup) -> str | None:
    """One line where the soup is worse than every run that it is of, with the likely reason; else None.

    Scores count as different where the table shows them as different.
    """
    worse = []
    for name in COMPARED:
        by_run = {part.run: round(100 * part.test[name], 1) for part in soup.parts if part.test and name in part.test}
        if not by_run or not soup.test or name not in soup.test:
            continue
        worst = min(by_run, key=lambda run: by_run[run])
        own = round(100 * soup.test[name], 1)
        worse += [f"{name} {own:.1f}, where {worst} has {by_run[worst]:.1f}"] if own < by_run[worst] else []
    if not worse:
        return None
    if soup.different_starts:
        why = "They did not begin from the same weights, and between such there is mostly nothing of worth."
    else:
        why = "They began alike, but training has carried them too far apart for a mean, as long or fast training does."
    first, *others = (part.run for part in soup.parts)
    beside = " ".join(f"--with {run}" for run in others)
    return (
        f"The soup is below the worst of its runs: {'; '.join(worse)}. {why} Use the best of them, or all side by "
        f"side: nearkin evaluate {first} {beside}"
    )
