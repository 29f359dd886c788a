"""Scores as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from nearkin import losses
from nearkin.evaluation.protocol import SELECTED_ON_TEST


def score_table(scores: dict[str, Any]) -> Group:
    """A run's scores before and after training, with the protocol, selection rule, seed and hardware they hold for."""
    caption = (
        f"{scores['protocol']} protocol, {scores['selection']}; "
        + (f"{said}; " if (said := scores.get("training_conditions")) else "")
        + f"seed {scores['seed']}; {scores['hardware']}; {scores['epochs']:g} epochs in {scores['seconds']:.0f} s"
    )
    columns: dict[str, dict[str, Any] | None] = {"untrained": scores["untrained"], "trained": scores["test"]}
    if scores["protocol"] in SELECTED_ON_TEST:
        columns["last epoch"] = scores["last"]
    return metric_table(f"{scores['data']}: {scores['objective']}, {scores['test_classes']}", columns, caption)


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
