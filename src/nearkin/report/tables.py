"""Scores as tables for a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from nearkin import losses
from nearkin.evaluation.protocol import SELECTED_ON_TEST
from nearkin.recipe import Recipe

COMPARED = ("R@1", "MAP@R")
LEGEND = "R@1: how often the nearest image is of the same class; MAP@R: how well all of its class come before others"


def score_table(scores: dict[str, Any]) -> Group:
    """A run's scores before and after training, with the protocol, selection rule, seed and hardware they hold for."""
    caption = (
        f"{scores['protocol']} protocol, {scores['selection']}; "
        + (f"{said}; " if (said := scores.get("training_conditions")) else "")
        + f"seed {scores['seed']}; {scores['hardware']}; {scores['epochs']:g} epochs in {scores['seconds']:.0f} s"
    )
    if scores["untrained"]:
        caption += f"\nuntrained: {baseline_in_words(scores)}. {LEGEND}"
    columns: dict[str, dict[str, Any] | None] = {"untrained": scores["untrained"], "trained": scores["test"]}
    if scores["protocol"] in SELECTED_ON_TEST:
        columns["last epoch"] = scores["last"]
    return metric_table(f"{scores['data']}: {scores['objective']}, {scores['test_classes']}", columns, caption)


def final_table(scores: Mapping[str, Any]) -> Group:
    """What is known of a final model: the scores of the run that chose its epoch, and that they are not its own."""
    final_of = scores["final_of"]
    note = Text(final_of["note"])
    return Group(note, score_table(final_of["scores"])) if final_of["scores"]["test"] else Group(note)


def baseline_in_words(scores: Mapping[str, Any]) -> str:
    """What the untrained scores are of; early versions scored something that is worse than the backbone."""
    if scores.get("baseline") == "backbone":
        return "the backbone as it was before training, without a head"
    return "the backbone behind a random head, which is worse than the backbone itself"


def verdict(scores: Mapping[str, Any], recipe: Recipe) -> str | None:
    """One line where training made scores worse, or did not move them, with what to do about it; else None.

    Scores count as different where the table shows them as different.
    """
    before, after = scores["untrained"], scores["test"]
    if not before or not after or scores.get("baseline") != "backbone" or not scores["steps"]:
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


def _advice(scores: Mapping[str, Any], recipe: Recipe) -> str:
    training, encoder = recipe.training, recipe.encoder
    was_rising = (scores["best"] or {}).get("epoch") == scores["epochs"] and recipe.protocol.name == "validation"
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


def metric_table(title: str, columns: dict[str, dict[str, Any] | None], caption: str) -> Group:
    """One row per metric, one column per set of scores, in per cent."""
    present = {name: scores for name, scores in columns.items() if scores}
    table = Table()
    table.add_column("score (%)")
    for name in present:
        table.add_column(name, justify="right")
    metrics = [key for key in next(iter(present.values()), {}) if "@" in key or key in ("NMI", "F1")]
    metrics += [key for scores in present.values() for key in ("NMI", "F1") if key in scores and key not in metrics]
    for metric in dict.fromkeys(metrics):
        cells = [f"{100 * scores[metric]:.1f}" if metric in scores else "–" for scores in present.values()]
        table.add_row(metric, *cells)
    return Group(Text(title, style="bold"), table, Text(caption, style="dim"))


def loss_rows() -> list[dict[str, Any]]:
    """Every loss of the catalogue: its name in recipes, class, kind, first line of its docstring, options.

    >>> next(row["class"] for row in loss_rows() if row["name"] == "proxy_anchor")
    'ProxyAnchor'
    """
    rows = []
    for name, loss in losses.catalogue().items():
        summary = (loss.__doc__ or "").strip().splitlines()[0]
        options = {
            key: "required" if parameter.default is parameter.empty else str(parameter.default)
            for key, parameter in losses.options(loss).items()
        }
        rows.append(
            {"name": name, "class": loss.__name__, "kind": losses.kind(loss), "summary": summary, "options": options}
        )
    return rows


def losses_page(rows: list[dict[str, Any]]) -> str:
    """The table of losses as Markdown: what ``docs/losses.md`` holds."""
    lines = [
        "# Losses",
        "",
        "Read off the files in `src/nearkin/losses/` by `nearkin losses --markdown > docs/losses.md`. Proxy losses are",
        "`Loss(num_classes, dim, *, …)`, called `loss(embeddings, labels)`; pair losses are `Loss(*, …)`, called",
        "`loss(embeddings, labels, references=None, reference_labels=None)`; a wrapper takes a pair loss.",
        "",
        "| name in recipes | class | kind | what it is | options |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        options = ", ".join(f"`{key}={value}`" for key, value in row["options"].items()) or "–"
        summary = row["summary"].replace("|", "\\|")
        lines.append(f"| `{row['name']}` | `{row['class']}` | {row['kind']} | {summary} | {options} |")
    return "\n".join(lines) + "\n"
