"""What a comparison comes to: scores, best beside last epoch, what chose the epoch, rows beside their base."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from nearkin.evaluation.scores import score_named
from nearkin.evaluation.statistics import Statistic, rank_correlation
from nearkin.recipe import Recipe
from nearkin.report.differences import COMPARED, Comparison, differences_part, how_to_read
from nearkin.report.formats import counted
from nearkin.report.score_tables import score_text
from nearkin.report.table import NOTHING, Part, Table
from nearkin.studies.results import RowResult

SHOWN = ("R@1", "MAP@R", "nDCG@8", "covering_radius")
RUNS_TO_CORRELATE, GOOD_CORRELATION = 8, 0.5

Results = Sequence[RowResult]


def comparison_table(results: Results) -> Table:
    """A method stands below its base, indented."""
    against = differences_part(held_against(results))
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


def against_base(result: RowResult, results: Results) -> Comparison | None:
    """How far a row is from its base or, where it names none, from the first of those without; None for that one."""
    first = next((each for each, _ in families(results) if each.row.base is None), None)
    named = result.row.base
    base = first if named is None else next((each for each in results if each.row.name == named), None)
    if base is None or base is result:
        return None
    return Comparison.of(result.row.title, result.test_by_seed, base.row.title, base.test_by_seed)


def held_against(results: Results) -> list[Comparison]:
    """Every row that can be, against its base."""
    return [held for result, _ in families(results) if (held := against_base(result, results)) is not None]


def title_of(results: Results) -> str:
    data, classes = said(results, "data"), said(results, "test_classes")
    return f"Comparison on {', '.join(data) or 'no finished run'}" + (f", {'; '.join(classes)}" if classes else "")


def conditions_of(results: Results) -> list[str]:
    """What every score holds for: protocol, selection, seeds, budget, hardware; and how to read it."""
    done = [result for result in results if result.seeds]
    if not done:
        return ["No run has finished."]
    seeds = sorted({seed for result in done for seed in result.seeds})
    sharing = max(number for result in done for number in result.side_by_side)
    parts = [
        f"{' and '.join(said(done, 'protocol'))} protocol, {' or '.join(said(done, 'selection'))}",
        *said_by(done, "training_conditions"),
        *said_by(done, "weights"),
        f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}",
        " or ".join(dict.fromkeys(budget_text(result.row.recipe) for result in done)),
        " and ".join(said(done, "hardware")) + (f", up to {sharing} runs at a time" if sharing > 1 else ""),
    ]
    numbers = {len(result.seeds) for result in done}
    reading = "One seed, so no spread."
    if numbers != {1}:
        reading = f"Mean ± sample standard deviation over n seeds{', none with one' if 1 in numbers else ''}."
    return ["; ".join(parts) + ".", f"{reading} {how_to_read(held_against(results))}".strip()]


def warnings_of(results: Results) -> list[str]:
    """What makes rows of one table hard to compare, and which runs are missing from it and why."""
    done = [result for result in results if result.seeds]
    mixed: dict[str, dict[str, list[str]]] = {}
    for result in done:
        for what, values in {
            "protocols": result.said("protocol"),
            "ways of choosing the epoch": result.said("selection"),
            "hardware": result.said("hardware"),
            "data": result.said("data"),
            "budgets": [budget_text(result.row.recipe)],
        }.items():
            for value in values:
                mixed.setdefault(what, {}).setdefault(value, []).append(result.row.title)
    lines = [
        f"Mixed {what}: " + "; ".join(f"{value} ({', '.join(rows)})" for value, rows in sorted(by_value.items())) + "."
        for what, by_value in mixed.items()
        if len(by_value) > 1
    ]
    if len({number for result in done for number in result.side_by_side}) > 1:
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


def said(results: Results, condition: str) -> list[str]:
    """What all rows say of one of their conditions."""
    return sorted({value for result in results for value in result.said(condition)})


def said_by(results: Results, condition: str) -> list[str]:
    """The same, with the rows that say it where others do not."""
    by_value = {
        value: [each.row.title for each in results if value in each.said(condition)]
        for value in said(results, condition)
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
        scores = [score_text(each and each[0], name) for each, name in zip(both, names, strict=True)]
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
        validation, test = ([value for pair in both for value in pair[place].values] for place in (0, 1))
        if len(validation) >= RUNS_TO_CORRELATE:
            rhos[name], number = rank_correlation(validation, test), max(number, len(validation))
    (chose,) = names
    if not rhos.get(chose, math.nan) < GOOD_CORRELATION:
        return []
    said = ", of ".join(f"{name} {rho:.2f}" for name, rho in rhos.items())
    return [
        f"The validation classes put these {number} runs in another order than the test classes (rank correlation of "
        f"{said}): what they choose, an epoch or a setting, may be far from the best. More of them help "
        f"(protocol.validation_share), or another score (protocol.select_by)."
    ]


def _csv_record(result: RowResult, results: Results) -> dict[str, Any]:
    """Scores as fractions with all their digits, mean and spread in columns of their own."""
    row = result.row
    record: dict[str, Any] = {"name": row.name, "title": row.title, "base": row.base, "budget": budget_text(row.recipe)}
    record["seeds"] = " ".join(map(str, result.seeds))
    shown = {name: result.test(name) for name in SHOWN if any(each.test(name) for each in results)}
    shown |= {f"last {name}": result.last(name) for name in COMPARED if any(each.last(name) for each in results)}
    for name, value in (shown | {"step_ms": result.step_ms}).items():
        record[name] = None if value is None else value.mean
        record[f"{name} spread"] = None if value is None else value.spread
    held = against_base(result, results)
    record |= {"held against": held.base} if held else {}
    for name, apart in held.differences.items() if held else ():
        low, high = apart.interval or (None, None)
        record |= {f"{name} minus base": apart.value, f"{name} verdict": apart.verdict}
        record |= {f"{name} interval low": low, f"{name} interval high": high, f"{name} more seeds": apart.more_seeds}
    record |= {key: "; ".join(result.said(key)) for key in ("data", "protocol", "selection", "hardware")}
    return record | {"recipes": " ".join(each.conditions.recipe for each in result.scores)}


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
        "best_epochs": [each.chosen.get("epoch") for each in result.scores],
        "epochs": [each.epochs for each in result.scores],
        "side_by_side": result.side_by_side,
        "recipes": [each.conditions.recipe for each in result.scores],
        **{key: result.said(key) for key in ("data", "protocol", "selection", "test_classes", "hardware")},
        "training_conditions": result.said("training_conditions"),
        "chosen": {},
    }
    if result.validation:
        validation, test = (each.as_record() for each in result.validation)
        record["chosen"] = {"score": result.select_by, "validation": validation, "test": test}
    if held := against_base(result, results):
        record["held_against"] = held.base
        record["against"] = {name: each.as_record() for name, each in held.differences.items()}
    return record


def _records(values: Mapping[str, Statistic | None]) -> dict[str, Any]:
    return {name: value.as_record() for name, value in values.items() if value is not None}
