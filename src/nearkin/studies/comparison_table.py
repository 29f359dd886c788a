"""A comparison as a table and a figure: scores, last epochs, what chose the epoch, differences from the base."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nearkin.evaluation.scores import score_named
from nearkin.evaluation.statistics import Statistic, rank_correlation
from nearkin.recipe import Recipe
from nearkin.report.differences import COMPARED, Comparison, differences_part, how_to_read
from nearkin.report.figure_style import end_at_100, new_figure, save_figure
from nearkin.report.formats import counted
from nearkin.report.score_tables import score_text
from nearkin.report.table import NOTHING, Part, Table
from nearkin.studies.results import RowResult

SHOWN = ("R@1", "MAP@R", "nDCG@8", "covering_radius")
RUNS_TO_CORRELATE, GOOD_CORRELATION = 8, 0.5
BASE, METHOD, BAND = "#555555", "#1f6fb4", "#ebebeb"

Results = Sequence[RowResult]


def comparison_table(results: Results) -> Table:
    """A method stands below its base, indented."""
    against = differences_part(compared_rows(results))
    parts = (_scores(results), _best_and_last(results), _chosen(results), against)
    return Table(
        title_of(results),
        tuple(part for part in parts if part.lines),
        tuple(conditions_of(results)),
        tuple(warnings_of(results)),
        tuple(_csv_record(result, results) for result, _ in families(results)),
    )


def comparison_record(results: Results) -> dict[str, Any]:
    """Everything that is known, for programs."""
    return {
        "title": title_of(results),
        "conditions": conditions_of(results),
        "warnings": warnings_of(results),
        "rows": [_row_record(result, depth, results) for result, depth in families(results)],
    }


def families(results: Results) -> list[tuple[RowResult, int]]:
    """Every row with its base above it, and how many bases it has among those that are shown."""
    known = {result.row.name for result in results}

    def below(base: str | None, depth: int) -> list[tuple[RowResult, int]]:
        found = []
        for result in results:
            if (result.row.base if result.row.base in known else None) == base:
                found += [(result, depth), *below(result.row.name, depth + 1)]
        return found

    return below(None, 0)


def compared_with_base(result: RowResult, results: Results) -> Comparison | None:
    """How far a row is from its base or, where it names none, from the first of those without; None for that one."""
    first = next((row for row, _ in families(results) if row.row.base is None), None)
    named = result.row.base
    base = first if named is None else next((row for row in results if row.row.name == named), None)
    if base is None or base is result:
        return None
    return Comparison.of(result.row.title, result.test_by_seed, base.row.title, base.test_by_seed)


def compared_rows(results: Results) -> list[Comparison]:
    """Every row that has a base, compared with it."""
    compared = (compared_with_base(result, results) for result, _ in families(results))
    return [comparison for comparison in compared if comparison is not None]


def title_of(results: Results) -> str:
    data, classes = values_of(results, "data"), values_of(results, "test_classes")
    return f"Comparison on {', '.join(data) or 'no finished run'}" + (f", {'; '.join(classes)}" if classes else "")


def conditions_of(results: Results) -> list[str]:
    """What every score holds for: protocol, selection, seeds, budget, hardware; and how to read it."""
    done = [result for result in results if result.seeds]
    if not done:
        return ["No run has finished."]
    seeds = sorted({seed for result in done for seed in result.seeds})
    sharing = max(number for result in done for number in result.at_once)
    parts = [
        f"{' and '.join(values_of(done, 'protocol'))} protocol, {' or '.join(values_of(done, 'selection'))}",
        *values_by_row(done, "training_conditions"),
        *values_by_row(done, "weights"),
        f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}",
        " or ".join(dict.fromkeys(budget_text(result.row.recipe) for result in done)),
        " and ".join(values_of(done, "hardware")) + (f", up to {sharing} runs at a time" if sharing > 1 else ""),
    ]
    numbers = {len(result.seeds) for result in done}
    reading = "One seed, so no spread."
    if numbers != {1}:
        reading = f"Mean ± sample standard deviation over n seeds{', none with one' if 1 in numbers else ''}."
    return ["; ".join(parts) + ".", f"{reading} {how_to_read(compared_rows(results))}".strip()]


def warnings_of(results: Results) -> list[str]:
    """What makes rows of one table hard to compare, and which runs are missing from it and why."""
    done = [result for result in results if result.seeds]
    mixed: dict[str, dict[str, list[str]]] = {}
    for result in done:
        for what, values in {
            "protocols": result.condition("protocol"),
            "ways of choosing the epoch": result.condition("selection"),
            "hardware": result.condition("hardware"),
            "data": result.condition("data"),
            "budgets": [budget_text(result.row.recipe)],
        }.items():
            for value in values:
                mixed.setdefault(what, {}).setdefault(value, []).append(result.row.title)
    lines = [
        f"Mixed {what}: " + "; ".join(f"{value} ({', '.join(rows)})" for value, rows in sorted(by_value.items())) + "."
        for what, by_value in mixed.items()
        if len(by_value) > 1
    ]
    if len({number for result in done for number in result.at_once}) > 1:
        lines.append("Mixed load: some runs had the machine to themselves and some did not; do not compare ms/step.")
    if len({tuple(result.seeds) for result in done}) > 1:
        lines.append("Not every row has the same seeds.")
    lines += _doubts_about_validation(done)
    reasons: dict[str, list[str]] = {}
    for result in results:
        for problem in result.problems:
            reason = f"{problem.status}: {{}}: {problem.reason or 'no reason given'}"
            reasons.setdefault(reason, []).append(f"{result.row.title} seed {problem.seed}")
    return lines + [reason.replace("{}", ", ".join(runs), 1) for reason, runs in reasons.items()]


def values_of(results: Results, condition: str) -> list[str]:
    """All rows' values of one of their conditions."""
    return sorted({value for result in results for value in result.condition(condition)})


def values_by_row(results: Results, condition: str) -> list[str]:
    """The same, with the rows that have the value where others do not."""
    by_value = {
        value: [result.row.title for result in results if value in result.condition(condition)]
        for value in values_of(results, condition)
    }
    return [value if len(rows) == len(results) else f"{value} ({', '.join(rows)})" for value, rows in by_value.items()]


def budget_text(recipe: Recipe) -> str:
    training = recipe.training
    limit = "" if training.max_steps is None else f", at most {training.max_steps} steps"
    return f"{counted(training.epochs, 'epoch')}{limit}, batch {training.batch_size}, {training.optimiser}"


def step_text(step_ms: Statistic | None) -> str:
    """Of a long step the tenth of a millisecond says nothing and takes room."""
    return NOTHING if step_ms is None else step_ms.text(int(step_ms.mean < 100))


def _scores(results: Results) -> Part:
    names = [name for name in SHOWN if any(result.test(name) for result in results)]
    budgets = {budget_text(result.row.recipe) for result in results}
    headings = ["", "n", *(score_named(name).heading for name in names), "ms/step", *["budget"] * (len(budgets) > 1)]
    cells = []
    for result, depth in families(results):
        scores = [score_text(result.test(name), name) for name in names]
        budget = [budget_text(result.row.recipe)] * (len(budgets) > 1)
        cells.append([_indented(result, depth), str(len(result.seeds)), *scores, step_text(result.step_ms), *budget])
    return Part.of(headings, cells, numbers=len(names) + 2)


def _best_and_last(results: Results) -> Part:
    names = [name for name in COMPARED if any(result.last(name) for result in results)]
    headings = ["", *(f"{which} {name}" for name in names for which in ("best", "last"))]
    cells = [
        [
            _indented(result, depth),
            *(score_text(v, name) for name in names for v in (result.test(name), result.last(name))),
        ]
        for result, depth in families(results)
        if any(result.last(name) for name in names)
    ]
    return Part.of(headings, cells, title="Best and last epoch")


def _chosen(results: Results) -> Part:
    """Validation scores at the epochs that were chosen, first the one that chose them, and those epochs."""
    rows = [(result, depth) for result, depth in families(results) if result.validation]
    chose = dict.fromkeys(result.select_by for result, _ in rows)
    names = [*chose, *(name for name in COMPARED if name not in chose and any(row.validated(name) for row, _ in rows))]
    cells = []
    for result, depth in rows:
        both = [result.validated(name) if name in (result.select_by, *COMPARED) else None for name in names]
        scores = [score_text(pair and pair[0], name) for pair, name in zip(both, names, strict=True)]
        cells.append([_indented(result, depth), *scores, ", ".join(f"{epoch:.3g}" for epoch in result.chosen_epochs)])
    headings = ["", *(f"validation {name}" for name in names), "epochs"]
    return Part.of(headings, cells, title="How the epoch was chosen")


def _indented(result: RowResult, depth: int) -> str:
    return f"{'· ' * depth}{result.row.title}"


def _doubts_about_validation(results: Results) -> list[str]:
    """A line where validation classes put the runs in another order than the test classes do."""
    names = {result.select_by for result in results if result.validation}
    if len(names) != 1:
        return []
    rhos, number = {}, 0
    for name in dict.fromkeys([*names, *COMPARED]):
        both = [pair for result in results if (pair := result.validated(name))]
        validation, test = ([value for pair in both for value in pair[index].values] for index in (0, 1))
        if len(validation) >= RUNS_TO_CORRELATE:
            rhos[name], number = rank_correlation(validation, test), max(number, len(validation))
    (chose,) = names
    if not rhos.get(chose, math.nan) < GOOD_CORRELATION:
        return []
    correlations = ", of ".join(f"{name} {rho:.2f}" for name, rho in rhos.items())
    return [
        f"The validation classes put these {number} runs in another order than the test classes (rank correlation of "
        f"{correlations}): what they choose, an epoch or a setting, may be far from the best. More of them help "
        f"(protocol.validation_share), or another score (protocol.select_by)."
    ]


def _csv_record(result: RowResult, results: Results) -> dict[str, Any]:
    """Scores as fractions with all their digits, mean and spread in columns of their own."""
    row = result.row
    record: dict[str, Any] = {"name": row.name, "title": row.title, "base": row.base, "budget": budget_text(row.recipe)}
    record["seeds"] = " ".join(map(str, result.seeds))
    shown = {name: result.test(name) for name in SHOWN if any(row.test(name) for row in results)}
    shown |= {f"last {name}": result.last(name) for name in COMPARED if any(row.last(name) for row in results)}
    for name, value in (shown | {"step_ms": result.step_ms}).items():
        record[name] = None if value is None else value.mean
        record[f"{name} spread"] = None if value is None else value.spread
    comparison = compared_with_base(result, results)
    record |= {"compared with": comparison.base} if comparison else {}
    for name, apart in comparison.differences.items() if comparison else ():
        low, high = apart.interval or (None, None)
        record |= {f"{name} minus base": apart.value, f"{name} verdict": apart.verdict}
        record |= {f"{name} interval low": low, f"{name} interval high": high, f"{name} more seeds": apart.more_seeds}
    record |= {key: "; ".join(result.condition(key)) for key in ("data", "protocol", "selection", "hardware")}
    return record | {"recipes": " ".join(scores.conditions.recipe for scores in result.scores)}


def _row_record(result: RowResult, depth: int, results: Results) -> dict[str, Any]:
    row, recipe = result.row, result.row.recipe.as_mapping()
    record: dict[str, Any] = {
        "name": row.name,
        "title": row.title,
        "base": row.base,
        "depth": depth,
        "objective": recipe["objective"],
        "method": recipe["method"],
        "budget": budget_text(row.recipe),
        "seeds": result.seeds,
        "problems": [dataclasses.asdict(problem) for problem in result.problems],
        "metrics": _records({name: result.test(name) for name in SHOWN}),
        "last": _records({name: result.last(name) for name in COMPARED}),
        "untrained": _records({name: result.untrained(name) for name in COMPARED}),
        "step_ms": result.step_ms and result.step_ms.as_record(),
        "best_epochs": [scores.chosen.get("epoch") for scores in result.scores],
        "epochs": [scores.epochs for scores in result.scores],
        "runs_at_once": result.at_once,
        "recipes": [scores.conditions.recipe for scores in result.scores],
        **{key: result.condition(key) for key in ("data", "protocol", "selection", "test_classes", "hardware")},
        "training_conditions": result.condition("training_conditions"),
        "chosen": {},
    }
    if result.validation:
        validation, test = (score.as_record() for score in result.validation)
        record["chosen"] = {"score": result.select_by, "validation": validation, "test": test}
    if comparison := compared_with_base(result, results):
        record["compared_with"] = comparison.base
        record["differences"] = {name: apart.as_record() for name, apart in comparison.differences.items()}
    return record


def _records(values: Mapping[str, Statistic | None]) -> dict[str, Any]:
    return {name: value.as_record() for name, value in values.items() if value is not None}


def draw_comparison(results: Results, file: Path) -> list[Path]:
    """A dot for every row with a bar for its spread and a small dot for each seed, a method below its base.

    The grey band is the spread of the base, from its own line down to the last of its methods. Nothing is drawn
    without a finished run.
    """
    rows = [(result, depth) for result, depth in families(results) if any(result.test(name) for name in COMPARED)]
    if not rows:
        return []
    names = [name for name in COMPARED if any(result.test(name) for result, _ in rows)]
    figure = new_figure(4.0 + 3.4 * len(names), 1.8 + 0.3 * len(rows))
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axis, name in zip(panels, names, strict=True):
        for index, (result, depth) in enumerate(rows):
            score = result.test(name)
            if score is None:
                continue
            value, colour = score.scaled(100), METHOD if depth else BASE
            if followers := _followers([depth for _, depth in rows], index):
                first, last, half = index, index + followers + 0.4, value.spread or 0.0
                ends = value.mean - half, value.mean + half
                axis.fill_betweenx([first - 0.4, last], *ends, color=BAND, zorder=0.5, linewidth=0)
                axis.plot([value.mean] * 2, [first, last], "--", color=BASE, linewidth=0.9, zorder=0.6)
            axis.plot(value.values, [index] * len(value.values), ".", color=colour, alpha=0.4)
            axis.errorbar(value.mean, index, xerr=value.spread, fmt="o", color=colour, capsize=3, markersize=6)
        axis.set_title(f"{name} (%)", fontsize=10)
        axis.grid(axis="x", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.margins(x=0.08)
        left, right = axis.get_xlim()
        axis.set_xlim(max(left, 0.0), right)
        end_at_100(axis, "x")
        axis.tick_params(axis="y", length=0)
        for side in ("top", "right", "left"):
            axis.spines[side].set_visible(False)
    most = max(len(result.seeds) for result, _ in rows)
    fewer = [f" ({len(result.seeds)} of {most} seeds)" if len(result.seeds) < most else "" for result, _ in rows]
    titles = ["    " * depth + result.row.title + note for (result, depth), note in zip(rows, fewer, strict=True)]
    panels[0].set_yticks(range(len(rows)), titles, ha="left", fontsize=9)
    # Labels that start at one line show by their indent what belongs to what; the longest decides how far out it is.
    panels[0].tick_params(axis="y", pad=5.6 * max(len(title) for title in titles))
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    shown = [result for result, _ in rows]
    figure.suptitle(title_of(shown), fontsize=11)
    figure.supxlabel("\n".join(textwrap.wrap(conditions_of(shown)[0], 105)), fontsize=7, color="#555555")
    save_figure(figure, file, dpi=130)
    return [file]


def _followers(depths: Sequence[int], index: int) -> int:
    """How many rows below ``index`` belong to it."""
    below = depths[index + 1 :]
    return next((count for count, depth in enumerate(below) if depth <= depths[index]), len(below))
