"""The command that runs published tables and figures: reproduce."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from nearkin.cli._app import COMPARE, app, print_table, progress_console
from nearkin.cli._study import run_study
from nearkin.cli.options import (
    DataRoot,
    Device,
    Epochs,
    Format,
    Jobs,
    Json,
    Verbose,
    changes_from,
    names_in,
    split_arguments,
)

if TYPE_CHECKING:
    from nearkin.studies.reproduce import Reproduction
    from nearkin.studies.study import Row


@app.command(rich_help_panel=COMPARE)
def reproduce(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE] [KEY=VALUE]...",
            help="A table or figure such as ccp/table-6, or a paper such as ccp to list its own; then changes to every "
            "row, such as training.epochs=30. Without anything: the list of all.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="Data sets to run, with commas between. Default: all of the table. Others than the paper's can be "
            "given too (glyphs, a folder of photos): the methods are then trained as suits the data, and there is "
            "nothing published to compare with.",
        ),
    ] = None,
    rows: Annotated[
        str | None, typer.Option("--rows", help="Rows to run, with commas between; --list shows their names.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each row, or repeats of a reality check.")] = 1,
    jobs: Jobs = 1,
    backbone: Annotated[
        str | None,
        typer.Option(
            "--backbone",
            help="Another backbone than the paper's; the table says so. resnet50 for torchvision's weights, "
            "resnet50_v1 for weights with the stride on the first convolution.",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            help="File with the backbone's ImageNet weights; none to start from scratch. Default: "
            "weights/<backbone>.safetensors or .pth below the data root.",
        ),
    ] = None,
    epochs: Epochs = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for tables and runs. Default: runs/reproduce/<paper>."),
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="Show the rows, each with the command that trains it, and run nothing.")
    ] = False,
    format_: Format = "table",
    data_root: DataRoot = None,
    device: Device = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run the rows of a published table or figure and print ours next to what is published.

    [bold]nearkin reproduce[/bold]  every table and figure of the five papers, and what is missing here to run it

    [bold]nearkin reproduce mpa/table-4 --list[/bold]  its rows, each as a command

    [bold]nearkin reproduce ccp/table-6 --data cub --rows c2,c2_ccp --jobs 4[/bold]  two rows, four models at a time

    [bold]nearkin reproduce vcpa/figure-7 --data cub --backbone resnet50_v1 --weights resnet50.safetensors[/bold]
    with another backbone

    [bold]nearkin reproduce ccp/figure-2[/bold]  nothing to download: digits in two dimensions, as a figure

    [bold]nearkin reproduce mpa/table-7 --data glyphs[/bold]  the same methods on the embedded benchmark

    A row is a recipe in recipes/papers/<paper>/ with the paper's hyper-parameters. What is finished is kept, what was
    interrupted resumes with the same command, and a row whose data or weights are not here is skipped and says so.
    The folder gets the table as Markdown, CSV and JSON, and a figure; tables of one paper share their runs.
    """
    from nearkin.studies.papers import Settings, list_tables, papers
    from nearkin.studies.reproduce import Reproduction

    name, changes = split_arguments(arguments, what="table")
    changes = changes_from(changes, epochs=epochs, device=device)
    settings = Settings(backbone, weights, None if data_root is None else str(data_root), tuple(changes))
    if name is None or name in papers():
        tables = list_tables(name, settings)
        print(json.dumps(list(tables.records))) if as_json else print_table(tables)
        return
    study = Reproduction(
        name,
        data=names_in(data),
        rows=names_in(rows),
        seeds=seeds,
        settings=settings,
        folder=output,
        say=progress_console(verbose).print,
        listed=listing,
    )
    if study.instead is not None:
        print(json.dumps({"table": study.id, "instead": study.instead}) if as_json else f"{study.id}: {study.instead}")
    elif listing:
        _print_rows(study, as_json)
    else:
        run_study(study, jobs=jobs, format_=format_, as_json=as_json, verbose=verbose)


def _print_rows(study: Reproduction, as_json: bool) -> None:
    """Every row with its published scores and the command that trains it."""
    rows = [row for rows in study.wanted.values() for row in rows]
    if as_json:
        print(json.dumps([_row_record(row) for row in rows]))
        return
    for row in rows:
        scores = ", ".join(f"{value.metric} {value.text}" for value in row.published)
        texts = [f"\n{row.name} on {row.data}: {row.title}" + (f"; published: {scores}" if scores else "")]
        texts += [f"  {row.command}"] * (row.command is not None)
        texts += [f"  cannot be run here: {row.problem}"] * (row.problem is not None)
        for text in texts:
            Console().print(text, highlight=False, soft_wrap=True, markup=False)


def _row_record(row: Row) -> dict[str, Any]:
    published = {f"{value.dim}-d {value.protocol} {value.metric}": value.value for value in row.published}
    texts = {"name": row.name, "title": row.title, "data": row.data, "command": row.command, "problem": row.problem}
    return {**texts, "recipe": row.recipe.as_mapping() if row.command else None, "published": published}
