"""The reality check's result for people: a table for the terminal and Markdown, with what its figures hold for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from nearkin.report.formats import markdown_table
from nearkin.runs.folder import write_atomically
from nearkin.studies.mlrc import METRICS

Result = Mapping[str, Any]
"""What :func:`nearkin.studies.mlrc.run_mlrc` returns."""


def mlrc_table(result: Result) -> Group:
    """The scores for a terminal."""
    heading, *rows = score_lines(result)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(heading):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return Group(Text(mlrc_title(result), style="bold"), table, Text("\n".join(mlrc_conditions(result)), style="dim"))


def mlrc_markdown(result: Result) -> str:
    """The scores and the models behind them as Markdown."""
    said = "\n\n".join(mlrc_conditions(result))
    return "\n\n".join(
        [
            f"# {mlrc_title(result)}",
            said,
            markdown_table(score_lines(result)),
            "## Models",
            markdown_table(model_lines(result)),
        ]
    )


def write_mlrc(result: Result, folder: str | Path) -> Path:
    """Write ``mlrc.md`` beside ``mlrc.json``."""
    file = Path(folder) / "mlrc.md"
    write_atomically(file, (mlrc_markdown(result) + "\n").encode())
    return file


def mlrc_title(result: Result) -> str:
    method = "" if result["method"] == "plain" else f" with {result['method']}"
    return f"MLRC on {result['data']}: {result['objective']}{method}, {result['test_classes']}"


def score_lines(result: Result) -> list[list[str]]:
    """Headings and cells of the scores, in per cent: mean ± half of the interval, where there is one."""
    lines = [["score (%)", "dimensions", *METRICS]]
    for kind, dim in (("separate", "dim"), ("concatenated", "concatenated_dim")):
        lines.append([kind, str(result[dim]), *(interval_text(result[kind][name]) for name in METRICS)])
    return lines


def model_lines(result: Result) -> list[list[str]]:
    """Headings and cells of the single models: which epoch its fold chose, and its scores on the test classes."""
    lines = [["repeat", "fold", "seed", "epoch", f"{result['select_by']} on its fold", *METRICS]]
    for model in result["models"]:
        epoch = "–" if model["epoch"] is None else f"{model['epoch']:g}"
        scores = [model["chosen_by"], *(model["scores"][name] for name in METRICS)]
        cells = ["–" if score is None else f"{100 * score:.2f}" for score in scores]
        lines.append([str(model["repeat"]), str(model["fold"]), str(model["seed"]), epoch, *cells])
    return lines


def interval_text(value: Mapping[str, Any]) -> str:
    """``mean ± half of the interval`` in per cent; one repeat has no interval.

    >>> interval_text({"mean": 0.612, "interval": [0.6, 0.624]}), interval_text({"mean": 0.612, "interval": None})
    ('61.20 ± 1.20', '61.20')
    """
    interval = value["interval"]
    half = "" if interval is None else f" ± {50 * (interval[1] - interval[0]):.2f}"
    return f"{100 * value['mean']:.2f}{half}"


def mlrc_conditions(result: Result) -> list[str]:
    """What the figures hold for: protocol, selection, seeds, hardware; and how they were made."""
    folds, repeats, seeds = result["folds"], result["repeats"], result["seeds"]
    parts = [
        f"{result['protocol']} protocol, {result['selection']}",
        f"{folds} folds, {repeats} {'repeat' if repeats == 1 else 'repeats'}, seeds {seeds[0]}–{seeds[-1]}",
        *([result["training_conditions"]] if result["training_conditions"] else []),
        str(result["hardware"]),
        f"recipe {result['recipe']}",
    ]
    made = f"Separate: mean of the {folds} models of a repeat. Concatenated: their embeddings side by side"
    if repeats == 1:
        return ["; ".join(parts) + ".", f"{made}. One repeat has no confidence interval."]
    scored, possible = result["combinations"]["scored"], result["combinations"]["possible"]
    which = f"all {possible:,}" if scored == possible else f"{scored:,} drawn from the {possible:,}"
    reading = (
        f"{made}, mean over {which} combinations of one repeat per fold. ± is half of the 95 % confidence interval of "
        f"the mean: Student's t over repeats, and for combinations over the models in them."
    )
    return ["; ".join(parts) + ".", reading]
