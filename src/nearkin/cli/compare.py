"""The command that compares: baselines and methods with equal budget, over several seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from nearkin.cli._app import COMPARE, app, print_table
from nearkin.cli._study import run_study
from nearkin.cli.options import (
    ClassFolders,
    DataRoot,
    Device,
    Epochs,
    Format,
    Jobs,
    Json,
    ListRows,
    Overwrite,
    Seeds,
    Verbose,
    changes_from,
    names_in,
)
from nearkin.errors import RecipeError


@app.command(rich_help_panel=COMPARE)
def compare(
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Changes for every row, such as training.learning_rate=1e-3."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="A benchmark (glyphs, cub, …), a folder with one folder per class, or a manifest."),
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
    vary: Annotated[
        str | None, typer.Option("--vary", help="Instead of a file's rows, one for each value of a key: key=a,b,c.")
    ] = None,
    ablate: Annotated[
        list[str] | None,
        typer.Option(
            "--ablate",
            help="Instead of a file's rows, the recipe and the recipe with this change, key=value; changes that belong "
            "together are joined by &. Give it once for each.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option("--against", help="The row that rows without a base are compared with. Default: the first."),
    ] = None,
    seeds: Seeds = 3,
    jobs: Jobs = 1,
    epochs: Epochs = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for all runs. Default: runs/compare-<data>-<hash>.")
    ] = None,
    overwrite: Overwrite = False,
    class_folders: ClassFolders = None,
    listing: ListRows = False,
    format_: Format = "table",
    data_root: DataRoot = None,
    device: Device = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Train baselines and methods with equal budget and compare their scores.

    [bold]nearkin compare --data glyphs[/bold]  all rows, three seeds, the embedded benchmark

    [bold]nearkin compare --data cub --jobs 4 encoder.weights=resnet50.safetensors[/bold]  four runs at a time

    [bold]nearkin compare --data PHOTOS --rows proxy_anchor,vcpa --seeds 1[/bold]  two rows on own photos

    [bold]nearkin compare --recipe glyphs/demo --vary objective.alpha=16,32,64[/bold]  one key over several values

    [bold]nearkin compare --recipe cub/best --ablate data.image_size=224 --ablate data.random_erasing=0[/bold]  one
    change at a time

    The epoch is chosen on validation classes, and the test classes are scored once; with --vary and --ablate the
    recipe's own protocol applies. Stopped at any time, the same command resumes; finished runs are kept. The folder
    gets the table as Markdown, CSV and JSON, and a figure.

    Every row is compared with its base: the difference with its 95 % interval and, where that leaves it open, how many
    more seeds would decide it.
    """
    from nearkin.studies.compare import Comparison

    for text in changes or []:
        if "=" not in text:
            raise RecipeError(f"changes are written key=value, got {text!r}; a recipe is named with --recipe")
    study = Comparison(
        data,
        recipe=recipe,
        rows=names_in(rows),
        rows_from=rows_from,
        vary=vary,
        ablate=ablate or (),
        against=against,
        seeds=seeds,
        changes=changes_from(changes or [], epochs=epochs, root=data_root, device=device, class_folders=class_folders),
        folder=output,
    )
    if listing:
        table = study.listing()
        print(json.dumps(list(table.records))) if as_json else print_table(table, format_)
        return
    run_study(study, jobs=jobs, overwrite=overwrite, format_=format_, as_json=as_json, verbose=verbose)
