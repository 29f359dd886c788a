"""The command that runs any planner: study."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from nearkin.cli._app import (
    COMPARE,
    ClassFolders,
    DataRoot,
    Device,
    Epochs,
    Json,
    Markdown,
    Verbose,
    app,
    print_listing,
    print_table,
    progress_console,
)
from nearkin.cli._recipe import recipe_from
from nearkin.cli._study import Format, Jobs, Listed, OtherData, Overwrite, Seeds, Yes, run_study
from nearkin.errors import RecipeError

__all__ = ["study"]


@app.command(rich_help_panel=COMPARE)
def study(
    planner: Annotated[str | None, typer.Argument(help="A planner; without one, the list of all.")] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="RECIPE [KEY=VALUE]...", help="The recipe that it plans around, and changes to it."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the planner, option=value. Give it once for each.")
    ] = None,
    data: OtherData = None,
    seeds: Seeds = 3,
    jobs: Jobs = 1,
    epochs: Epochs = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for all runs.")] = None,
    overwrite: Overwrite = False,
    class_folders: ClassFolders = None,
    yes: Yes = False,
    listing: Listed = False,
    format_: Format = "table",
    data_root: DataRoot = None,
    device: Device = None,
    as_json: Json = False,
    markdown: Markdown = False,
    verbose: Verbose = False,
) -> None:
    """Run a planner of many runs around a recipe, such as one key over several values.

    [bold]nearkin study[/bold]  every planner, with its options; some have a command of their own

    [bold]nearkin study vary glyphs/demo --set key=objective.alpha --set values=16,32,64[/bold]  an ablation

    Stopped at any time, the same command goes on. The folder gets the table as Markdown, CSV and JSON, and a picture.
    """
    from nearkin.catalogue import keyword_options
    from nearkin.errors import did_you_mean
    from nearkin.recipe.coerce import coerce
    from nearkin.studies import catalogue
    from nearkin.studies.listing import list_planners, takes_recipe

    if planner is None:
        print_listing(list_planners(), as_json=as_json, markdown=markdown)
        return
    known = {name: each for name, each in catalogue().items() if takes_recipe(each)}
    if planner not in known:
        own = (
            f"it has a command of its own, nearkin {planner}"
            if planner in catalogue()
            else did_you_mean(planner, known)
        )
        raise RecipeError(f"no planner {planner!r} here: {own}")
    options = keyword_options(known[planner])
    given: dict[str, Any] = {}
    for text in settings or []:
        key, _, value = text.partition("=")
        if key not in options or key in ("seeds", "folder"):
            raise RecipeError(f"{planner} has no option {key!r}: {did_you_mean(key, options)}")
        several = "tuple" in str(options[key].annotation)
        given[key] = coerce(value.split(",") if several else value, options[key].annotation, key)
    for key, option in options.items():
        if option.default is inspect.Parameter.empty and key not in given:
            raise RecipeError(f"{planner} needs --set {key}=…")
    recipe = recipe_from(
        arguments,
        data,
        progress_console(verbose),
        root=data_root,
        device=device,
        class_folders=class_folders,
        epochs=epochs,
    )
    planned = known[planner](recipe, seeds=seeds, folder=output, **given)
    if listing:
        table = planned.listing()
        print(json.dumps(list(table.records))) if as_json else print_table(table, format_)
        return
    run_study(planned, jobs=jobs, yes=yes, overwrite=overwrite, format_=format_, as_json=as_json, verbose=verbose)
