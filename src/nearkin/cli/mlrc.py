"""The command for the metric-learning reality check: mlrc."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from nearkin.cli._app import DataRoot, Device, Json, Kinds, Verbose, announcer, app, progress_console
from nearkin.cli._plan import Yes, agree, counted
from nearkin.cli.training import recipe_from

__all__ = ["mlrc"]


@app.command()
def mlrc(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE [KEY=VALUE]...",
            help="A recipe file or name, then changes to it, such as protocol.folds=4 or encoder.dim=128.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Images instead of the recipe's: a benchmark, a folder or a manifest."),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Models per fold; two or more give confidence intervals.")
    ] = 1,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Models to train at a time, to fill a GPU.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for all models. Default: runs/mlrc-<data>-<objective>-<hash>."),
    ] = None,
    kinds: Kinds = None,
    yes: Yes = False,
    data_root: DataRoot = None,
    device: Device = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Train one model per class fold and score them alone and side by side, as the reality check does.

    [bold]nearkin mlrc cub/proxy_anchor --jobs 4 encoder.dim=128[/bold]  four models at a time

    [bold]nearkin mlrc cub/proxy_anchor --repeats 10 --jobs 4 encoder.dim=128[/bold]  with confidence intervals

    How long it will take is said first; beyond a quarter of an hour you are asked.

    Each model holds out one of four folds of the training classes to choose its epoch; the test classes are scored
    once. Stopped at any time, the same command goes on, and more repeats keep the models that are there. The folder
    gets every model, mlrc.json and mlrc.md.
    """
    from nearkin.report.mlrc import mlrc_table, write_mlrc
    from nearkin.studies.mlrc import default_mlrc_folder, mlrc_models, run_mlrc
    from nearkin.studies.time_plan import plan_time

    progress = progress_console(verbose)
    recipe = recipe_from(arguments or [], data, data_root, device, progress, kinds=kinds)
    folder = output or default_mlrc_folder(recipe)
    models = mlrc_models(recipe, folder, repeats)
    done = sum(model.folder.is_finished for model in models)
    plan = (
        f"Plan: {counted(recipe.protocol.folds, 'fold')} × {counted(repeats, 'repeat')} = "
        f"{counted(len(models), 'model')}, {done} of them trained already, into {folder}"
    )
    agree([plan], lambda: plan_time(models, jobs=jobs), yes=yes)
    announce = announcer(progress, as_json=as_json)
    result = run_mlrc(recipe, folder, repeats=repeats, jobs=jobs, console=progress, announce=announce)
    written = write_mlrc(result, folder)
    if as_json:
        print(json.dumps({"folder": str(folder), **result}))
        return
    console = Console()
    console.print(mlrc_table(result))
    console.print(f"Written: {written}, {folder / 'mlrc.json'}", soft_wrap=True, highlight=False)
