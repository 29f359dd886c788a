"""The command that searches for better hyper-parameters: tune."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from nearkin.cli._app import COMPARE, app, progress_console
from nearkin.cli._study import run_study
from nearkin.cli.options import (
    ClassFolders,
    DataRoot,
    Device,
    Epochs,
    Format,
    Jobs,
    Json,
    OtherData,
    Verbose,
    recipe_from,
)
from nearkin.errors import RecipeError


@app.command(rich_help_panel=COMPARE)
def tune(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE [KEY=VALUE]...",
            help="A recipe file or name, then changes for every trial, such as protocol.name=validation.",
        ),
    ] = None,
    *,
    space: Annotated[
        list[str],
        typer.Option(
            "--space",
            help="What to vary: key=low..high, key=low..high:log or key=a,b,c; a YAML file of such; or ccp, vcpa or "
            "optimiser, which come with nearkin. Give it once for each.",
        ),
    ],
    data: OtherData = None,
    trials: Annotated[
        int | None,
        typer.Option("--trials", min=1, help="Trials in all, those from before included. Default: 20, a grid whole."),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Models per trial; their mean counts.")] = 1,
    jobs: Jobs = 1,
    sampler: Annotated[
        Literal["tpe", "random", "grid"],
        typer.Option("--sampler", help="What suggests the next trial. A grid goes through all listed values."),
    ] = "tpe",
    pruner: Annotated[
        Literal["median", "none"] | None,
        typer.Option("--pruner", help="What gives up trials that do badly. Default: median, for a grid none."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the sampler; models have training.seed.")] = 0,
    epochs: Epochs = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for the search. Default: runs/tune-<data>-<objective>-<hash>."),
    ] = None,
    class_folders: ClassFolders = None,
    format_: Format = "table",
    data_root: DataRoot = None,
    device: Device = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Search for better hyper-parameters, by the scores of validation classes alone.

    [bold]nearkin tune glyphs/demo --space training.learning_rate=1e-4..1e-2:log --trials 30[/bold]  one key

    [bold]nearkin tune glyphs/ccp --space ccp --trials 40 --epochs 5[/bold]  CCP's proximal weight and proxies

    [bold]nearkin tune glyphs/ccp --space method.proximal_weight=0,1e-4,1e-2 --space method.proxies_per_class=1,2,4
    --sampler grid[/bold]  every pair of values

    The test classes are not looked at. Stopped at any time, the same command resumes, also with more --trials. The
    folder gets every trial as a run, trials.csv, Optuna's plots and the best as best.yaml, ready to be trained.
    """
    from nearkin.studies.tune import Search

    for text in arguments or []:
        if re.search(r"=[-+]?\d[-+.\de]*\.\.[-+.]?\d", text):
            raise RecipeError(f"a range belongs behind --space, which is given once for each: --space {text}")
    console = progress_console(verbose)
    recipe = recipe_from(
        arguments, data, console, root=data_root, device=device, class_folders=class_folders, epochs=epochs
    )
    study = Search(recipe, space, trials=trials, seeds=seeds, sampler=sampler, pruner=pruner, seed=seed, folder=output)
    run_study(study, jobs=jobs, format_=format_, as_json=as_json, verbose=verbose)
