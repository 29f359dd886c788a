"""The report: one HTML file that holds everything, styles, script and images, and asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from html import escape
from pathlib import Path
from string import Template
from typing import TypeVar

import nearkin
from nearkin.disk import check_writable, write_atomically
from nearkin.errors import NearkinError, RecipeError
from nearkin.report.figure_style import CLASS_COLOURS, RUN_COLOURS
from nearkin.report.figures._maps import without_tsne
from nearkin.report.formats import counted
from nearkin.report.opened_run import IMAGE_LIMIT, OpenedRun, ViewOptions
from nearkin.report.page._parts import Payload
from nearkin.report.page.charts import confidence_section, covering_section, curves_section, uncertainty_section
from nearkin.report.page.differences import differences_section
from nearkin.report.page.pictures import (
    Chart,
    classes_section,
    map_section,
    neighbours_section,
    pairs_of,
    pairs_section,
    test_map_chart,
    training_map_chart,
    worst_section,
)
from nearkin.report.page.tables import cost_section, reproduce_section, scores_section
from nearkin.report.query_results import QueryResults, retrieve
from nearkin.report.reliability import reliability_of_run
from nearkin.report.run_groups import Gathered, RunGroup, gather_runs
from nearkin.runs.data import Progress

__all__ = ["WrittenReport", "write_report"]

T = TypeVar("T")

SCORED_LIMIT = 15_000
"""Test images of a run that are embedded; beyond that some whole classes stand for all."""
MOST_LOOKED_AT = 8
"""Groups whose weights are loaded for maps and neighbours; more would make the page long and not clearer."""


@dataclass(frozen=True)
class WrittenReport:
    """The file, its size in bytes, how many images it holds, and what it does not show and why."""

    file: Path
    size: int
    images: int
    missing: tuple[str, ...]


def write_report(
    paths: Sequence[str | Path],
    output: str | Path | None = None,
    *,
    title: str | None = None,
    view: ViewOptions | None = None,
    progress: Progress | None = None,
) -> WrittenReport:
    """Write a report on runs and on studies, whose folders stand for all their runs.

    Args:
        paths: run folders, or folders of ``nearkin compare``.
        output: the file; default: ``report.html`` in the folder when there is one, else in the working directory.
        title: the page's heading; default: the data and the methods.
        view: which weights, classes and device to use for maps and neighbours.
        progress: called as the decoding of images goes on.
    """
    file = Path(output or (Path(paths[0]) / "report.html" if len(paths) == 1 else "report.html"))
    if file.is_dir():
        raise RecipeError(f"{file} is a folder: name the file to write, such as {file / 'report.html'}")
    if output is not None and not file.parent.is_dir():
        raise RecipeError(f"there is no folder {str(file.parent)!r} to write {file.name} to")
    check_writable(file.parent)
    gathered = gather_runs(paths, view, progress=progress)
    page = _Page(gathered)
    content = page.render(title or _title(gathered)).encode()
    write_atomically(file, content)
    return WrittenReport(file, len(content), len(page.payload.images), tuple(page.missing))


class _Page:
    """Sections in the making; what cannot be shown is written down with the reason and left out."""

    def __init__(self, gathered: Gathered) -> None:
        self.gathered = gathered
        self.payload = Payload()
        self._missing: dict[str, list[str]] = {}
        self._sections: list[tuple[str, str, str]] = []
        """Anchors that links lead to, headings and bodies."""

    @property
    def missing(self) -> list[str]:
        """What is not shown, all that is for the same reason on one line with it."""
        grouped = [f"{', '.join(dict.fromkeys(parts))}: {reason}" for reason, parts in self._missing.items()]
        return [*self.gathered.left_out, *grouped]

    def render(self, title: str) -> str:
        groups = self.gathered.groups
        self._add("scores", "Scores", lambda: scores_section(groups))
        for number, of_data in enumerate(self.gathered.by_data, 1):
            self._add_data(of_data, number)
        self._add("cost", "Cost", lambda: cost_section(groups))
        self._add("reproduce", "Recipes, environment and commands", lambda: reproduce_section(groups))
        script, style = _asset("page.js"), _colours() + _asset("page.css")
        script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        missing = "".join(f"<li>{escape(line)}</li>" for line in self.missing)
        return Template(_asset("page.html")).substitute(
            title=escape(title),
            policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{script_hash}'",
            style=style,
            subtitle=escape(self._subtitle()),
            links="".join(f'<li><a href="#{name}">{escape(head)}</a></li>' for name, head, _ in self._sections),
            sections="\n".join(
                f'<section id="{name}"><h2>{escape(head)}</h2>{body}</section>' for name, head, body in self._sections
            ),
            footer=escape(self._footer()),
            missing=f"<details><summary>Not shown</summary><ul>{missing}</ul></details>" if missing else "",
            data=self.payload.as_script(),
            script=script,
        )

    def _add_data(self, groups: Sequence[RunGroup], number: int) -> None:
        """The sections of the runs that share their data."""
        payload = self.payload
        add = partial(self._add, number=number, data=groups[0].data if len(self.gathered.by_data) > 1 else "")
        add("differences", "Against their base", lambda: differences_section(groups))
        add("curves", "Curves", lambda: curves_section(groups, payload))
        looked, left = groups[:MOST_LOOKED_AT], len(groups[MOST_LOOKED_AT:])
        if left:
            self._miss(f"maps, neighbours and classes of {left} of {len(groups)} rows", "name fewer runs")
        found: dict[str, QueryResults] = {}
        for group in looked:
            what = f"neighbours, classes and test map of {group.title}"
            if (retrieved := self._attempt(what, partial(_retrieved, group.runs[0]))) is not None:
                found[group.title] = retrieved
        place = len(self._sections)
        if found:
            add("neighbours", "Nearest neighbours", lambda: neighbours_section(found, payload))
            add("classes", "Scores by class", lambda: classes_section(found))
            add("worst", "Worst queries", lambda: worst_section(found, payload))
        # The maps come before, but get their images last: should these become too many, the maps go without.
        after = self._sections[place:]
        del self._sections[place:]
        add("map", "Map of the embeddings", lambda: map_section(self._maps(looked, found)))
        self._sections += after
        confidences = {
            place: curve
            for place, group in enumerate(looked)
            if (curve := self._attempt(f"confidence of {group.title}", partial(reliability_of_run, group.runs[0])))
        }
        add("confidence", "Confidence", lambda: confidence_section(looked, confidences, payload))
        pairs = {
            group.title: pair
            for group in looked
            if (pair := self._attempt(f"closest classes of {group.title}", partial(pairs_of, group.runs[0], payload)))
        }
        add("pairs", "Closest and farthest classes", lambda: pairs_section(pairs, titled=len(looked) > 1))
        add("covering", "Covering radius and sub-problems", lambda: covering_section(groups, payload))
        add("uncertainty", "Uncertainty of the proxies", lambda: uncertainty_section(looked, payload))

    def _maps(self, groups: Sequence[RunGroup], found: Mapping[str, QueryResults]) -> dict[str, list[Chart]]:
        maps: dict[str, list[Chart]] = {}
        for group in groups:
            makers = {"training": partial(training_map_chart, group.runs[0], self.payload)}
            if group.title in found:
                makers["test"] = partial(test_map_chart, found[group.title], self.payload)
            charts = [self._attempt(f"{which} map of {group.title}", make) for which, make in makers.items()]
            maps[group.title] = [chart for chart in charts if chart is not None]
        hows = {how for charts in maps.values() for _, how in charts}
        if "by principal components" in hows and (reason := without_tsne()) is not None:
            self._miss("maps by t-SNE, which are by principal components instead", reason)
        return maps

    def _add(self, name: str, title: str, make: Callable[[], str], number: int = 0, data: str = "") -> None:
        """A section unless it is empty; with the number and the name of its data where the page is on several."""
        body = self._attempt(f"{name} on {data}" if data else name, make)
        if body:
            self._sections.append((f"{name}-{number}" if data else name, f"{title}: {data}" if data else title, body))

    def _attempt(self, what: str, make: Callable[[], T]) -> T | None:
        try:
            return make()
        except NearkinError as error:
            self._miss(what, error)
            return None

    def _miss(self, what: str, reason: object) -> None:
        self._missing.setdefault(str(reason), []).append(what)

    def _subtitle(self) -> str:
        groups = self.gathered.groups
        runs = sum(len(group.runs) for group in groups)
        protocols = " and ".join(dict.fromkeys(group.recipe.protocol.name for group in groups))
        recipes = counted(len(groups), "recipe")
        return f"{counted(runs, 'run')} of {recipes} on {self.gathered.data}, {protocols} protocol"

    def _footer(self) -> str:
        when = datetime.now(UTC).strftime("%Y-%m-%d")
        images = len(self.payload.images)
        held = f" It holds {counted(images, 'image')}, reduced in size." if images else ""
        full = f" {self.payload.refused:,} more did not fit." if self.payload.refused else ""
        return f"Written by nearkin {nearkin.__version__} on {when}. This file needs no network.{held}{full}"


def _retrieved(run: OpenedRun) -> QueryResults:
    _ = run.trained  # first: without weights there is no need to read the images
    few = len(run.test_rows) <= IMAGE_LIMIT
    return retrieve(run, run.test_sample if few else run.sample(run.test_rows, SCORED_LIMIT))


def _title(gathered: Gathered) -> str:
    titles = [group.title for group in gathered.groups]
    named = ", ".join(dict.fromkeys(titles)) if len(titles) <= 3 else f"{len(titles)} recipes"
    return f"{named} on {gathered.data}"


def _colours() -> str:
    """The colours of all nearkin's pictures as variables of the style sheet."""
    named = {f"--run-{place}": colour for place, colour in enumerate(RUN_COLOURS)}
    named |= {f"--class-{place}": colour for place, colour in enumerate(CLASS_COLOURS)}
    return f":root{{{';'.join(f'{name}:{colour}' for name, colour in named.items())}}}\n"


def _asset(name: str) -> str:
    return (importlib.resources.files("nearkin.report.page") / name).read_text(encoding="utf-8")
