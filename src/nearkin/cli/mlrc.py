"""The command for the metric-learning reality check: mlrc."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearkin.cli._app import COMPARE, app, progress_console
from nearkin.cli._study import run_study
from nearkin.cli.options import ClassFolders, DataRoot, Device, Format, Jobs, Json, OtherData, Verbose, recipe_from


@app.command(rich_help_panel=COMPARE)
def mlrc(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE [KEY=VALUE]...",
            help="A recipe file or name, then changes to it, such as protocol.folds=4 or encoder.dim=128.",
        ),
    ] = None,
    data: OtherData = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Models per fold; two or more give confidence intervals.")
    ] = 1,
    jobs: Jobs = 1,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for all models. Default: runs/mlrc-<data>-<objective>-<hash>."),
    ] = None,
    class_folders: ClassFolders = None,
    format_: Format = "table",
    data_root: DataRoot = None,
    device: Device = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Train one model per class fold and score them alone and concatenated, as the reality check does.

    [bold]nearkin mlrc cub/proxy_anchor --jobs 4 encoder.dim=128[/bold]  four models at a time

    [bold]nearkin mlrc cub/proxy_anchor --repeats 10 --jobs 4 encoder.dim=128[/bold]  with confidence intervals

    Each model holds out one of four folds of the training classes to choose its epoch; the test classes are scored
    once. Stopped at any time, the same command resumes, and more repeats keep the models that are there. The folder
    gets every model, mlrc.json and mlrc.md.
    """
    from nearkin.studies.mlrc import RealityCheck

    console = progress_console(verbose)
    recipe = recipe_from(arguments, data, console, root=data_root, device=device, class_folders=class_folders)
    study = RealityCheck(recipe, repeats, output)
    run_study(study, jobs=jobs, format_=format_, as_json=as_json, verbose=verbose)
