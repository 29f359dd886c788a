"""Sections with images: maps of the embeddings, neighbours, scores by class, worst queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.evaluation.scores import score_named
from nearkin.report.opened_run import OpenedRun
from nearkin.report.page._parts import Payload, Section, counted, details, escape, shot, table
from nearkin.report.plots._maps import Map, map_of_test, training_map, training_words
from nearkin.report.retrieved import ClassScore, Neighbour, Retrieved

QUERIES = 8
WORST = 6
MAP_IMAGES = 500
"""Points of a map that have an image."""
CLASS_ROWS = 300
"""Lines of the table of classes; of more classes the best and the worst are shown."""
_GRID = 2000


Chart = tuple[str, str]
"""A chart as HTML, and how its map was made; both empty where there is none."""


def training_map_chart(run: OpenedRun, payload: Payload) -> Chart:
    """A map of some training classes with their proxies as stars."""
    opened = run.at_proxies()
    found = training_map(opened)
    rows = opened.training_sample.of_classes(found.classes).rows
    return _map_chart(opened, found, rows, training_words(found), payload), found.how


def test_map_chart(found: Retrieved, payload: Payload) -> Chart:
    """A map of some test classes."""
    shown = map_of_test(found.run, found.sample)
    rows = found.sample.of_classes(shown.classes).rows
    return _map_chart(found.run, shown, rows, f"Test: {found.run.protocol.test_classes}", payload), shown.how


def map_section(charts: Sequence[tuple[str, Sequence[Chart]]]) -> Section | None:
    """Maps under the titles of their groups."""
    blocks = []
    for title, drawn in charts:
        both = "".join(chart for chart, _ in drawn)
        blocks += [f"<h3>{escape(title)}</h3><div class=charts>{both}</div>"] if both else []
    if not blocks:
        return None
    hows = {how for _, drawn in charts for _, how in drawn}
    reading = "Point at or tap an image's point to see it; a class's name lifts that class out."
    reading += "".join(f" {said}" for how, said in _READING.items() if how in hows)
    return Section("map", "Map of the embeddings", f"{''.join(blocks)}<p class=note>{escape(reading)}</p>")


def neighbours_section(found: Sequence[tuple[str, Retrieved]], payload: Payload) -> Section | None:
    """The nearest neighbours of the same queries for every group."""
    first = found[0][1]
    blocks = []
    for chosen in first.choose_queries(QUERIES):
        row, asked = int(first.queries.rows[chosen]), _query_shot(first, chosen, payload)
        lines = ""
        for title, each in found:
            place = each.place_of.get(row)
            if place is None:
                continue
            named = f'<p class="row-name">{escape(title)}</p>' if len(found) > 1 else ""
            lines += f'<div class="row">{named}<div class="shots">{_found_shots(each, place, payload)}</div></div>'
        blocks.append(_query_block(asked, lines))
    if not blocks:
        return None
    reading = f"Queries at the left, chosen by chance; nearest first among {_among(first)}. {_SIGNS}"
    return Section("neighbours", "Nearest neighbours", f"<p class=note>{escape(reading)}</p>{''.join(blocks)}")


def classes_section(found: Sequence[tuple[str, Retrieved]]) -> Section | None:
    """Scores of every test class, sortable, with bars."""
    by_group = [{score.label: score for score in each.classes()} for _, each in found]
    first = by_group[0]
    if len(first) < 2:
        return None
    order = sorted(first, key=lambda label: (first[label].precision, label))
    shown, said = order, counted(len(order), "class", "classes")
    if len(order) > CLASS_ROWS:
        half = CLASS_ROWS // 2
        shown = [*order[:half], *order[-half:]]
        said = f"the {half} worst and the {half} best of {len(order):,} classes by MAP@R"
    names = found[0][1].run.data.table.class_names
    rows = []
    for label in shown:
        cells = "".join(_bars(scores.get(label)) for scores in by_group)
        rows.append(
            f'<tr><th scope="row">{escape(names[label])}</th><td class=number>{first[label].queries}</td>{cells}</tr>'
        )
    several = len(found) > 1
    headings = ["class", "queries"]
    for title, _ in found:
        headings += [f"{metric}{f', {title}' if several else ''}" for metric in ("R@1", "MAP@R")]
    seeds = ", ".join(dict.fromkeys(str(each.run.recipe.training.seed) for _, each in found))
    caption = f"In per cent, {said}; {_among(found[0][1])}; seed {seeds}. A click on a heading sorts."
    body = table(headings, rows, kind="classes sortable", caption=caption)
    return Section("classes", "Scores by class", f'<div class="tall">{body}</div>')


def worst_section(found: Sequence[tuple[str, Retrieved]], payload: Payload) -> Section | None:
    """Queries that went most wrong, what they found instead, and where the first of their own class came."""
    blocks: list[str] = []
    for title, each in found:
        queries = each.worst(WORST)
        lines = ""
        for query in queries:
            asked = _query_shot(each, query, payload)
            neighbour, rank = each.first_right(query)
            own = _shot(each.run, neighbour, payload, note=f"rank {rank:,}")
            shots = f'{_found_shots(each, query, payload)}<span class="gap">…</span>{own}'
            lines += _query_block(asked, f'<div class="shots">{shots}</div>')
        if lines:
            wrong = int((each.recall == 0).sum())
            total = int((each.true > 0).sum())
            summary = f"{title}: {wrong:,} of {counted(total, 'query', 'queries')} have a wrong nearest neighbour"
            blocks.append(details(summary, lines, opened=not blocks))
    if not blocks:
        return None
    reading = (
        "The lowest MAP@R, among equal ones the mistake with the highest similarity, one query of a class. Behind the "
        f"dots: the nearest image of the query's own class and its rank. {_SIGNS}"
    )
    return Section("worst", "Worst queries", f"<p class=note>{escape(reading)}</p>{''.join(blocks)}")


_READING = {
    "by t-SNE": "In a map by t-SNE near images are alike; distances between far groups mean little.",
    "by principal components": "A map by principal components shows the two directions in which the embeddings vary "
    "most: groups that lie upon each other in it can be apart in the others.",
}
_SIGNS = "Green and ✓: the query's class; red and ✗: another."


def _map_chart(run: OpenedRun, found: Map, rows: NDArray[np.int64], what: str, payload: Payload) -> str:
    everything = np.concatenate([found.points, found.proxies.reshape(-1, 2)])
    low, wide = everything.min(0), max(float(np.ptp(everything, axis=0).max()), 1e-12)

    def placed(points: NDArray[np.float64]) -> list[list[int]]:
        # Whole numbers keep the page small; upwards is up, as in the figures that nearkin plot draws.
        scaled = (points - low) / wide * _GRID
        scaled[:, 1] = _GRID * float(np.ptp(everything[:, 1])) / wide - scaled[:, 1]
        return np.rint(scaled).astype(np.int64).tolist()  # type: ignore[no-any-return]

    index = np.searchsorted(found.classes, found.labels)
    pictured = set(np.linspace(0, len(rows) - 1, min(MAP_IMAGES, len(rows))).astype(int).tolist())
    images = [_image(run, row, payload) if place in pictured else None for place, row in enumerate(rows.tolist())]
    spec: dict[str, Any] = {
        "kind": "map",
        "classes": [_name(run, label) for label in found.classes.tolist()],
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
    caption = f"{what}; {counted(len(rows), 'image')} of {counted(len(found.classes), 'class', 'classes')}, {found.how}"
    caption += f", {shown:,} with their image" if shown < len(rows) else ""
    step = f", weights of step {run.step:,}" if run.folder.last_checkpoint.exists() else ""
    return payload.chart(spec, caption=f"{caption}, seed {run.recipe.training.seed}{step}", label=caption)


def _query_shot(found: Retrieved, query: int, payload: Payload) -> str:
    row, label = int(found.queries.rows[query]), int(found.queries.labels[query])
    return shot(_image(found.run, row, payload), _name(found.run, label))


def _query_block(asked: str, answers: str) -> str:
    return f'<div class="query"><div class="asked">{asked}</div><div class="answers">{answers}</div></div>'


def _found_shots(found: Retrieved, query: int, payload: Payload) -> str:
    return "".join(_shot(found.run, neighbour, payload) for neighbour in found.neighbours_of(query))


def _shot(run: OpenedRun, neighbour: Neighbour, payload: Payload, *, note: str = "") -> str:
    image = _image(run, neighbour.row, payload)
    return shot(image, _name(run, neighbour.label), right=neighbour.right, note=note)


def _bars(score: ClassScore | None) -> str:
    if score is None:
        return "<td class=number>–</td><td class=number>–</td>"
    return "".join(
        f'<td class="number bar" data-value="{value:.6f}" style="--share:{100 * value:.1f}%">'
        f"{score_named('R@1').text(value)}</td>"
        for value in (score.recall, score.precision)
    )


def _among(found: Retrieved) -> str:
    used, every = len(found.sample.rows), len(found.run.test_rows)
    part = f" of {every:,}, whole classes drawn by chance" if used < every else ""
    return f"{counted(used, 'test image')}{part}, {found.run.protocol.test_classes}"


def _image(run: OpenedRun, row: int, payload: Payload) -> int | None:
    return payload.image((id(run.data), row), run.data.images[row])


def _name(run: OpenedRun, label: int) -> str:
    return str(run.data.table.class_names[label])
