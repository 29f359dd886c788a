"""The section of the classes that lie closest together and farthest apart, with images of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nearkin.errors import NearkinError
from nearkin.report.opened_run import OpenedRun
from nearkin.report.page._parts import Payload, Section, counted, details, escape, shot
from nearkin.report.plots._style import number
from nearkin.report.plots.pairs import PAIRS_SHOWN, class_vectors, compared_run, extreme_pairs
from nearkin.report.run_groups import RunGroup

_EXAMPLES = 4


def pairs_section(
    groups: Sequence[RunGroup], payload: Payload, missing: Callable[[str, object], None]
) -> Section | None:
    """Closest and farthest training classes of every group's first run; what cannot be shown goes to ``missing``."""
    blocks: list[str] = []
    for group in groups:
        try:
            summary, body = _pairs(compared_run(group.runs[0]), payload)
        except NearkinError as error:
            missing(f"closest classes of {group.title}", error)
            continue
        title = f"{group.title}: {summary}" if len(groups) > 1 else summary
        blocks.append(details(title[:1].upper() + title[1:], body, opened=not blocks))
    return Section("pairs", "Closest and farthest classes", "".join(blocks)) if blocks else None


def _pairs(run: OpenedRun, payload: Payload) -> tuple[str, str]:
    classes, vectors, what = class_vectors(run)
    names, body = run.data.table.class_names, ""
    for title, pairs in zip(("Closest", "Farthest"), extreme_pairs(vectors, PAIRS_SHOWN), strict=True):
        body += f"<div><h4>{title}</h4>"
        for first, second, cosine in pairs:
            rows = "".join(examples(run, int(classes[place]), _EXAMPLES, payload) for place in (first, second))
            both = f"{names[int(classes[first])]} and {names[int(classes[second])]}"
            body += f'<div class="pair"><p class="row-name">{escape(both)}: similarity {number(cosine)}</p>{rows}</div>'
        body += "</div>"
    said = f"{counted(len(classes), 'training class', 'training classes')}, by the cosine similarity of their {what}"
    return said, f"<div class=charts>{body}</div>"


def examples(run: OpenedRun, label: int, count: int, payload: Payload) -> str:
    """Some training images of a class in a row."""
    images = [payload.image((id(run.data), row), pixels) for row, pixels in run.examples(label, count).items()]
    pictures = "".join(shot(image, run.data.table.class_names[label]) for image in images)
    return f'<div class="shots nameless">{pictures}</div>'
