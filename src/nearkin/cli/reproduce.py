"""The command that runs published tables and figures: reproduce."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from nearkin.cli._app import (
    COMPARE,
    DataRoot,
    Device,
    Epochs,
    Json,
    Verbose,
    app,
    escape,
    print_table,
    progress_console,
)
from nearkin.cli._recipe import changes_from, split_arguments
from nearkin.cli._study import Format, Jobs, Yes, names_in, run_study

if TYPE_CHECKING:
    from nearkin.studies.reproduce import Reproduction, Settings

__all__ = ["reproduce"]


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
    yes: Yes = False,
    listing: Annotated[
        bool, typer.Option("--list", help="Show the rows, each with the command that trains it, and run nothing.")
    ] = False,
    format_: Format = "table",
    data_root: DataRoot = None,
    device: Device = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run the rows of a published table or figure and print ours beside what is published.

    [bold]nearkin reproduce[/bold]  every table and figure of the five papers, and what is missing here to run it

    [bold]nearkin reproduce mpa/table-4 --list[/bold]  its rows, each as a command

    [bold]nearkin reproduce ccp/table-6 --data cub --rows c2,c2_ccp --jobs 4[/bold]  two rows, four models at a time

    [bold]nearkin reproduce vcpa/figure-7 --data cub --backbone resnet50_v1 --weights resnet50.safetensors[/bold]
    with another backbone

    [bold]nearkin reproduce ccp/figure-2[/bold]  nothing to download: digits in two dimensions, as a picture

    [bold]nearkin reproduce mpa/table-7 --data glyphs[/bold]  the same methods on the embedded benchmark

    How long it will take is said first; beyond a quarter of an hour you are asked.

    A row is a recipe in recipes/papers/<paper>/ with the paper's hyper-parameters. What is finished is kept, what was
    interrupted goes on with the same command, and a row whose data or weights are not here is skipped and says so.
    The folder gets the table as Markdown, CSV and JSON, and a picture; tables of one paper share their runs.
    """
    from nearkin.studies.reproduce import Reproduction, Settings
    from nearkin.studies.reproduce.papers import find_item, papers

    name, changes = split_arguments(arguments, what="table")
    changes = changes_from(changes, epochs=epochs, device=device)
    settings = Settings(backbone, weights, None if data_root is None else str(data_root), tuple(changes))
    if name is None or name in papers():
        _print_items(name, settings, as_json)
        return
    item = find_item(name)
    if item.instead is not None:
        print(json.dumps({"table": item.id, "instead": item.instead}) if as_json else f"{item.id}: {item.instead}")
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
    if listing:
        _print_rows(study, as_json)
        return
    run_study(study, jobs=jobs, yes=yes, format_=format_, as_json=as_json, verbose=verbose)


def _print_items(paper: str | None, settings: Settings, as_json: bool) -> None:
    from nearkin.report.table import Part, Table
    from nearkin.studies.reproduce.papers import items, paper_titles
    from nearkin.studies.reproduce.survey import standing_of

    standings = [standing_of(item, settings) for item in items(paper)]
    if as_json:
        print(json.dumps([standing.as_record() for standing in standings]))
        return
    parts = []
    for key, title in paper_titles().items():
        mine = [standing for standing in standings if standing.item.paper == key]
        columns = ("table", "what it shows", "data", "rows", "missing here")
        cells = [standing.cells() for standing in mine]
        parts += [Part.of(columns, cells, title=f"{key.upper()}: {title}", texts=5)] if mine else []
    hint = "Run one: nearkin reproduce TABLE. See its rows: nearkin reproduce TABLE --list"
    print_table(Table("", tuple(parts), (hint,)))


def _print_rows(study: Reproduction, as_json: bool) -> None:
    from nearkin.studies.reproduce.survey import DIGITS
    from nearkin.studies.reproduce.tables import heading

    if as_json:
        print(json.dumps([row.as_record() for part in study.asked for row in part.rows]))
        return
    console = Console()
    for part in study.asked:
        console.print(f"[bold]{escape(heading(part.table))}[/bold]", highlight=False)
        for row in part.rows:
            scores = ", ".join(f"{each.metric} {each.text}" for each in row.published)
            console.print(
                f"\n[bold]{escape(row.row.name)}[/bold] on {escape(row.data)}: {escape(row.row.title)}"
                + (f"; published: {scores}" if scores else ""),
                highlight=False,
                soft_wrap=True,
            )
            if row.recipe is not None:
                console.print(f"  {escape(row.command)}", highlight=False, soft_wrap=True)
            if row.problem:
                what = DIGITS if part.table.draw.kind == "digits" else "cannot be run here"
                text = f"  [yellow]{what}:[/yellow] {escape(row.problem)}"
                console.print(text, highlight=False, soft_wrap=True)
