"""One run's scores before and after training, and whether training helped."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from nearkin.evaluation.scores import is_score, score_named
from nearkin.recipe import Recipe
from nearkin.report.differences import COMPARED
from nearkin.report.table import NOTHING, Part, Table
from nearkin.runs.scores import Scores

LEGEND = "R@1: how often the nearest image is of the same class; MAP@R: how well all of its class come before others"


def run_table(scores: Scores) -> Table:
    """Untrained beside trained, with the protocol, selection rule, seed and hardware they hold for.

    Of a final model the scores are those of the run that chose its epoch, and it says that they are not its own.
    """
    if scores.final_of is not None:
        chosen = scores.final_of.scores
        table = run_table(chosen) if chosen.test else Table("", ())
        return Table(table.title, table.parts, (scores.final_of.note, *table.conditions))
    held = scores.conditions
    parts = [f"{held.protocol} protocol, {held.selection}", held.training_conditions, held.weights, f"seed {held.seed}"]
    epochs = "1 epoch" if scores.epochs == 1 else f"{scores.epochs:g} epochs"
    parts += [held.hardware, f"{epochs} in {scores.seconds:.0f} s"]
    said = ["; ".join(part for part in parts if part) + "."]
    if scores.untrained:
        said.append(f"Untrained: the backbone as it was before training, without a head. {LEGEND}.")
    columns = {"untrained": scores.untrained, "trained": scores.test}
    if scores.chosen_on_test:
        columns["last epoch"] = scores.last
    return metric_table(f"{held.data}: {held.objective}, {held.test_classes}", columns, *said)


def metric_table(title: str, columns: Mapping[str, Mapping[str, Any] | None], *conditions: str) -> Table:
    """One line per score that is shown unasked, one column per set of scores."""
    present = {name: scores for name, scores in columns.items() if scores}
    names = dict.fromkeys(name for scores in present.values() for name in scores if is_score(name))
    shown = [score_named(name) for name in names if score_named(name).in_percent]
    cells = [
        [score.heading, *(score.text(each[score.name]) if score.name in each else NOTHING for each in present.values())]
        for score in shown
    ]
    return Table(title, (Part.of(["score (%)", *present], cells),), conditions)


def verdict(scores: Scores, recipe: Recipe) -> str | None:
    """One line where training made scores worse, or did not move them, with what to do about it; else None.

    Scores count as different where the table shows them as different.
    """
    before, after = scores.untrained, scores.test
    if not before or not after or not scores.steps:
        return None
    shown = {name: (round(100 * before[name], 1), round(100 * after[name], 1)) for name in COMPARED if name in before}
    worse, better = (
        [f"{name} {was:.1f} → {now:.1f}" for name, (was, now) in shown.items() if sign * (now - was) > 0]
        for sign in (-1, 1)
    )
    if not worse and (better or all(was == 100 for was, _ in shown.values())):
        return None
    if worse and better:
        said = f"Training helped and hurt: {', '.join(worse)}, but {', '.join(better)}."
    else:
        said = f"Training did not help: {', '.join(worse)}." if worse else "Training changed nothing."
    return f"{said} {_advice(scores, recipe)}"


def _advice(scores: Scores, recipe: Recipe) -> str:
    training, encoder = recipe.training, recipe.encoder
    was_rising = scores.chosen.get("epoch") == scores.epochs and recipe.protocol.name == "validation"
    epochs = f"{'more' if was_rising else 'fewer'} training.epochs (now {training.epochs})"
    rate = f"training.learning_rate (now {training.learning_rate:g})"
    if encoder.weights is None and ":" not in encoder.backbone:
        return (
            f"The network began as random numbers: try another {rate}, more training.epochs (now {training.epochs}), "
            f"or begin with a pretrained one (encoder.weights)."
        )
    backbone = f"nearkin evaluate --backbone {encoder.backbone} --data {shlex.quote(recipe.data.source)}"
    return (
        f"Try a smaller {rate} or {epochs}, or use the backbone as it is: {backbone} scores it, and training with "
        f"training.epochs=0 encoder.dim=null makes a run of it."
    )
