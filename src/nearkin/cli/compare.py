"""The command that compares: baselines and methods with equal budget, over several seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from nearkin.cli._app import DataRoot, Device, Json, Kinds, Verbose, announcer, app, escape, progress_console
from nearkin.cli._plan import Yes, agree, counted
from nearkin.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearkin.recipe import Recipe
    from nearkin.studies.compare import RowDefinition
    from nearkin.studies.study import Row

__all__ = ["compare"]


@app.command()
def compare(
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Changes for every row, such as training.learning_rate=1e-3."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="A benchmark (glyphs, cub, …), a folder with one folder per kind, or a manifest."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe", help="The recipe that all rows share. Default: that of --rows-from, or one that suits the data."
        ),
    ] = None,
    rows: Annotated[str | None, typer.Option("--rows", help="Rows to run, such as proxy_anchor,vcpa.")] = None,
    rows_from: Annotated[
        str | None,
        typer.Option(
            "--rows-from",
            help="File that defines the rows, or one that comes with nearkin, such as glyphs-ccp or cub; the recipe "
            "that it names goes with it.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each row.")] = 3,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs at a time, to fill a GPU.")] = 1,
    epochs: Annotated[int | None, typer.Option("--epochs", min=0, help="Epochs of every run.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for all runs. Default: runs/compare-<data>-<hash>.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Run anew what the folder holds with another recipe.")
    ] = False,
    kinds: Kinds = None,
    yes: Yes = False,
    listing: Annotated[bool, typer.Option("--list", help="Show the rows and their options, and run nothing.")] = False,
    format_: Annotated[
        Literal["table", "md", "csv"], typer.Option("--format", help="How to print the result.")
    ] = "table",
    data_root: DataRoot = None,
    device: Device = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Train baselines and methods with equal budget and put their scores side by side.

    [bold]nearkin compare --data glyphs[/bold]  all rows, three seeds, the embedded benchmark

    [bold]nearkin compare --data cub --jobs 4 encoder.weights=resnet50.safetensors[/bold]  four runs at a time

    [bold]nearkin compare --data PHOTOS --rows proxy_anchor,vcpa --seeds 1[/bold]  two rows on own photos

    What will be run and how long that takes is said first; beyond a quarter of an hour you are asked.

    The epoch is chosen on validation classes, and the test classes are scored once. Stopped at any time, the same
    command goes on; finished runs are kept. The folder gets the table as Markdown, CSV and JSON, and a picture.
    """
    from nearkin.data.source import is_benchmark
    from nearkin.report.comparison import (
        comparison_csv,
        comparison_json,
        comparison_markdown,
        comparison_table,
        write_comparison,
    )
    from nearkin.runs.run import open_data, report_on
    from nearkin.studies.compare import (
        base_recipe,
        comparison_rows,
        default_study_folder,
        read_definitions,
        rows_file,
        rows_to_show,
        shared_recipe,
    )
    from nearkin.studies.study import planned_runs, run_study, summarise, was_changed
    from nearkin.studies.time_plan import plan_time
    from nearkin.training.observers import ConsoleObserver

    progress = progress_console(verbose)
    overrides = _overrides(changes or [], epochs, data_root, device, kinds)
    remarks: list[str] = []
    recipe = shared_recipe(data, recipe, rows_from, say=remarks.append)
    base = base_recipe(data, recipe, overrides)
    file = rows_file(base, rows_from)
    definitions = read_definitions(file)
    names = None if rows is None else [name.strip() for name in rows.split(",") if name.strip()]
    chosen = comparison_rows(base, definitions=definitions, only=names, overrides=overrides)
    if listing:
        _print_rows(chosen, base, as_json)
        return
    if base.encoder.backbone.startswith("resnet50") and base.encoder.weights is None:
        remarks.append("The ResNet-50 starts from scratch: give it weights with encoder.weights=FILE")
    folder = output or default_study_folder(base, overrides, chosen)
    each = list(range(base.training.seed, base.training.seed + seeds))
    runs = planned_runs(chosen, folder, each)
    anew = [run.folder.path for run in runs if was_changed(run, forgive=overwrite)]
    done = sum(run.folder.is_finished and run.folder.path not in anew for run in runs)
    lines = [
        f"Plan: {counted(len(chosen), 'row')} × {counted(seeds, 'seed')} = {counted(len(runs), 'run')}, {done} of them "
        f"finished already, into {folder}",
        f"Rows of {file.name} on the recipe {recipe}: {_budget(base)}",
        *remarks,
    ]
    agree(lines, lambda: plan_time(runs, jobs=jobs, anew=anew), yes=yes)
    if done < len(runs) and not is_benchmark(base.data.source):
        with ConsoleObserver(progress) as observer:
            opened = open_data(base.data, progress=observer.decoding)
        announcer(progress, as_json=as_json)(report_on(base, opened))
    outcomes = run_study(chosen, folder, each, jobs=jobs, overwrite=overwrite, console=progress)

    others = _buildable(base, definitions, overrides)
    shown, left_out = rows_to_show(chosen, others, folder, each)
    summary = summarise(shown, folder, each)
    files = write_comparison(summary, folder)
    if as_json:
        print(json.dumps({"folder": str(folder), **comparison_json(summary)}))
    elif format_ != "table":
        print(comparison_markdown(summary) if format_ == "md" else comparison_csv(summary), end="")
    else:
        console = Console()
        console.print(comparison_table(summary))
        if left_out:
            console.print(f"Left out, run with another recipe: {', '.join(left_out)}", soft_wrap=True)
        console.print(f"Written: {', '.join(str(file) for file in files)}", soft_wrap=True, highlight=False)
        if "plot" in _commands():
            first = next((o for o in outcomes if o.status == "finished"), None)
            if first is not None:
                console.print(f"Next: nearkin plot {folder / first.row / f'seed-{first.seed}'}", soft_wrap=True)
    problems = [outcome for outcome in outcomes if outcome.status != "finished"]
    if problems:
        failed = [outcome for outcome in problems if outcome.status == "failed"]
        Console(stderr=True).print(
            f"[bold red]error:[/bold red] {len(problems)} of {len(outcomes)} runs did not finish: "
            + escape((failed or problems)[0].reason or ""),
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit((failed or problems)[0].exit_code or 1)


def _overrides(
    changes: list[str], epochs: int | None, root: Path | None, device: str | None, kinds: str | None
) -> list[str]:
    for text in changes:
        if "=" not in text:
            raise RecipeError(f"changes are written key=value, got {text!r}; a recipe is named with --recipe")
    overrides = list(changes)
    if epochs is not None:
        overrides.append(f"training.epochs={epochs}")
    if root is not None:
        overrides.append(f"data.root={json.dumps(str(root))}")
    if device is not None:
        overrides.append(f"training.device={device}")
    if kinds is not None:
        overrides.append(f"data.kinds={kinds}")
    return overrides


def _buildable(base: Recipe, definitions: Sequence[RowDefinition], overrides: Sequence[str]) -> list[Row]:
    """Every row that the changes fit: those for one loss need not fit rows that were not asked for."""
    from nearkin.studies.compare import comparison_rows

    found = []
    for definition in definitions:
        try:
            found += comparison_rows(base, definitions=definitions, only=[definition.name], overrides=overrides)
        except RecipeError:
            continue
    return found


def _print_rows(rows: Sequence[Row], base: Recipe, as_json: bool) -> None:
    from nearkin.studies.compare import what_differs

    if as_json:
        listed = [
            {"name": row.name, "title": row.title, "base": row.base, "recipe": row.recipe.as_mapping()} for row in rows
        ]
        print(json.dumps(listed))
        return
    table = Table(title=f"Rows on {base.data.source}", title_justify="left")
    table.add_column("name", no_wrap=True)
    table.add_column("base", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    for row in rows:
        table.add_row(row.name, row.base or "–", escape(f"{row.title}: {', '.join(what_differs(row.recipe, base))}"))
    console = Console()
    console.print(table)
    console.print(f"The same for all: {_budget(base)}", highlight=False, soft_wrap=True)


def _budget(base: Recipe) -> str:
    training = base.training
    return (
        f"{base.encoder.backbone}, {base.encoder.dim} dimensions, {counted(training.epochs, 'epoch')}, batch "
        f"{training.batch_size}, {training.optimiser}, {training.schedule} schedule, {base.protocol.name} protocol"
    )


def _commands() -> set[str]:
    named = ((command.name, command.callback) for command in app.registered_commands)
    return {name or getattr(callback, "__name__", "").replace("_", "-") for name, callback in named}
