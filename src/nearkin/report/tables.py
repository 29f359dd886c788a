"""Scores as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text


def score_table(scores: dict[str, Any]) -> Group:
    """A run's scores before and after training, with the protocol, selection rule, seed and hardware they hold for."""
    caption = (
        f"{scores['protocol']} protocol, {scores['selection']}; seed {scores['seed']}; {scores['hardware']}; "
        f"{scores['epochs']:g} epochs in {scores['seconds']:.0f} s"
    )
    columns: dict[str, dict[str, Any] | None] = {"untrained": scores["untrained"], "trained": scores["test"]}
    if scores["protocol"] == "conventional":
        columns["last epoch"] = scores["last"]
    return metric_table(f"{scores['data']}: {scores['objective']}, classes never seen in training", columns, caption)


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
