"""Commands to look something up: list, datasets, cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from nearkin.cli import options
from nearkin.cli._app import LOOK_UP, app, confirm, print_listing, progress_bar, say


@app.command("list", rich_help_panel=LOOK_UP)
def list_(
    what: Annotated[
        Literal["recipes", "keys", "losses", "methods", "backbones", "scores", "plots"],
        Argument(
            metavar="WHAT",
            help="recipes; keys of a recipe, with defaults and meanings; losses, methods, backbones and scores, with "
            "their options; plots, the figures of 'nearkin plot'.",
        ),
    ],
    markdown: Annotated[bool, Option("--markdown", help="Print the page of the documentation.")] = False,
    as_json: options.Json = False,
) -> None:
    """List what there is to choose from.

    [bold]nearkin list recipes[/bold]  recipes to train

    [bold]nearkin list losses[/bold]  names for objective.name, with their options
    """
    from nearkin.report.listings import LISTINGS
    from nearkin.studies.recipe_scores import list_recipes

    listing = {**LISTINGS, "recipes": list_recipes}[what]()
    if markdown and not as_json:
        print(listing.page(), end="")
    else:
        print_listing(listing, as_json=as_json)


@app.command(rich_help_panel=LOOK_UP)
def datasets(
    download: Annotated[list[str] | None, Option(metavar="NAME", help="Download and unpack. Repeat for more.")] = None,
    unpack: Annotated[
        list[Path] | None, Option(metavar="FILE", help="Unpack this published archive or list. Repeat for more.")
    ] = None,
    data_root: options.DataRoot = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """List the benchmarks, where they are on this machine and how to get them, or bring them here.

    [bold]nearkin datasets --download cub[/bold]  where address and checksum are known; an interrupted one continues

    [bold]nearkin datasets --unpack Stanford_Online_Products.zip[/bold]  to where recipes find it

    What was unpacked is read once to count its images and classes. Without --data-root or NEARKIN_DATA it goes to
    data/.
    """
    from nearkin.data import archives, source
    from nearkin.report.listings import list_datasets

    if download or unpack:
        root = source.data_root(data_root) or Path("data")
        with progress_bar("MB", verbose) as bar:
            lines = archives.obtain(root, download or [], unpack or [], lambda n, of: bar(n // 10**6, of // 10**6))
        print(json.dumps(lines) if as_json else "\n".join(lines))
        return
    print_listing(list_datasets(data_root), as_json=as_json)


@app.command(rich_help_panel=LOOK_UP)
def cache(
    clear: Annotated[bool, Option("--clear", help="Remove everything in it, after asking.")] = False,
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
