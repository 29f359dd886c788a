"""Commands that list what there is: datasets, losses, scores, recipes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from nearkin.cli._app import DataRoot, Json, app

__all__ = ["datasets", "losses", "recipes", "scores"]

Markdown = Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")]


@app.command()
def datasets(data_root: DataRoot = None, as_json: Json = False) -> None:
    """List the benchmarks and what is found of them under the data root."""
    from nearkin.data.benchmarks import survey
    from nearkin.data.source import data_root as root_of

    root = root_of(data_root)
    rows = survey(root or Path("data"))
    if as_json:
        print(json.dumps([_availability(row) for row in rows]))
        return
    where = f"under {root}" if root else "(no data root given)"
    table = Table(title=f"Benchmarks {where}", title_justify="left")
    for column in ("name", "title", "images (classes)", "found"):
        table.add_column(column, overflow="fold")
    for row in rows:
        known = _availability(row)
        counts = ", ".join(f"{split} {n:,} ({c:,})" for split, (n, c) in known["counts"].items())
        table.add_row(known["name"], known["title"], counts, known["problem"] or known["found"] or "–")
    Console().print(table)
    Console().print("Put data sets below one folder and name it with --data-root or NEARKIN_DATA.")


@app.command()
def losses(as_json: Json = False, markdown: Markdown = False) -> None:
    """List the losses, with their options and defaults: names for a recipe's objective.name."""
    from nearkin.report.tables import loss_rows, losses_page

    rows = loss_rows()
    if as_json:
        print(json.dumps(rows))
        return
    if markdown:
        print(losses_page(rows), end="")
        return
    table = Table(title="Losses", title_justify="left")
    for column in ("name", "kind", "what it is", "options"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(
            row["name"], row["kind"], row["summary"], ", ".join(f"{k}={v}" for k, v in row["options"].items())
        )
    Console().print(table)


@app.command()
def scores(as_json: Json = False, markdown: Markdown = False) -> None:
    """List the scores and what they mean: names for a recipe's protocol.scores and protocol.select_by."""
    from nearkin.evaluation.scores import catalogue
    from nearkin.report.formats import markdown_table

    rows = [
        {
            "name": name,
            "file": file,
            "unit": "%" if score.in_percent else "as it is",
            "digits": score.digits,
            "better": "higher" if score.higher_is_better else "lower",
            "measured": "every evaluation" if score.every_evaluation else "at the end",
            "meaning": meaning,
        }
        for file, score in catalogue().items()
        for name, meaning in score.meanings.items()
    ]
    if as_json:
        print(json.dumps(rows))
        return
    if markdown:
        columns = ["name", "unit", "better", "measured", "meaning"]
        print("# Scores\n\nRead off the files in `src/nearkin/evaluation/scores/` by `nearkin scores --markdown >")
        print("docs/scores.md`. Each, with a number for k, is a name for `protocol.scores`, which measures it besides")
        print("what the other keys of the protocol ask for.\n")
        print(markdown_table([columns, *([str(row[column]) for column in columns] for row in rows)]))
        return
    table = Table("name", "better", "measured", "meaning", title="Scores", title_justify="left")
    for row in rows:
        table.add_row(*(str(row[str(column.header)]) for column in table.columns))
    Console().print(table)


@app.command()
def recipes(as_json: Json = False, markdown: Markdown = False) -> None:
    """List the recipes that come with nearkin; as Markdown or JSON with the scores to expect and the run times."""
    from nearkin.studies.reproduce.expected import listed_recipes, recipes_page

    listed = listed_recipes()
    if as_json:
        print(json.dumps([dataclasses.asdict(each) for each in listed]))
        return
    if markdown:
        print(recipes_page(listed), end="")
        return
    table = Table(title="Recipes", title_justify="left")
    table.add_column("name", overflow="fold")
    table.add_column("what it does", overflow="fold")
    for each in listed:
        table.add_row(each.name, each.summary)
    Console().print(table)


def _availability(row: Any) -> dict[str, Any]:
    benchmark = row.benchmark
    found = "comes with nearkin" if benchmark.embedded else (str(row.path) if row.path else None)
    counts = {split: list(pair) for split, pair in benchmark.counts.items()}
    return {
        "name": benchmark.name,
        "title": benchmark.title,
        "counts": counts,
        "home": benchmark.home,
        "found": found,
        "problem": row.problem,
    }
