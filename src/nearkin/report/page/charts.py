"""Sections that are drawn as charts: curves, covering radius with sub-problems, uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nearkin.errors import NearkinError
from nearkin.report.opened_run import OpenedRun
from nearkin.report.page._parts import Payload, Section, counted, details, escape, legend, rounded, table
from nearkin.report.page.pairs import examples
from nearkin.report.plots.certainty import extremes
from nearkin.report.plots.covering import MOST_BOUNDARIES, is_measured
from nearkin.report.plots.curves import Group, evaluated_on, in_percent, score_columns
from nearkin.report.plots.problems import boundaries, problem_steps
from nearkin.report.plots.uncertainty import closeness, correlation_words
from nearkin.report.run_groups import RunGroup

_EXAMPLES = 5


def curves_section(groups: Sequence[RunGroup], payload: Payload) -> Section | None:
    """Loss and scores over the epochs, with a band for the spread over seeds and a star at each best evaluation."""
    present = _evaluated(groups)
    if not present:
        return None
    runs = [run for _, group in present for run in group.runs]
    columns = ["loss", *score_columns(runs)]
    charts = []
    for column in columns:
        spec = line_chart(present, column, over="epoch", stars=column != "loss")
        if spec["series"]:
            where = "" if column == "loss" else f" on the {evaluated_on(runs)}"
            name = "Training loss, mean since the last evaluation" if column == "loss" else f"{column} (%){where}"
            charts.append(payload.chart(spec, caption=name, label=f"{name} over the epochs"))
    if not charts:
        return None
    several = any(len(group.runs) > 1 for _, group in present)
    reading = "Lines are means over the seeds, bands their sample standard deviation. " if several else ""
    reading += "Stars: the evaluation that each run is reported with. Point at a chart for its values."
    body = f"{_legend(present, groups)}<div class=charts>{''.join(charts)}</div>"
    values = details("All values as a table", values_table(present, columns))
    return Section("curves", "Curves", f"{body}<p class=note>{escape(reading)}</p>{values}")


def covering_section(groups: Sequence[RunGroup], payload: Payload) -> Section | None:
    """Covering radius and distance between classes over the steps, new sub-problems as dashed lines; steps of each."""
    measured = [(place, group) for place, group in _evaluated(groups) if any(is_measured(run) for run in group.runs)]
    charts = []
    names = {"covering_radius": "Covering radius", "inter_class_distance": "Distance between classes"}
    for column, name in names.items():
        spec = line_chart(measured, column, over="step", stars=False)
        spec["rules"] = [
            {"x": step, "series": place, "label": "new sub-problem"}
            for place, group in measured
            for step in _rules(group.runs[0])
        ]
        if spec["series"]:
            where = evaluated_on([run for _, group in measured for run in group.runs])
            charts.append(
                payload.chart(spec, caption=f"{name} on the {where}", label=f"{name} over the steps of training")
            )
    for place, group in _evaluated(groups):
        bars = _problem_bars(group.runs[0])
        if bars:
            spec = {"kind": "bars", "x": "number", "y": "steps", "series": place, "bars": bars}
            caption = f"Steps per sub-problem: {group.label}, seed {group.runs[0].recipe.training.seed}"
            charts.append(payload.chart(spec, caption=caption, label=caption))
    if not charts:
        return None
    reading = "Dashed lines: a new sub-problem begins. Empty bars: cut short by the end of the run."
    return Section(
        "covering",
        "Covering radius and sub-problems",
        f"{_legend(measured, groups)}<div class=charts>{''.join(charts)}</div><p class=note>{escape(reading)}</p>",
    )


def uncertainty_section(groups: Sequence[RunGroup], payload: Payload) -> Section | None:
    """σ̄ of every class against how close its images lie, and the classes VCPA is most and least certain of."""
    blocks = []
    for group in groups:
        run = group.runs[0]
        if run.recipe.objective.name == "vcpa":
            blocks.append(f"<h3>{escape(group.title)}</h3>{_uncertainty(run, payload)}")
    if not blocks:
        return None
    return Section("uncertainty", "Uncertainty of the proxies", "".join(blocks))


def line_chart(groups: Sequence[tuple[int, Group]], column: str, *, over: str, stars: bool) -> dict[str, Any]:
    """A chart with ``[at, mean, spread]`` for each group, scores in per cent."""
    series: list[dict[str, Any]] = []
    for place, group in groups:
        at, values = group.curve(column, over)
        if not values.size:
            continue
        spread = values.std(0, ddof=1) if len(values) > 1 else np.full(len(at), np.nan)
        points = [
            [rounded(x), rounded(mean), rounded(deviation)]
            for x, mean, deviation in zip(at, values.mean(0), spread, strict=True)
        ]
        points = [point for point in points if point[1] is not None]
        found = [[rounded(x), rounded(y)] for x, y in group.best(column, over)] if stars else []
        if points:
            series.append({"name": group.label, "series": place, "points": points, "stars": found})
    everything = [point[1] for each in series for point in each["points"] if point[1] is not None]
    log = column == "loss" and bool(everything) and min(everything) > 0 and max(everything) > 20 * min(everything)
    top = {"most": 100} if in_percent(column) else {}
    return {"kind": "lines", "x": over, "series": series, "log": log, **top}


def values_table(groups: Sequence[tuple[int, Group]], columns: Sequence[str]) -> str:
    """Every value of the curves, for readers without a pointer and for paper."""
    rows = []
    for _, group in groups:
        tracks = {}
        for column in columns:
            at, values = group.curve(column, "epoch")
            for x, each in zip(at.tolist(), values.T, strict=True):
                spread = f" ± {each.std(ddof=1):.4g}" if len(each) > 1 else ""
                tracks[column, x] = f"{each.mean():.4g}{spread}"
        for x in sorted({x for _, x in tracks}):
            cells = "".join(f"<td class=number>{tracks.get((column, x), '–')}</td>" for column in columns)
            rows.append(f'<tr><th scope="row">{escape(group.label)}</th><td class=number>{x:g}</td>{cells}</tr>')
    return table(["", "epoch", *columns], rows)


def _evaluated(groups: Sequence[RunGroup]) -> list[tuple[int, Group]]:
    """Groups with their place, less the runs that were never evaluated."""
    found = []
    for place, group in enumerate(groups):
        runs = [run for run in group.runs if _has_evaluations(run)]
        if runs:
            found.append((place, Group(group.title, runs)))
    return found


def _legend(shown: Sequence[tuple[int, Group]], groups: Sequence[RunGroup]) -> str:
    """Whose lines are shown; a report on one recipe need not say."""
    return legend([(place, group.label) for place, group in shown]) if shown and len(groups) > 1 else ""


def _has_evaluations(run: OpenedRun) -> bool:
    try:
        return bool(run.evaluations)
    except NearkinError:
        return False


def _rules(run: OpenedRun) -> list[int]:
    steps = boundaries(run)
    return steps if len(steps) <= MOST_BOUNDARIES else []


def _problem_bars(run: OpenedRun) -> list[dict[str, Any]]:
    if not any(event.get("kind") in ("problem", "representatives") for event in run.events):
        return []
    return [{"x": number, "y": steps, "ended": ended} for number, steps, ended in problem_steps(run)]


def _uncertainty(run: OpenedRun, payload: Payload) -> str:
    every = run.uncertainty.mean(1).double().numpy()
    classes, similar = closeness(run)
    sigma = every[np.searchsorted(run.training_classes, classes)]
    names = run.data.table.class_names
    points = [
        {"x": rounded(float(x)), "y": rounded(float(y)), "name": names[label]}
        for x, y, label in zip(similar, sigma, classes.tolist(), strict=True)
    ]
    spec = {"kind": "scatter", "x": "median similarity of a class's images to its proxy", "y": "σ̄", "points": points}
    caption = counted(len(classes), "training class", "training classes") + correlation_words(similar, sigma)
    chart = payload.chart(spec, caption=caption, label="Uncertainty of each class against how close its images lie")
    columns = ""
    for title, places in zip(("Most certain", "Least certain"), extremes(every), strict=True):
        rows = ""
        for place in places.tolist():
            label = int(run.training_classes[place])
            rows += f'<div class="row"><p class="row-name">{escape(names[label])}, σ̄ = {every[place]:.3g}</p>'
            rows += f"{examples(run, label, _EXAMPLES, payload)}</div>"
        columns += f"<h4>{title}</h4>{rows}"
    return f"<div class=charts>{chart}<div>{columns}</div></div>"
