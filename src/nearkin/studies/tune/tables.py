"""A search for people: the best trials as a table, all of them for programs, the best as a recipe to be trained."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

from nearkin.evaluation.scores import score_named
from nearkin.report.formats import counted
from nearkin.report.table import Part, Table
from nearkin.studies.tune.space import Dimension, shown, yaml_text
from nearkin.studies.tune.trials import Status, Trial, Tuning

SHOWN = 10
"""Trials in a table; ``trials.csv`` has them all."""
_NEAR_AN_END = 0.03


def tuning_table(tuning: Tuning) -> Table:
    """The best trials; its records are all trials, in the order in which they were begun."""
    space = tuning.plan.space
    cells = []
    for trial in tuning.ranking[:SHOWN]:
        values = [shown(trial.values[dimension.key]) for dimension in space]
        cells.append([str(trial.number), score_text(trial, tuning.select_by), _joined(trial.epochs), *values])
    columns = ["trial", f"{tuning.select_by} (%)", "epoch", *(dimension.key for dimension in space)]
    parts = (Part.of(columns, cells, texts=0),) if cells else ()
    return Table(
        title_of(tuning),
        parts,
        tuple(conditions_of(tuning)),
        tuple(remarks(tuning)),
        tuple(_record(tuning, trial) for trial in tuning.trials),
    )


def best_recipe(tuning: Tuning) -> str:
    """The best trial as a recipe file, which opens with what it is and the command that trains it."""
    best, recipe = tuning.ranking[0], tuning.plan.recipe
    method = "" if recipe.method.name == "plain" else f" and {recipe.method.name}"
    what = f"{tuning.conditions['data']} with {recipe.objective.name}{method}"
    trials, score = counted(len(tuning.trials), "trial"), 100 * (best.score or 0.0)
    found = f"best of {trials}, {tuning.select_by} {score:.1f} % on validation"
    head = f"# {what}: {found} classes\n# nearkin train {shlex.quote(str(tuning.folder / 'best.yaml'))}\n"
    return head + tuning.recipe_of(best).to_yaml()


def three_seeds(tuning: Tuning) -> str:
    """The command that trains the best trial on three seeds and scores it on the test classes."""
    best, runs = (shlex.quote(str(tuning.folder / name)) for name in ("best.yaml", "best/seed-"))
    return f"for seed in 0 1 2; do nearkin train {best} training.seed=$seed -o {runs}$seed; done"


def score_text(trial: Trial, name: str) -> str:
    """A trial's score in per cent, with the range over its seeds where there are several.

    >>> score_text(Trial(3, "finished", {}, 0.45, scores=[0.43, 0.47]), "R@1")
    '45.0 (43.0–47.0)'
    """
    score = score_named(name)
    text = score.text(trial.score or 0.0)
    if len(trial.scores) > 1:
        text += f" ({score.text(min(trial.scores))}–{score.text(max(trial.scores))})"
    return text


def title_of(tuning: Tuning) -> str:
    recipe = tuning.plan.recipe
    method = "" if recipe.method.name == "plain" else f", {recipe.method.name}"
    return f"Search on {tuning.conditions['data'] or recipe.data.source}: {recipe.objective.name}{method}"


def conditions_of(tuning: Tuning) -> list[str]:
    """What the scores hold for, and how the trials ended."""
    plan, training = tuning.plan, tuning.plan.recipe.training
    count = Counter(trial.status for trial in tuning.trials)
    limit = "" if training.max_steps is None else f", at most {training.max_steps} steps"
    seeds = [str(seed) for seed in range(training.seed, training.seed + plan.seeds)]
    parts = [
        f"{counted(len(tuning.trials), 'trial')}: "
        + ", ".join(f"{count[status]} {status}" for status in get_args(Status) if count[status]),
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
    for best in tuning.ranking[:1]:
        ends = (each for each in tuning.plan.space if _near_an_end(each, best.values[each.key]))
        lines += [f"The best {end.key} lies at an end of its range {end}: a wider one may hold better." for end in ends]
    reasons: dict[str, list[str]] = {}
    for trial in tuning.trials:
        if trial.reason:
            reasons.setdefault(f"{trial.status}: {trial.reason}", []).append(str(trial.number))
    return lines + [f"Trial {', '.join(numbers)} {reason}" for reason, numbers in reasons.items()]


def _near_an_end(dimension: Dimension, value: Any) -> bool:
    if dimension.choices:
        return False
    if isinstance(dimension.low, int):
        return value in (dimension.low, dimension.high)
    low, high, at = (math.log(x) if dimension.log else x for x in (dimension.low, dimension.high, value))
    return not _NEAR_AN_END < (at - low) / (high - low) < 1 - _NEAR_AN_END


def _record(tuning: Tuning, trial: Trial) -> dict[str, Any]:
    """Scores as fractions with all their digits."""
    record: dict[str, Any] = {"trial": trial.number, "status": trial.status, tuning.select_by: trial.score}
    record |= dict.fromkeys(dimension.key for dimension in tuning.plan.space)
    record |= {key: yaml_text(value) for key, value in trial.values.items()}
    record |= {"epoch": _joined(trial.epochs), "scores": " ".join(map(str, trial.scores)), "seconds": trial.seconds}
    return record | {"same_as": trial.same_as, "reason": trial.reason}


def _joined(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)
