"""The report: one HTML file that holds everything, styles, script and images, and asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from string import Template

import nearkin
from nearkin.disk import check_writable, write_atomically
from nearkin.errors import NearkinError, RecipeError
from nearkin.report.opened_run import Look
from nearkin.report.page._parts import Payload, Section, counted, escape
from nearkin.report.page.charts import covering_section, curves_section, uncertainty_section
from nearkin.report.page.pairs import pairs_section
from nearkin.report.page.pictures import (
    Chart,
    classes_section,
    map_section,
    neighbours_section,
    test_map_chart,
    training_map_chart,
    worst_section,
)
from nearkin.report.page.tables import cost_section, reproduce_section, scores_section
from nearkin.report.plots._maps import without_tsne
from nearkin.report.plots._style import CLASS_COLOURS, RUN_COLOURS
from nearkin.report.retrieved import Retrieved, retrieve
from nearkin.report.run_groups import Gathered, RunGroup, gather_runs
from nearkin.report.score_tables import score_table
from nearkin.runs.data import Progress

__all__ = ["WrittenReport", "default_report_file", "write_report"]

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
    look: Look | None = None,
    progress: Progress | None = None,
) -> WrittenReport:
    """Write a report on runs and on studies, whose folders stand for all their runs.

    Args:
        paths: run folders, or folders of ``nearkin compare``.
        output: the file; default: ``report.html`` in the folder when there is one, else in the working directory.
        title: the page's heading; default: the data and the methods.
        look: which weights, classes and device to use for maps and neighbours.
        progress: called as the decoding of images goes on.
    """
    file = default_report_file(paths) if output is None else Path(output)
    if file.is_dir():
        raise RecipeError(f"{file} is a folder: name the file to write, such as {file / 'report.html'}")
    if output is not None and not file.parent.is_dir():
        raise RecipeError(f"there is no folder {str(file.parent)!r} to write {file.name} to")
    check_writable(file.parent)
    gathered = gather_runs(paths, look, progress=progress)
    page = _Page(gathered)
    content = page.render(title or _title(gathered)).encode()
    write_atomically(file, content)
    return WrittenReport(file, len(content), len(page.payload.images), tuple(page.missing))


def default_report_file(paths: Sequence[str | Path]) -> Path:
    """``report.html`` in the only folder there is, or else in the working directory."""
    return Path(paths[0]) / "report.html" if len(paths) == 1 else Path("report.html")


class _Page:
    """Sections in the making; what cannot be shown is written down with the reason and left out."""

    def __init__(self, gathered: Gathered) -> None:
        self.gathered = gathered
        self.payload = Payload()
        self._missing: dict[str, list[str]] = {}
        self.sections: list[Section] = []

    @property
    def missing(self) -> list[str]:
        """What is not shown, all that is for the same reason on one line with it."""
        grouped = [f"{', '.join(dict.fromkeys(parts))}: {reason}" for reason, parts in self._missing.items()]
        return [*self.gathered.left_out, *grouped]

    def _miss(self, what: str, reason: object) -> None:
        self._missing.setdefault(str(reason), []).append(what)

    def render(self, title: str) -> str:
        groups = self.gathered.groups
        self._add("scores", lambda: scores_section(score_table(groups), groups))
        for number, of_data in enumerate(self.gathered.by_data):
            self._add_data(of_data, number)
        self._add("cost", lambda: cost_section(groups))
        self._add("recipes", lambda: reproduce_section(groups))
        script, style = _asset("page.js"), _colours() + _asset("page.css")
        script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        missing = "".join(f"<li>{escape(line)}</li>" for line in self.missing)
        return Template(_asset("page.html")).substitute(
            title=escape(title),
            policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{script_hash}'",
            style=style,
            subtitle=escape(self._subtitle()),
            links="".join(f'<li><a href="#{each.name}">{escape(each.title)}</a></li>' for each in self.sections),
            sections="\n".join(
                f'<section id="{each.name}"><h2>{escape(each.title)}</h2>{each.body}</section>'
                for each in self.sections
            ),
            footer=escape(self._footer()),
            missing=f"<details><summary>Not shown</summary><ul>{missing}</ul></details>" if missing else "",
            data=self.payload.as_script(),
            script=script,
        )

    def _add_data(self, groups: Sequence[RunGroup], number: int) -> None:
        """The sections of the runs that share their data."""
        several = len(self.gathered.by_data) > 1

        def add(name: str, make: Callable[[], Section | None]) -> None:
            self._add(name, make, suffix=f"-{number + 1}" if several else "", of=groups[0].data if several else "")

        add("curves", lambda: curves_section(groups, self.payload))
        if len(groups) > MOST_LOOKED_AT:
            self._miss(
                f"maps, neighbours and classes of {len(groups) - MOST_LOOKED_AT} of {len(groups)} rows",
                "name fewer runs",
            )
        looked = groups[:MOST_LOOKED_AT]
        found = self._retrieved(looked)
        place = len(self.sections)
        if found:
            add("neighbours", lambda: neighbours_section(found, self.payload))
            add("classes", lambda: classes_section(found))
            add("worst", lambda: worst_section(found, self.payload))
        # The maps come before, but get their images last: should these become too many, the maps go without.
        after = self.sections[place:]
        del self.sections[place:]
        add("map", lambda: map_section(self._maps(looked, found)))
        self.sections += after
        add("pairs", lambda: pairs_section(looked, self.payload, self._miss))
        add("covering", lambda: covering_section(groups, self.payload))
        add("uncertainty", lambda: uncertainty_section(looked, self.payload))

    def _retrieved(self, groups: Sequence[RunGroup]) -> list[tuple[str, Retrieved]]:
        found = []
        for group in groups:
            try:
                run = group.runs[0]
                _ = run.trained  # first: without weights there is no need to read the images
                found.append((group.title, retrieve(run, run.sample(run.test_rows, SCORED_LIMIT))))
            except NearkinError as error:
                self._miss(f"neighbours, classes and test map of {group.title}", error)
        return found

    def _maps(
        self, groups: Sequence[RunGroup], found: Sequence[tuple[str, Retrieved]]
    ) -> list[tuple[str, list[Chart]]]:
        tested = dict(found)
        charts: list[tuple[str, list[Chart]]] = []
        for group in groups:
            run, retrieved = group.runs[0], tested.get(group.title)
            drawn = [self._chart(f"training map of {group.title}", partial(training_map_chart, run, self.payload))]
            if retrieved is not None:
                drawn.append(
                    self._chart(f"test map of {group.title}", partial(test_map_chart, retrieved, self.payload))
                )
            charts.append((group.title, drawn))
        if any(how == "by principal components" for _, drawn in charts for _, how in drawn):
            reason = without_tsne()
            if reason is not None:
                self._miss("maps by t-SNE, which are by principal components instead", reason)
        return charts

    def _chart(self, name: str, make: Callable[[], Chart]) -> Chart:
        try:
            return make()
        except NearkinError as error:
            self._miss(name, error)
            return "", ""

    def _add(self, name: str, make: Callable[[], Section | None], *, suffix: str = "", of: str = "") -> None:
        try:
            section = make()
        except NearkinError as error:
            self._miss(f"{name}{f' on {of}' if of else ''}", error)
            return
        if section is not None:
            title = f"{section.title}: {of}" if of else section.title
            self.sections.append(Section(section.name + suffix, title, section.body))

    def _subtitle(self) -> str:
        groups = self.gathered.groups
        runs = sum(len(group.runs) for group in groups)
        data = ", ".join(dict.fromkeys(group.data for group in groups))
        protocols = " and ".join(dict.fromkeys(group.recipe.protocol.name for group in groups))
        return f"{counted(runs, 'run')} of {counted(len(groups), 'recipe')} on {data}, {protocols} protocol"

    def _footer(self) -> str:
        when = datetime.now(UTC).strftime("%Y-%m-%d")
        images = len(self.payload.images)
        held = f" It holds {counted(images, 'image')}, reduced in size." if images else ""
        full = f" {len(self.payload.refused):,} more did not fit." if self.payload.refused else ""
        return f"Written by nearkin {nearkin.__version__} on {when}. This file needs no network.{held}{full}"


def _title(gathered: Gathered) -> str:
    groups = gathered.groups
    data = ", ".join(dict.fromkeys(group.data for group in groups))
    if len(groups) <= 3:
        return f"{', '.join(dict.fromkeys(group.title for group in groups))} on {data}"
    return f"{len(groups)} recipes on {data}"


def _colours() -> str:
    """The colours of all nearkin's pictures as variables of the style sheet."""
    named = {f"--run-{place}": colour for place, colour in enumerate(RUN_COLOURS)}
    named |= {f"--class-{place}": colour for place, colour in enumerate(CLASS_COLOURS)}
    return f":root{{{';'.join(f'{name}:{colour}' for name, colour in named.items())}}}\n"


def _asset(name: str) -> str:
    return (importlib.resources.files("nearkin.report.page") / name).read_text(encoding="utf-8")
