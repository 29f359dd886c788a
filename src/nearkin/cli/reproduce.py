"""The command that runs published tables and figures: reproduce."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from nearkin.cli._app import DataRoot, Device, Json, Verbose, app, escape, progress_console
from nearkin.cli._plan import Yes, agree, counted
from nearkin.errors import DataError, RecipeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearkin.studies.reproduce import PlannedRow, Settings
    from nearkin.studies.reproduce.papers import PaperTable
    from nearkin.studies.study import Outcome, StudyRun

__all__ = ["reproduce"]


@app.command()
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
            "no published figure to compare with.",
        ),
    ] = None,
    rows: Annotated[
        str | None, typer.Option("--rows", help="Rows to run, with commas between; --list shows their names.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each row, or repeats of a reality check.")] = 1,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs at a time, to fill a GPU.")] = 1,
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
    epochs: Annotated[int | None, typer.Option("--epochs", min=0, help="Epochs of every run.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for tables and runs. Default: runs/reproduce/<paper>."),
    ] = None,
    yes: Yes = False,
    listing: Annotated[
        bool, typer.Option("--list", help="Show the rows, each with the command that trains it, and run nothing.")
    ] = False,
    format_: Annotated[
        Literal["table", "md", "csv"], typer.Option("--format", help="How to print the result.")
    ] = "table",
    data_root: DataRoot = None,
    device: Device = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run the rows of a published table or figure and print ours beside the published figures.

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
    from nearkin.studies.reproduce import Settings, find_item, papers, runs_of, tables_of
    from nearkin.studies.reproduce.digits import with_digits
    from nearkin.studies.time_plan import plan_time

    names = [text for text in arguments or [] if "=" not in text]
    changes = [text for text in arguments or [] if "=" in text]
    if len(names) > 1:
        raise RecipeError(f"one table at a time, got {', '.join(names)}; changes to its rows are written key=value")
    if epochs is not None:
        changes.append(f"training.epochs={epochs}")
    if device is not None:
        changes.append(f"training.device={device}")
    settings = Settings(backbone, weights, None if data_root is None else str(data_root), tuple(changes))
    if not names or names[0] in papers():
        _print_items(names[0] if names else None, settings, as_json)
        return
    item = find_item(names[0])
    tables = tables_of(item)
    if item.instead is not None:
        print(json.dumps({"table": item.id, "instead": item.instead}) if as_json else f"{item.id}: {item.instead}")
        return
    asked = None if rows is None else [name.strip() for name in rows.split(",") if name.strip()]
    sources = None if data is None else [name.strip() for name in data.split(",") if name.strip()]
    if sources is not None and len(tables) > 1:
        tables = [table for table in tables if set(sources) & set(table.data)] or tables[:1]
    seed = next((int(text.partition("=")[2]) for text in changes if text.startswith("training.seed=")), 0)
    folder = output or Path("runs") / "reproduce" / item.paper
    progress, each = progress_console(verbose), list(range(seed, seed + seeds))
    runs: dict[Path, StudyRun] = {}
    prepared = []
    for table in tables:
        chosen = [name for name in sources if name in table.data or len(tables) == 1] if sources else list(table.data)
        if listing:
            _print_rows(table, _planned(table, asked, chosen, settings), as_json)
            continue
        own = with_digits(table, settings, folder, say=progress.print)
        planned = _planned(table, asked, chosen, own, say=progress.print)
        prepared.append((table, chosen, own, planned))
        runs |= {run.folder.path: run for run in runs_of(table, planned, folder, each)}
    if listing:
        return
    if runs:
        done = sum(run.folder.is_finished for run in runs.values())
        said = f"Plan: {counted(len(runs), 'run')} for {item.id}, {done} of them finished already, into {folder}"
        agree([said], lambda: plan_time(list(runs.values()), jobs=jobs), yes=yes)
    problems: list[Outcome] = []
    ran = 0
    for table, chosen, own, planned in prepared:
        outcomes = _run(table, planned, chosen, own, folder, each, jobs, format_, as_json, progress)
        ran += len(outcomes)
        problems += [outcome for outcome in outcomes if outcome.status != "finished"]
    if problems:
        worst = next((outcome for outcome in problems if outcome.status == "failed"), problems[0])
        _say_error(f"{len(problems)} of {ran} runs did not finish: {worst.reason}")
        raise typer.Exit(worst.exit_code or 1)
    if not ran:
        _say_error("no row could be run here; the table says why")
        raise typer.Exit(DataError.exit_code)


def _run(
    table: PaperTable,
    planned: Sequence[PlannedRow],
    data: Sequence[str],
    settings: Settings,
    folder: Path,
    seeds: list[int],
    jobs: int,
    format_: str,
    as_json: bool,
    progress: Console,
) -> list[Outcome]:
    """Run what can be run of a table, write it and print it."""
    from nearkin.studies.reproduce import carry_out, lines_of
    from nearkin.studies.reproduce.figures import draw_table
    from nearkin.studies.reproduce.tables import (
        reproduction_csv,
        reproduction_json,
        reproduction_markdown,
        reproduction_table,
        write_tables,
    )

    for reason in dict.fromkeys(row.problem for row in planned if row.problem and row.recipe is not None):
        progress.print(f"[yellow]skipped:[/yellow] {escape(reason)}", highlight=False, soft_wrap=True)
    outcomes = carry_out(table, planned, folder, seeds, jobs=jobs, console=progress)
    wanted = {(row.data, row.definition.name) for row in planned}
    every = lines_of(table, _planned(table, None, data, settings), folder, seeds)
    lines = [line for line in every if (line.row.data, line.row.definition.name) in wanted or line.finished]
    files = [*write_tables(table, lines, settings, folder), *draw_table(table, lines, settings, folder)]
    if as_json:
        print(json.dumps({"folder": str(folder), **reproduction_json(table, lines, settings)}))
    elif format_ == "table":
        console = Console()
        console.print(reproduction_table(table, lines, settings))
        console.print(f"Written: {', '.join(str(file) for file in files)}", soft_wrap=True, highlight=False)
    else:
        print(
            reproduction_markdown(table, lines, settings) if format_ == "md" else reproduction_csv(table, lines), end=""
        )
    return outcomes


def _planned(
    table: PaperTable, asked: Sequence[str] | None, data: Sequence[str], settings: Settings, **options: Any
) -> list[PlannedRow]:
    from nearkin.studies.reproduce import planned_rows
    from nearkin.studies.reproduce.papers import chosen_rows

    return planned_rows(table, chosen_rows(table.rows, asked), data, settings, **options)


def _print_items(paper: str | None, settings: Settings, as_json: bool) -> None:
    from nearkin.studies.reproduce import items, standing_of
    from nearkin.studies.reproduce.papers import paper_titles

    standings = [standing_of(item, settings) for item in items(paper)]
    if as_json:
        listed = [
            {
                "table": standing.item.id,
                "title": standing.item.title,
                "data": list(standing.data),
                "rows": standing.rows,
                "missing_data": list(standing.missing_data),
                "missing_weights": list(standing.missing_weights),
                "instead": standing.item.instead,
                "same_as": [f"{standing.item.paper}/{key}" for key in standing.item.same_as],
            }
            for standing in standings
        ]
        print(json.dumps(listed))
        return
    console = Console()
    for key, title in paper_titles().items():
        mine = [standing for standing in standings if standing.item.paper == key]
        if not mine:
            continue
        table = Table(
            title=f"{key.upper()}: {title}",
            title_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 1, 0, 0),
            expand=True,
        )
        table.add_column("table", no_wrap=True)
        table.add_column("what it shows", overflow="fold", ratio=4)
        table.add_column("data", overflow="fold", ratio=2)
        table.add_column("rows", justify="right")
        table.add_column("missing here", overflow="fold", ratio=4)
        for standing in mine:
            same = ", ".join(standing.item.same_as)
            table.add_row(
                standing.item.id,
                standing.item.title + (f" (rows of {same})" if same else ""),
                ", ".join(standing.data) or "–",
                str(standing.rows or "–"),
                standing.in_the_way,
            )
        console.print(table)
    console.print("Run one: nearkin reproduce TABLE. See its rows: nearkin reproduce TABLE --list", soft_wrap=True)


def _print_rows(table: PaperTable, planned: Sequence[PlannedRow], as_json: bool) -> None:
    from nearkin.studies.reproduce.survey import DIGITS
    from nearkin.studies.reproduce.tables import heading, printed

    if as_json:
        listed = [
            {
                "name": row.definition.name,
                "title": row.definition.title,
                "data": row.data,
                "command": None if row.recipe is None else row.command,
                "recipe": None if row.recipe is None else row.recipe.as_mapping(),
                "published": {f"{each.dim}-d {each.protocol} {each.metric}": each.value for each in row.figures},
                "problem": row.problem,
            }
            for row in planned
        ]
        print(json.dumps(listed))
        return
    console = Console()
    console.print(f"[bold]{escape(heading(table))}[/bold]", highlight=False)
    for row in planned:
        scores = ", ".join(f"{each.metric} {printed(each.value)}" for each in row.figures)
        console.print(
            f"\n[bold]{escape(row.definition.name)}[/bold] on {escape(row.data)}: {escape(row.definition.title)}"
            + (f"; published: {scores}" if scores else ""),
            highlight=False,
            soft_wrap=True,
        )
        if row.recipe is not None:
            console.print(f"  {escape(row.command)}", highlight=False, soft_wrap=True)
        if row.problem:
            what = DIGITS if table.draw.kind == "digits" else "cannot be run here"
            text = f"  [yellow]{what}:[/yellow] {escape(row.problem)}"
            console.print(text, highlight=False, soft_wrap=True)


def _say_error(text: str) -> None:
    Console(stderr=True).print(f"[bold red]error:[/bold red] {escape(text)}", highlight=False, soft_wrap=True)
