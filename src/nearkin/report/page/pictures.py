"""Sections with images: maps of the embeddings, neighbours, scores by class, worst queries, closest classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.evaluation.scores import score_named
from nearkin.report.figure_style import number
from nearkin.report.figures._maps import Map, map_of, training_map, training_words
from nearkin.report.figures.pairs import PAIRS_SHOWN, class_vectors, compared_run, extreme_pairs
from nearkin.report.formats import counted, html_table
from nearkin.report.opened_run import OpenedRun
from nearkin.report.page._parts import Payload, details, shot
from nearkin.report.query_results import QueryResults
from nearkin.report.table import NOTHING, Line, Part

QUERIES = 8
WORST = 6
MAP_IMAGES = 500
"""Points of a map that have an image."""
CLASS_ROWS = 300
"""Lines of the table of classes; of more classes the best and the worst are shown."""
_GRID = 2000
_PAIR_EXAMPLES = 4

Chart = tuple[str, str]
"""A chart as HTML, and how its map was made."""


def training_map_chart(run: OpenedRun, payload: Payload) -> Chart:
    """A map of some training classes with their proxies as stars."""
    found = training_map(run.at_proxies)
    return _map_chart(run.at_proxies, found, training_words(found), payload), found.how


def test_map_chart(found: QueryResults, payload: Payload) -> Chart:
    """A map of some test classes."""
    shown = map_of(found.run, found.sample)
    return _map_chart(found.run, shown, f"Test: {found.run.protocol.test_classes}", payload), shown.how


def map_section(maps: Mapping[str, Sequence[Chart]]) -> str:
    """Maps under the titles of their groups."""
    blocks = [
        f"<h3>{escape(title)}</h3><div class=charts>{''.join(chart for chart, _ in charts)}</div>"
        for title, charts in maps.items()
        if charts
    ]
    hows = {how for charts in maps.values() for _, how in charts}
    reading = "Point at or tap an image's point to see it; a class's name lifts that class out."
    reading += "".join(f" {said}" for how, said in _READING.items() if how in hows)
    return f"{''.join(blocks)}<p class=note>{escape(reading)}</p>" if blocks else ""


def neighbours_section(found: Mapping[str, QueryResults], payload: Payload) -> str:
    """The nearest neighbours of the same queries for every group, by its title."""
    first = next(iter(found.values()))
    blocks = []
    for chosen in first.choose_queries(QUERIES):
        row = int(first.queries.rows[chosen])
        asked, lines = shot(payload, first.run, row), ""
        for title, each in found.items():
            named = f'<p class="row-name">{escape(title)}</p>' if len(found) > 1 else ""
            for place in np.flatnonzero(each.queries.rows == row).tolist():  # none where its test classes are others
                lines += f'<div class="row">{named}<div class="shots">{_found_shots(each, place, payload)}</div></div>'
        blocks.append(_query_block(asked, lines))
    reading = f"Queries at the left, chosen by chance; nearest first among {_among(first)}. {_SIGNS}"
    return f"<p class=note>{escape(reading)}</p>{''.join(blocks)}" if blocks else ""


def classes_section(found: Mapping[str, QueryResults]) -> str:
    """Scores of every test class, sortable, with bars."""
    by_group = [each.classes() for each in found.values()]
    first, own = next(iter(found.values())), by_group[0]
    if len(own) < 2:
        return ""
    order = sorted(own, key=lambda label: (own[label].precision, label))
    shown, said = order, counted(len(order), "class")
    if len(order) > CLASS_ROWS:
        half = CLASS_ROWS // 2
        shown = [*order[:half], *order[-half:]]
        said = f"the {half} worst and the {half} best of {len(order):,} classes by MAP@R"
    lines = []
    for label in shown:
        both = [(each[label].recall, each[label].precision) if label in each else (None, None) for each in by_group]
        values = [value for pair in both for value in pair]
        texts = (NOTHING if value is None else score_named("R@1").text(value) for value in values)
        cells = (first.run.data.table.class_names[label], str(own[label].queries), *texts)
        lines.append(Line(cells, fractions=(None, None, *values)))
    of = [f", {title}" if len(found) > 1 else "" for title in found]
    headings = ("class", "queries", *(f"{metric}{title}" for title in of for metric in ("R@1", "MAP@R")))
    seeds = ", ".join(dict.fromkeys(str(each.run.recipe.training.seed) for each in found.values()))
    caption = f"In per cent, {said}; {_among(first)}; seed {seeds}. A click on a heading sorts."
    table = html_table(Part(headings, tuple(lines)), kind="classes sortable", caption=caption)
    return f'<div class="tall">{table}</div>'


def worst_section(found: Mapping[str, QueryResults], payload: Payload) -> str:
    """Queries that went most wrong, what they found instead, and where the first of their own class came."""
    blocks: list[str] = []
    for title, each in found.items():
        lines = ""
        for query in each.worst(WORST):
            asked, found_shots = (
                shot(payload, each.run, int(each.queries.rows[query])),
                _found_shots(each, query, payload),
            )
            neighbour, rank = each.first_right(query)
            own = shot(payload, each.run, neighbour.row, right=True, note=f"rank {rank:,}")
            lines += _query_block(asked, f'<div class="shots">{found_shots}<span class="gap">…</span>{own}</div>')
        if lines:
            wrong, total = int((each.recall == 0).sum()), int((each.true > 0).sum())
            summary = f"{title}: {wrong:,} of {counted(total, 'query', 'queries')} have a wrong nearest neighbour"
            blocks.append(details(summary, lines, opened=not blocks))
    reading = (
        "The lowest MAP@R, among equal ones the mistake with the highest similarity, one query of a class. Behind the "
        f"dots: the nearest image of the query's own class and its rank. {_SIGNS}"
    )
    return f"<p class=note>{escape(reading)}</p>{''.join(blocks)}" if blocks else ""


def pairs_of(run: OpenedRun, payload: Payload) -> tuple[str, str]:
    """The training classes that lie closest together and farthest apart, with images of both: a summary and a body."""
    run = compared_run(run)
    classes, vectors, what = class_vectors(run)
    names, body = run.data.table.class_names, ""
    for title, pairs in zip(("Closest", "Farthest"), extreme_pairs(vectors, PAIRS_SHOWN), strict=True):
        body += f"<div><h4>{title}</h4>"
        for *places, cosine in pairs:
            labels = [int(classes[place]) for place in places]
            rows = "".join(examples(run, label, _PAIR_EXAMPLES, payload) for label in labels)
            said = f"{' and '.join(names[label] for label in labels)}: similarity {number(cosine)}"
            body += f'<div class="pair"><p class="row-name">{escape(said)}</p>{rows}</div>'
        body += "</div>"
    summary = f"{counted(len(classes), 'training class')}, by the cosine similarity of their {what}"
    return summary, f"<div class=charts>{body}</div>"


def pairs_section(pairs: Mapping[str, tuple[str, str]], *, titled: bool) -> str:
    """The pairs of every group by its title, which is said where there are several."""
    blocks: list[str] = []
    for title, (summary, body) in pairs.items():
        said = f"{title}: {summary}" if titled else summary
        blocks.append(details(said[:1].upper() + said[1:], body, opened=not blocks))
    return "".join(blocks)


def examples(run: OpenedRun, label: int, count: int, payload: Payload) -> str:
    """Some training images of a class in a row."""
    pictures = "".join(shot(payload, run, row) for row in run.examples(label, count))
    return f'<div class="shots nameless">{pictures}</div>'


_READING = {
    "by t-SNE": "In a map by t-SNE near images are alike; distances between far groups mean little.",
    "by principal components": "A map by principal components shows the two directions in which the embeddings vary "
    "most: groups that lie upon each other in it can be apart in the others.",
}
_SIGNS = "Green and ✓: the query's class; red and ✗: another."


def _map_chart(run: OpenedRun, found: Map, what: str, payload: Payload) -> str:
    everything = np.concatenate([found.points, found.proxies.reshape(-1, 2)])
    low, wide = everything.min(0), max(float(np.ptp(everything, axis=0).max()), 1e-12)

    def placed(points: NDArray[np.float64]) -> list[list[int]]:
        # Whole numbers keep the page small; upwards is up, as in the figures that nearkin plot draws.
        scaled = (points - low) / wide * _GRID
        scaled[:, 1] = _GRID * float(np.ptp(everything[:, 1])) / wide - scaled[:, 1]
        return np.rint(scaled).astype(np.int64).tolist()  # type: ignore[no-any-return]

    index, rows = np.searchsorted(found.classes, found.labels), found.rows
    pictured = set(np.linspace(0, len(rows) - 1, min(MAP_IMAGES, len(rows))).astype(int).tolist())
    images = [payload.image(run, row) if place in pictured else None for place, row in enumerate(rows.tolist())]
    spec: dict[str, Any] = {
        "kind": "map",
        "classes": [run.data.table.class_names[label] for label in found.classes.tolist()],
        "points": [
            [*point, kind, -1 if image is None else image]
            for point, kind, image in zip(placed(found.points), index.tolist(), images, strict=True)
        ],
        "proxies": [
            [*point, kind] for kind, places in enumerate(found.proxies) for point in placed(places.reshape(-1, 2))
        ],
    }
    if found.how == "the embedding itself":
        centre, edge = placed(np.array([[0.0, 0.0], [1.0, 0.0]]))
        spec["circle"] = [*centre, edge[0] - centre[0]]
    shown = sum(image is not None for image in images)
    caption = f"{what}; {counted(len(rows), 'image')} of {counted(len(found.classes), 'class')}, {found.how}"
    caption += f", {shown:,} with their image" if shown < len(rows) else ""
    step = f", weights of step {run.step:,}" if run.folder.last_checkpoint.exists() else ""
    return payload.chart(spec, caption=f"{caption}, seed {run.recipe.training.seed}{step}", label=caption)


def _query_block(asked: str, answers: str) -> str:
    return f'<div class="query"><div class="asked">{asked}</div><div class="answers">{answers}</div></div>'


def _found_shots(found: QueryResults, query: int, payload: Payload) -> str:
    return "".join(shot(payload, found.run, each.row, right=each.right) for each in found.neighbours_of(query))


def _among(found: QueryResults) -> str:
    used, every = len(found.sample.rows), len(found.run.test_rows)
    part = f" of {every:,}, whole classes drawn by chance" if used < every else ""
    return f"{counted(used, 'test image')}{part}, {found.run.protocol.test_classes}"
