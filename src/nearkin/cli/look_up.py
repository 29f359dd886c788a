"""Commands to look something up: list, cache."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer
from rich.console import Console

from nearkin.cli import options
from nearkin.cli._app import LOOK_UP, app, confirm, say


@app.command("list", rich_help_panel=LOOK_UP)
def list_(
    what: Annotated[
        Literal["recipes", "keys", "losses", "methods", "backbones", "scores", "plots", "datasets"],
        typer.Argument(
            metavar="WHAT",
            help="recipes; keys of a recipe, with defaults and meanings; losses, methods, backbones and scores, with "
            "their options; plots, the figures of 'nearkin plot'; datasets, the benchmarks found on this machine.",
        ),
    ],
    data_root: options.DataRoot = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page of the documentation.")] = False,
    as_json: options.Json = False,
) -> None:
    """List what there is to choose from.

    [bold]nearkin list recipes[/bold]  recipes to train

    [bold]nearkin list losses[/bold]  names for objective.name, with their options
    """
    from nearkin.report.listings import LISTINGS, list_datasets

    if what == "recipes":
        from nearkin.studies.recipe_scores import list_recipes

        listing = list_recipes()
    elif what == "datasets":
        listing = list_datasets(data_root)
    else:
        listing = LISTINGS[what]()
    if as_json:
        print(json.dumps(list(listing.records)))
    elif markdown:
        print(listing.page(), end="")
    else:
        Console().print(listing.terminal(), highlight=False)


@app.command(rich_help_panel=LOOK_UP)
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove everything in it, after asking.")] = False,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Show the size of the cache of decoded images, or clear it.

    Images are decoded once, so that the next run starts at once; cleared images are decoded again when they are needed.
    NEARKIN_CACHE sets another folder; data.cache=memory caches nothing on disk.
    """
    from nearkin.data.cache import cache_root, cached_files, clear_cache

    root = cache_root()
    total = sum(cached_files(root).values())
    if clear and total:
        confirm(f"Remove {_size(total)} of decoded images in {root}?", yes=yes)
        clear_cache(root)
    if as_json:
        print(json.dumps({"folder": str(root), "cleared": clear, "bytes": total}))
    elif not total:
        say(f"The cache {root} is empty.")
    elif clear:
        say(f"Cleared: {_size(total)} in {root}")
    else:
        say(f"{root}: {_size(total)}. Clear it with --clear; set NEARKIN_CACHE to keep it elsewhere.")


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
