"""The command that searches for better hyper-parameters: tune."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from nearkin.cli._app import DataRoot, Device, Json, Kinds, Verbose, announcer, app, progress_console
from nearkin.cli._plan import Yes, agree, counted
from nearkin.cli.training import recipe_from
from nearkin.errors import RecipeError, TrainingError

__all__ = ["tune"]


@app.command()
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
    data: Annotated[
        str | None,
        typer.Option("--data", help="Images instead of the recipe's: a benchmark, a folder or a manifest."),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option("--trials", min=1, help="Trials in all, those from before included. Default: 20, a grid whole."),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Models per trial; their mean counts.")] = 1,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Trials at a time, to fill a GPU.")] = 1,
    sampler: Annotated[
        Literal["tpe", "random", "grid"],
        typer.Option("--sampler", help="Who suggests the next trial. A grid goes through all listed values."),
    ] = "tpe",
    pruner: Annotated[
        Literal["median", "halving", "none"] | None,
        typer.Option("--pruner", help="Who gives up trials that do badly. Default: median, for a grid none."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the sampler; models have training.seed.")] = 0,
    epochs: Annotated[int | None, typer.Option("--epochs", min=1, help="Epochs of every trial.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for the search. Default: runs/tune-<data>-<objective>-<hash>."),
    ] = None,
    kinds: Kinds = None,
    yes: Yes = False,
    data_root: DataRoot = None,
    device: Device = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Search for better hyper-parameters, by the scores of validation classes alone.

    [bold]nearkin tune glyphs/demo --space training.learning_rate=1e-4..1e-2:log --trials 30[/bold]  one key

    [bold]nearkin tune glyphs/ccp --space ccp --trials 40 --epochs 5[/bold]  CCP's pull and proxies, as a plane

    [bold]nearkin tune glyphs/ccp --space method.pull=0,1e-4,1e-2 --space method.proxies_per_class=1,2,4 --sampler
    grid[/bold]  every pair of values

    How long it will take is said first; beyond a quarter of an hour you are asked.

    The test classes are not looked at. Stopped at any time, the same command goes on, also with more --trials. The
    folder gets every trial as a run, trials.csv, pictures and the best as best.yaml, ready to be trained.
    """
    from nearkin.report.tuning import three_seeds, tuning_table, write_tuning
    from nearkin.studies.time_plan import plan_time
    from nearkin.studies.tune import Plan, default_tuning_folder, planned_trials, read_space
    from nearkin.studies.tune import tune as search

    for text in arguments or []:
        if re.search(r"=[-+]?\d[-+.\de]*\.\.[-+.]?\d", text):
            raise RecipeError(f"a range belongs behind --space, which is given once for each: --space {text}")
    progress = progress_console(verbose)
    changes = [] if epochs is None else [f"training.epochs={epochs}"]
    recipe = recipe_from([*(arguments or []), *changes], data, data_root, device, progress, kinds=kinds)
    pruner = pruner or ("none" if sampler == "grid" else "median")
    plan = Plan(recipe, read_space(space, recipe), sampler, pruner, seed, seeds)
    folder = output or default_tuning_folder(plan)
    runs, ended = planned_trials(plan, folder, trials)
    said = (
        f"Plan: {counted(plan.trials(trials), 'trial')} × {counted(seeds, 'seed')}, {ended} of them ended already, "
        f"into {folder}" + ("" if pruner == "none" else "; those that do badly are given up before their end")
    )
    agree([said], lambda: plan_time(runs, jobs=jobs), yes=yes)
    announce = announcer(progress, as_json=as_json)
    tuning = search(plan, folder, trials=trials, jobs=jobs, console=progress, announce=announce)
    files = write_tuning(tuning)
    if as_json:
        listed = [dataclasses.asdict(trial) for trial in tuning.trials]
        best = tuning.ranking[0].number if tuning.ranking else None
        found = {"folder": str(folder), "select_by": tuning.select_by, "best": best, **tuning.conditions}
        print(json.dumps(found | {"trials": listed}))
    else:
        console = Console()
        console.print(tuning_table(tuning))
        console.print(f"Written: {', '.join(str(file) for file in files)}", soft_wrap=True, highlight=False)
        if tuning.ranking:
            console.print(f"Next: {three_seeds(tuning)}", soft_wrap=True, highlight=False, markup=False)
    if not tuning.ranking:
        reason = next((trial.reason for trial in tuning.trials if trial.reason), "none was carried out to its end")
        raise TrainingError(f"no trial has finished: {reason}")
