"""The report: one HTML file with tables and figures, which needs no network."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import nearkin
from nearkin.catalogue import plot_names
from nearkin.data.cache import Progress
from nearkin.data.table import split_class_name
from nearkin.disk import check_writable, write_atomically
from nearkin.errors import NearkinError, RecipeError
from nearkin.evaluation.scores import is_score, score_named
from nearkin.evaluation.statistics import Statistic
from nearkin.report.differences import Comparison, differences_part, how_to_read
from nearkin.report.figure_style import figure_bytes
from nearkin.report.figures import draw_figure, figure_module
from nearkin.report.listings import summary_of
from nearkin.report.opened_run import IMAGE_LIMIT, NothingToShowError, OpenedRun, ViewOptions
from nearkin.report.query_results import QueryResults, retrieve
from nearkin.report.run_groups import Gathered, RunGroup, gather_runs
from nearkin.report.score_tables import score_table
from nearkin.report.table import NOTHING, Line, Part, counted, html_table
from nearkin.runs.folder import Outcome

SCORED_LIMIT = 15_000
"""Of more test images, some whole classes are embedded for the scores by class."""
MOST_GROUPS = 8
"""Groups whose weights are loaded for maps, figures and scores by class."""
CLASS_ROWS = 300
"""Lines of the table of classes; of more classes the best and the worst are shown."""
ALL_SEEDS = ("curves", "covering")
"""Figures of all runs; the others show the first run of each group."""
FIRST = ("curves", "map", "neighbours", "worst")
"""The order of the sections; other figures follow by name."""


def write_report(
    paths: Sequence[str | Path],
    output: str | Path | None = None,
    *,
    view: ViewOptions | None = None,
    progress: Progress | None = None,
) -> tuple[Path, list[str]]:
    """Write a report on runs, or on studies, whose folders stand for all their runs.

    Args:
        paths: run folders, or folders of ``nearkin compare``.
        output: the file; default: ``report.html`` in the folder when there is one, else in the working directory.
        view: which weights, classes and device to use for figures.
        progress: called while images are decoded.

    Returns:
        The file, and what it does not show with the reasons.
    """
    file = Path(output or (Path(paths[0]) / "report.html" if len(paths) == 1 else "report.html"))
    if file.is_dir():
        raise RecipeError(f"{file} is a folder: name the file to write, such as {file / 'report.html'}")
    if output is not None and not file.parent.is_dir():
        raise RecipeError(f"there is no folder {str(file.parent)!r} to write {file.name} to")
    check_writable(file.parent)
    page = _Page(gather_runs(paths, view, progress=progress))
    write_atomically(file, page.render().encode())
    return file, page.missing


class _Page:
    """Sections in the making; what cannot be shown is listed with the reason."""

    def __init__(self, gathered: Gathered) -> None:
        self.gathered = gathered
        self._missing: dict[str, list[str]] = {}
        self._sections: list[tuple[str, str, str]] = []
        """Anchors, headings and bodies."""

    @property
    def missing(self) -> list[str]:
        """What is not shown, one line for each reason."""
        grouped = [f"{', '.join(dict.fromkeys(parts))}: {reason}" for reason, parts in self._missing.items()]
        return [*self.gathered.left_out, *grouped]

    def render(self) -> str:
        groups = self.gathered.groups
        titles = list(dict.fromkeys(group.title for group in groups))
        methods = ", ".join(titles) if len(titles) <= 3 else f"{len(titles)} recipes"
        self._add("scores", "Scores", lambda: scores_section(groups))
        for number, same_data in enumerate(self.gathered.by_data, 1):
            self._add_data(same_data, number)
        self._add("cost", "Cost", lambda: cost_section(groups))
        self._add("reproduce", "Recipes, environment and commands", lambda: reproduce_section(groups))
        script = _asset("page.js")
        script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        missing = "".join(f"<li>{escape(line)}</li>" for line in self.missing)
        runs = counted(sum(len(group.runs) for group in groups), "run")
        protocols = " and ".join(dict.fromkeys(group.recipe.protocol.name for group in groups))
        subtitle = f"{runs} of {counted(len(groups), 'recipe')} on {self.gathered.data}, {protocols} protocol"
        when = datetime.now(UTC).strftime("%Y-%m-%d")
        return Template(_asset("page.html")).substitute(
            title=escape(f"{methods} on {self.gathered.data}"),
            policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{script_hash}'",
            style=_asset("page.css"),
            subtitle=escape(subtitle),
            links="".join(f'<li><a href="#{name}">{escape(head)}</a></li>' for name, head, _ in self._sections),
            sections="\n".join(
                f'<section id="{name}"><h2>{escape(head)}</h2>{body}</section>' for name, head, body in self._sections
            ),
            footer=escape(f"Written by nearkin {nearkin.__version__} on {when}. This file needs no network."),
            missing=f"<details><summary>Not shown</summary><ul>{missing}</ul></details>" if missing else "",
            script=script,
        )

    def _add_data(self, groups: Sequence[RunGroup], number: int) -> None:
        """The sections of the runs that share their data."""
        add = partial(self._add, number=number, data=groups[0].data if len(self.gathered.by_data) > 1 else "")
        add("differences", "Differences from the base", lambda: differences_section(groups))
        if left := len(groups[MOST_GROUPS:]):
            self._miss(f"figures and scores by class of {left} of {len(groups)} rows", "name fewer runs")
        shown = groups[:MOST_GROUPS]
        for name in sorted(plot_names(), key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name)):
            add(name, name.replace("-", " ").capitalize(), partial(self._figures, name, groups))
            if name == "worst":
                add("classes", "Scores by class", partial(self._classes_section, shown))

    def _figures(self, name: str, groups: Sequence[RunGroup]) -> str:
        """The figure ``name`` as ``nearkin plot`` draws it; of one run, one for each group under its title."""
        runs = [run for group in groups for run in group.runs]
        if name not in ALL_SEEDS:
            runs = [group.runs[0] for group in groups[:MOST_GROUPS]]
        body = ""
        for run, figure in draw_figure(name, runs):
            if isinstance(figure, NearkinError):
                if not isinstance(figure, NothingToShowError):
                    self._miss(name if run is None else f"{name} of {run.title}", figure)
                continue
            body += f"<h3>{escape(run.title)}</h3>" if run is not None and len(runs) > 1 else ""
            kind, mime = ("png", "png") if any(axis.images for axis in figure.axes) else ("svg", "svg+xml")
            content = base64.b64encode(figure_bytes(figure, kind, dpi=110)).decode()
            alt = " ".join(figure.get_suptitle().split())
            body += f'<figure class="plot"><img src="data:image/{mime};base64,{content}" alt="{escape(alt)}"></figure>'
        summary = summary_of(figure_module(name))
        return f"<p class=note>{escape(summary)}</p>{body}" if body else ""

    def _classes_section(self, groups: Sequence[RunGroup]) -> str:
        results = {}
        for group in groups:
            result = self._attempt(f"scores by class of {group.title}", partial(_query_results, group.runs[0]))
            if result is not None:
                results[group.title] = result
        return classes_table(results)

    def _add(self, name: str, title: str, make: Callable[[], str], number: int = 0, data: str = "") -> None:
        """A section unless it is empty; with the number and name of its data where the page has several."""
        if body := self._attempt(f"{name} on {data}" if data else name, make):
            self._sections.append((f"{name}-{number}" if data else name, f"{title}: {data}" if data else title, body))

    def _attempt(self, what: str, make: Callable[[], Any]) -> Any:
        """What ``make`` returns, or None with the reason in the list of what is not shown."""
        try:
            return make()
        except NearkinError as error:
            if not isinstance(error, NothingToShowError):
                self._miss(what, error)
            return None

    def _miss(self, what: str, reason: object) -> None:
        self._missing.setdefault(str(reason), []).append(what)


def scores_section(groups: Sequence[RunGroup]) -> str:
    """The scores, with those before training, and their meaning."""
    scores = score_table(groups, untrained=True)
    (part,) = scores.parts
    body = html_table(part, css="scores", caption=" ".join(scores.conditions))
    body += "".join(f"<p class=note>{escape(note)}</p>" for note in scores.notes)
    headings: dict[str, list[str]] = {}
    for score in map(score_named, filter(is_score, scores.records[0])):
        headings.setdefault(score.meaning, []).append(score.heading)
    listed = "".join(f"<dt>{escape(', '.join(names))}</dt><dd>{escape(text)}</dd>" for text, names in headings.items())
    opening = "Every test image in turn is a query and looks for images of its class among the others."
    return body + details("What the scores mean", f"<p>{opening}</p><dl>{listed}</dl>")


def differences_section(groups: Sequence[RunGroup]) -> str:
    """Every group compared with its study's base, or with the first group of the same protocol; empty without seeds."""
    titles, rows = {group.title: group for group in groups}, []
    for group in groups:
        base = groups[0] if group.base is None else titles.get(group.base)
        if base is None or base is group or base.recipe.protocol.name != group.recipe.protocol.name:
            continue
        comparison = Comparison.of(group, base)
        rows += [comparison] if comparison is not None else []
    reading = how_to_read(rows)
    return f"{html_table(differences_part(rows))}<p class=note>{escape(reading)}</p>" if reading else ""


def classes_table(results: dict[str, QueryResults]) -> str:
    """Scores of every test class by the title of its group, sortable, with bars."""
    by_group = [result.classes() for result in results.values()]
    if not by_group or len(by_group[0]) < 2:
        return ""
    first, scores = next(iter(results.values())), by_group[0]
    order = sorted(scores, key=lambda label: (scores[label].precision, label))
    shown, words = order, counted(len(order), "class")
    if len(order) > CLASS_ROWS:
        half = CLASS_ROWS // 2
        shown = [*order[:half], *order[-half:]]
        words = f"the {half} worst and the {half} best of {len(order):,} classes by MAP@R"
    class_names = {label: split_class_name(first.run.data.table.class_names[label]) for label in shown}
    nested = any(above for _, above in class_names.values())
    lines = []
    for label in shown:
        last, above = class_names[label]
        by_run = [scored.get(label) for scored in by_group]
        values = [value for score in by_run for value in ((score.recall, score.precision) if score else (None, None))]
        texts = (NOTHING if value is None else score_named("R@1").text(value) for value in values)
        cells = (last, *[above] * nested, str(scores[label].queries), *texts)
        lines.append(Line(cells, fractions=(*[None] * (2 + nested), *values)))
    suffixes = [f", {title}" if len(results) > 1 else "" for title in results]
    metrics = (f"{metric}{suffix}" for suffix in suffixes for metric in ("R@1", "MAP@R"))
    headings = ("class", *["folder"] * nested, "queries", *metrics)
    seeds = ", ".join(dict.fromkeys(str(result.run.recipe.training.seed) for result in results.values()))
    used, every = len(first.sample.rows), len(first.run.test_rows)
    among = counted(used, "test image") + (f" of {every:,}, in random whole classes" if used < every else "")
    among = f"{among}, {first.run.protocol.test_classes}"
    caption = f"In per cent, {words}; {among}; seed {seeds}. A click on a heading sorts."
    part = Part(headings, tuple(lines), texts=1 + nested)
    return f'<div class="tall">{html_table(part, css="classes sortable", caption=caption)}</div>'


def _query_results(run: OpenedRun) -> QueryResults:
    _ = run.trained  # first: without weights there is no need to read the images
    few = len(run.test_rows) <= IMAGE_LIMIT
    return retrieve(run, run.test_sample if few else run.sample(run.test_rows, SCORED_LIMIT))


def cost_section(groups: Sequence[RunGroup]) -> str:
    """Time, images per second and memory."""
    lines = []
    for group in (group for group in groups if group.scores):
        minutes = sum(scores.seconds for scores in group.scores) >= 600 * len(group.scores)
        factor, unit = (1 / 60, "min") if minutes else (1, "s")
        costs = [scores.cost.__dict__ for scores in group.scores]
        parameters = sum(group.runs[0].folder.environment().parameters.values())
        cells = [
            _number(Statistic.of(scores.epochs for scores in group.scores), 1),
            _number(Statistic.of(scores.steps for scores in group.scores), 0),
            f"{_number(Statistic.of(scores.seconds * factor for scores in group.scores), 0)} {unit}",
            _number(Statistic.of_key(costs, "step_ms"), 1),
            _number(Statistic.of_key(costs, "images_per_second"), 0),
            _number(Statistic.of_key(costs, "peak_mib"), 0),
            f"{parameters / 1e6:.2f} M" if parameters else NOTHING,
        ]
        hardware = " or ".join(sorted({scores.conditions.hardware for scores in group.scores}))
        # Runs that shared the machine took longer than they would have alone.
        outcomes = (Outcome.read(run.name, run.recipe.training.seed, run.folder) for run in group.finished)
        parallel = max((outcome.parallel_runs for outcome in outcomes), default=1)
        lines.append([group.title, *cells, hardware + (f", up to {parallel} runs at a time" if parallel > 1 else "")])
    headings = ["", "epochs", "steps", "time", "ms per step", "images/s", "peak MiB", "parameters", "hardware"]
    caption = (
        "Means over the seeds. Time is that of the whole run with its evaluations, images per second that of the "
        "training steps alone; memory is the GPU's, or on a CPU the whole process's."
    )
    return html_table(Part.of(headings, lines, numbers=7), caption=caption) if lines else ""


def reproduce_section(groups: Sequence[RunGroup]) -> str:
    """The exact recipe, the environment and the command of every group."""
    blocks = []
    for group in groups:
        commands = []
        for run in group.runs:
            again = run.folder.path.with_name(f"{run.folder.path.resolve().name}-again")
            commands.append(shlex.join(["nearkin", "train", str(run.folder.recipe_file), "-o", str(again)]))
        body = f"<p>Again, with the recipe of the run folder:</p>{code(*commands)}"
        environments = [run.folder.environment() for run in group.runs]
        if started := list(dict.fromkeys(environment.command for environment in environments if environment.command)):
            body += f"<p>As it was started:</p>{code(*started)}"
        seeds = ", ".join(str(run.recipe.training.seed) for run in group.runs)
        hashes = ", ".join(environment.recipe for environment in environments if environment.recipe)
        heading = f"Recipe {hashes}; {'seeds' if len(group.runs) > 1 else 'seed'} {seeds}"
        body += details(heading, code(group.recipe.to_yaml().rstrip()))
        for run, environment in zip(group.runs, environments, strict=True):
            if environment.started:
                text = json.dumps(dict(environment), indent=2, ensure_ascii=False)
                body += details(f"Environment, seed {run.recipe.training.seed}", code(text))
        blocks.append(f"<h3>{escape(group.title)}</h3>{body}")
    return "".join(blocks)


def details(summary: str, body: str) -> str:
    """A block that opens at a click; ``summary`` is text, ``body`` is HTML."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def code(*lines: str) -> str:
    """Text with a button that copies it."""
    button, text = '<button type="button" class="copy">Copy</button>', escape("\n".join(lines))
    return f'<div class="code">{button}<pre><code>{text}</code></pre></div>'


def _number(value: Statistic | None, digits: int) -> str:
    """With its spread, unless that is 0."""
    if value is None:
        return NOTHING
    return (value if value.spread else Statistic(value.mean)).text(digits)


def _asset(name: str) -> str:
    return (importlib.resources.files("nearkin.report") / name).read_text(encoding="utf-8")
