"""Sections that are drawn as charts: curves, confidences, covering radius with sub-problems, uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from html import escape
from typing import Any

from nearkin.errors import NearkinError
from nearkin.index.calibration import Calibration
from nearkin.report.figures.certainty import extremes
from nearkin.report.figures.covering import is_measured
from nearkin.report.figures.curves import best, curve, evaluated_on, in_percent, needs_log_scale, score_columns
from nearkin.report.figures.problems import boundaries, problem_events, problem_steps
from nearkin.report.figures.uncertainty import closeness, correlation_words
from nearkin.report.formats import counted, html_table
from nearkin.report.opened_run import OpenedRun
from nearkin.report.page._parts import Payload, details
from nearkin.report.page.pictures import examples
from nearkin.report.run_groups import RunGroup
from nearkin.report.table import NOTHING, Part

_EXAMPLES = 5


def curves_section(groups: Sequence[RunGroup], payload: Payload) -> str:
    """Loss and scores over the epochs, with a band for the spread over seeds and a star at each best evaluation."""
    present = _evaluated(groups)
    runs = [run for group in present.values() for run in group.runs]
    columns, charts = ["loss", *score_columns(runs)], []
    for column in columns:
        spec = line_chart(present, column, over="epoch", stars=column != "loss")
        if spec["series"]:
            scored = f"{column} (%) on the {evaluated_on(runs)}"
            name = "Training loss, mean since the last evaluation" if column == "loss" else scored
            charts.append(payload.chart(spec, caption=name, label=f"{name} over the epochs"))
    if not charts:
        return ""
    several = any(len(group.runs) > 1 for group in present.values())
    reading = "Lines are means over the seeds, bands their sample standard deviation. " if several else ""
    reading += "Stars: the evaluation that each run is reported with. Point at a chart for its values."
    values = details("All values as a table", values_table(list(present.values()), columns))
    return _charts(charts, reading, present if len(groups) > 1 else {}) + values


def confidence_section(groups: Sequence[RunGroup], found: Mapping[int, Calibration], payload: Payload) -> str:
    """How often hits of each confidence were right, a line for each group that has one, and the Brier scores."""
    if not found:
        return ""
    series, scores, bins = [], [], []
    for place, each in found.items():
        title = groups[place].title
        points = [
            [rounded(100 * one.confidence), rounded(100 * one.right), None, counted(one.hits, "hit")]
            for one in each.reliability
        ]
        series.append({"name": title, "series": place, "points": points, "stars": []})
        scores.append([title, f"{each.brier:.3f}", f"{each.brier_of_share:.3f}", f"{each.hits:,}"])
        bins += [
            [title, f"{100 * one.confidence:.0f}", f"{100 * one.right:.0f}", f"{one.hits:,}"]
            for one in each.reliability
        ]
    spec = {"kind": "lines", "x": "said to be of the query's kind (%)", "series": series, "diagonal": 100}
    caption = "Hits that were of the query's kind (%), by what was said; dashed: as often as said"
    chart = payload.chart(spec, caption=caption, label=caption)
    reading = (
        "An index says of each hit how sure it is that it shows the query's kind: a logistic curve of the similarity, "
        "fitted to classes other than those it is measured on here. The Brier score is the mean squared difference "
        "between what is said and the truth, so less is better; beside it, that of saying the same of all hits. Among "
        "more kinds a hit of the same similarity is less often right: the curve is moved to as many as there are."
    )
    sources: dict[str, list[str]] = {}
    for place, each in found.items():
        sources.setdefault(each.source, []).append(groups[place].title)
    learned = [f"{', '.join(titles)}: learned from {source}." for source, titles in sources.items()]
    table = html_table(Part.of(["", "Brier score", "all alike", "hits"], scores), caption=" ".join(learned))
    values = details("All values as a table", html_table(Part.of(["", "said (%)", "were right (%)", "hits"], bins)))
    named = {place: groups[place] for place in found} if len(groups) > 1 else {}
    return _charts([chart, table], reading, named) + values


def covering_section(groups: Sequence[RunGroup], payload: Payload) -> str:
    """Covering radius and distance between classes over the steps, new sub-problems as dashed lines; steps of each."""
    present, charts = _evaluated(groups), []
    measured = {place: group for place, group in present.items() if any(is_measured(run) for run in group.runs)}
    names = {"covering_radius": "Covering radius", "inter_class_distance": "Distance between classes"}
    for column, name in names.items():
        spec = line_chart(measured, column, over="step", stars=False)
        spec["rules"] = [
            {"x": step, "series": place, "label": "new sub-problem"}
            for place, group in measured.items()
            for step in boundaries(group.runs[0])
        ]
        if spec["series"]:
            where = evaluated_on([run for group in measured.values() for run in group.runs])
            charts.append(
                payload.chart(spec, caption=f"{name} on the {where}", label=f"{name} over the steps of training")
            )
    for place, group in present.items():
        run = group.runs[0]
        if problem_events(run):
            bars = [{"x": number, "y": steps, "ended": ended} for number, steps, ended in problem_steps(run)]
            spec = {"kind": "bars", "x": "number", "y": "steps", "series": place, "bars": bars}
            caption = f"Steps per sub-problem: {group.title}, seed {run.recipe.training.seed}"
            charts.append(payload.chart(spec, caption=caption, label=caption))
    reading = "Dashed lines: a new sub-problem begins. Empty bars: cut short by the end of the run."
    return _charts(charts, reading, measured if len(groups) > 1 else {}) if charts else ""


def uncertainty_section(groups: Sequence[RunGroup], payload: Payload) -> str:
    """σ̄ of every class against how close its images lie, and the classes VCPA is most and least certain of."""
    return "".join(
        f"<h3>{escape(group.title)}</h3>{_uncertainty(group.runs[0], payload)}"
        for group in groups
        if group.recipe.objective.name == "vcpa"
    )


def line_chart(groups: Mapping[int, RunGroup], column: str, *, over: str, stars: bool) -> dict[str, Any]:
    """A chart with ``[at, mean, spread]`` for each group, scores in per cent."""
    series: list[dict[str, Any]] = []
    for place, group in groups.items():
        points = [[rounded(each) for each in point] for point in zip(*curve(group.runs, column, over), strict=True)]
        points = [point for point in points if point[1] is not None]
        found = [[rounded(x), rounded(y)] for x, y in best(group.runs, column, over)] if stars else []
        if points:
            series.append({"name": group.title, "series": place, "points": points, "stars": found})
    log = column == "loss" and needs_log_scale([point[1] for each in series for point in each["points"]])
    top = {"most": 100} if in_percent(column) else {}
    return {"kind": "lines", "x": over, "series": series, "log": log, **top}


def values_table(groups: Sequence[RunGroup], columns: Sequence[str]) -> str:
    """Every value of the curves, for readers without a pointer and for paper."""
    lines = []
    for group in groups:
        texts = {}
        for column in columns:
            for x, mean, spread in zip(*curve(group.runs, column, "epoch"), strict=True):
                texts[column, x] = f"{mean:.4g}" + (f" ± {spread:.4g}" if len(group.runs) > 1 else "")
        for x in sorted({x for _, x in texts}):
            lines.append([group.title, f"{x:g}", *(texts.get((column, x), NOTHING) for column in columns)])
    return html_table(Part.of(["", "epoch", *columns], lines))


def rounded(value: float) -> float | None:
    """A number short enough for the page; None for what is no number.

    >>> rounded(0.123456789), rounded(float("nan"))
    (0.123457, None)
    """
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _evaluated(groups: Sequence[RunGroup]) -> dict[int, RunGroup]:
    """Groups by their place, less the runs that were never evaluated."""
    found = {}
    for place, group in enumerate(groups):
        runs: list[OpenedRun] = []
        for run in group.runs:
            with suppress(NearkinError):
                runs += [run] if run.evaluations else []
        if runs:
            found[place] = replace(group, runs=tuple(runs))
    return found


def _charts(charts: Sequence[str], reading: str, named: Mapping[int, RunGroup]) -> str:
    """Charts, how to read them, and above them whose lines they show; a click on a name hides its line or shows it."""
    buttons = "".join(
        f'<button type="button" class="series" aria-pressed="true" data-series="{place}">'
        f'<svg class="key" width="28" height="10" aria-hidden="true"><line class="line dash-{place % 4}" x1="1" y1="5" '
        f'x2="27" y2="5" style="stroke:var(--run-{place % 8})"></line></svg>{escape(group.title)}</button>'
        for place, group in named.items()
    )
    legend = f'<div class="legend">{buttons}</div>' if named else ""
    return f"{legend}<div class=charts>{''.join(charts)}</div><p class=note>{escape(reading)}</p>"


def _uncertainty(run: OpenedRun, payload: Payload) -> str:
    every = run.uncertainty.mean(1).double().numpy()
    classes, similar, sigma = closeness(run)
    names = run.data.table.class_names
    points = [
        {"x": rounded(float(x)), "y": rounded(float(y)), "name": names[label]}
        for x, y, label in zip(similar, sigma, classes.tolist(), strict=True)
    ]
    spec = {"kind": "scatter", "x": "median similarity of a class's images to its proxy", "y": "σ̄", "points": points}
    caption = counted(len(classes), "training class") + correlation_words(similar, sigma)
    chart = payload.chart(spec, caption=caption, label="Uncertainty of each class against how close its images lie")
    columns = ""
    for title, places in zip(("Most certain", "Least certain"), extremes(every), strict=True):
        columns += f"<h4>{title}</h4>"
        for place in places.tolist():
            label = int(run.training_classes[place])
            columns += f'<div class="row"><p class="row-name">{escape(names[label])}, σ̄ = {every[place]:.3g}</p>'
            columns += f"{examples(run, label, _EXAMPLES, payload)}</div>"
    return f"<div class=charts>{chart}<div>{columns}</div></div>"
