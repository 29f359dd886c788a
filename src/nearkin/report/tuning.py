"""A search for people: the best trials as a table, all of them as CSV, the best as a recipe that can be trained."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from nearkin.report.formats import csv_text, markdown_table
from nearkin.report.tuning_pictures import draw_tuning
from nearkin.runs.folder import write_atomically
from nearkin.studies.tune.space import Dimension, shown, yaml_text
from nearkin.studies.tune.trials import Trial, Tuning

SHOWN = 10
"""Trials in a table; ``trials.csv`` has them all."""
_NEAR_AN_END = 0.03


def tuning_table(tuning: Tuning) -> Group:
    """The best trials for a terminal, with what their scores hold for."""
    heading, *rows = best_lines(tuning)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in heading:
        table.add_column(name.replace(".", "\n", 1), justify="right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    parts: list[Any] = [Text(title_of(tuning), style="bold"), *([table] if rows else [])]
    parts += [Text(line, style="dim") for line in conditions(tuning)]
    parts += [Text(line, style="yellow") for line in remarks(tuning)]
    return Group(*parts)


def tuning_markdown(tuning: Tuning) -> str:
    """The same as Markdown, with the commands that train the best trial."""
    heading, *rows = best_lines(tuning)
    lines = [f"# {title_of(tuning)}", "", *conditions(tuning)]
    if rows:
        lines += ["", markdown_table([heading, *rows], is_number=lambda column: True)]
        lines += ["", "The best of them is `best.yaml`. On three seeds, with a score on the test classes:", ""]
        lines += ["```sh", three_seeds(tuning), "```"]
    if said := remarks(tuning):
        lines += ["", "## Mind", "", *(f"- {line}" for line in said)]
    return "\n".join(lines) + "\n"


def trials_csv(tuning: Tuning) -> str:
    """One line per trial, in the order in which they were begun; scores as fractions with all their digits."""
    keys = [dimension.key for dimension in tuning.plan.space]
    columns = ["trial", "status", tuning.select_by, *keys, "epoch", "scores", "seconds", "same_as", "reason"]
    records = []
    for trial in tuning.trials:
        record: dict[str, Any] = {"trial": trial.number, "status": trial.status, tuning.select_by: trial.score}
        record |= {key: yaml_text(value) for key, value in trial.values.items()}
        record |= {"epoch": _joined(trial.epochs), "scores": " ".join(map(str, trial.scores)), "seconds": trial.seconds}
        records.append(dict.fromkeys(columns) | record | {"same_as": trial.same_as, "reason": trial.reason})
    return csv_text(records)


def best_recipe(tuning: Tuning) -> str:
    """The best trial as a recipe file, which opens with what it is and the command that trains it."""
    best, recipe = tuning.ranking[0], tuning.plan.recipe
    method = "" if recipe.method.name == "plain" else f" and {recipe.method.name}"
    what = f"{tuning.conditions['data']} with {recipe.objective.name}{method}"
    found = f"best of {_trials(len(tuning.trials))}, {tuning.select_by} {100 * (best.score or 0.0):.1f} % on validation"
    head = f"# {what}: {found} classes\n# nearkin train {_quoted(tuning.folder / 'best.yaml')}\n"
    return head + tuning.recipe_of(best).to_yaml()


def three_seeds(tuning: Tuning) -> str:
    """The command that trains the best trial on three seeds and scores it on the test classes."""
    best, runs = _quoted(tuning.folder / "best.yaml"), _quoted(tuning.folder / "best" / "seed-")
    return f"for seed in 0 1 2; do nearkin train {best} training.seed=$seed -o {runs}$seed; done"


def write_tuning(tuning: Tuning) -> list[Path]:
    """Write ``trials.csv`` and ``tuning.md`` into the search's folder; with a finished trial also ``best.yaml`` and the
    pictures."""
    contents = {"tuning.md": tuning_markdown(tuning), "trials.csv": trials_csv(tuning)}
    if tuning.ranking:
        contents["best.yaml"] = best_recipe(tuning)
    for name, text in contents.items():
        write_atomically(tuning.folder / name, text.encode())
    return [tuning.folder / name for name in contents] + draw_tuning(tuning, title_of(tuning), conditions(tuning))


def best_lines(tuning: Tuning) -> list[list[str]]:
    """Headings and cells of the best trials."""
    space = tuning.plan.space
    lines = [["trial", f"{tuning.select_by} (%)", "epoch", *(dimension.key for dimension in space)]]
    for trial in tuning.ranking[:SHOWN]:
        values = [shown(trial.values[dimension.key]) for dimension in space]
        lines.append([str(trial.number), score_text(trial), _joined(trial.epochs), *values])
    return lines


def score_text(trial: Trial) -> str:
    """A trial's score in per cent, with the range over its seeds where there are several.

    >>> score_text(Trial(3, "finished", {}, 0.45, scores=[0.43, 0.47]))
    '45.0 (43.0–47.0)'
    """
    text = f"{100 * (trial.score or 0.0):.1f}"
    if len(trial.scores) > 1:
        text += f" ({100 * min(trial.scores):.1f}–{100 * max(trial.scores):.1f})"
    return text


def title_of(tuning: Tuning) -> str:
    recipe = tuning.plan.recipe
    method = "" if recipe.method.name == "plain" else f", {recipe.method.name}"
    return f"Search on {tuning.conditions['data'] or recipe.data.source}: {recipe.objective.name}{method}"


def conditions(tuning: Tuning) -> list[str]:
    """What the scores hold for, and how the trials ended."""
    plan, training = tuning.plan, tuning.plan.recipe.training
    count = {status: sum(trial.status == status for trial in tuning.trials) for status in _statuses(tuning)}
    limit = "" if training.max_steps is None else f", at most {training.max_steps} steps"
    seeds = [str(seed) for seed in range(training.seed, training.seed + plan.seeds)]
    parts = [
        f"{_trials(len(tuning.trials))}: " + ", ".join(f"{number} {status}" for status, number in count.items()),
        f"{plan.sampler} sampler, seed {plan.seed}, "
        + ("no pruner" if plan.pruner == "none" else f"{plan.pruner} pruner"),
        f"{plan.recipe.protocol.name} protocol, {tuning.conditions['selection']}",
        f"seed {seeds[0]} alone, so no spread" if len(seeds) == 1 else f"mean over seeds {', '.join(seeds)}",
        f"{training.epochs} epochs{limit}",
        tuning.conditions["hardware"],
    ]
    return ["; ".join(part for part in parts if part) + ".", "The test classes have not been looked at."]


def remarks(tuning: Tuning) -> list[str]:
    """What a person should know before using the result."""
    lines = []
    if tuning.ranking:
        best = tuning.ranking[0]
        ends = [each for each in tuning.plan.space if _near_an_end(each, best.values[each.key])]
        lines += [
            f"The best {each.key} lies at an end of its range {each}: a wider one may hold better." for each in ends
        ]
    reasons: dict[str, list[str]] = {}
    for trial in tuning.trials:
        if trial.reason:
            reasons.setdefault(f"{trial.status}: {trial.reason}", []).append(str(trial.number))
    return lines + [f"Trial {', '.join(numbers)} {reason}" for reason, numbers in reasons.items()]


def _near_an_end(dimension: Dimension, value: Any) -> bool:
    if dimension.choices or dimension.low is None or dimension.high is None:
        return False
    if isinstance(dimension.low, int):
        return value in (dimension.low, dimension.high)
    low, high, at = (math.log(x) if dimension.log else x for x in (dimension.low, dimension.high, value))
    return not _NEAR_AN_END < (at - low) / (high - low) < 1 - _NEAR_AN_END


def _statuses(tuning: Tuning) -> list[str]:
    order = ("finished", "pruned", "diverged", "failed", "unfinished")
    return [status for status in order if any(trial.status == status for trial in tuning.trials)]


def _trials(number: int) -> str:
    return "1 trial" if number == 1 else f"{number} trials"


def _joined(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
