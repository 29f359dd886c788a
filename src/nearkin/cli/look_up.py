"""Commands to look something up: list, cache."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from nearkin.cli._app import LOOK_UP, app, confirm, print_table, say
from nearkin.cli.options import DataRoot, Json, Yes


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
    data_root: DataRoot = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page of the documentation.")] = False,
    as_json: Json = False,
) -> None:
    """List what there is to choose from.

    [bold]nearkin list recipes[/bold]  recipes to train

    [bold]nearkin list losses[/bold]  names for objective.name, with their options
    """
    from nearkin.report.listings import LISTINGS, list_datasets

    if what == "recipes":
        from nearkin.studies.expected_scores import list_recipes

        listing = list_recipes(expected=markdown)
    elif what == "datasets":
        listing = list_datasets(data_root)
    else:
        listing = LISTINGS[what]()
    if as_json:
        print(json.dumps(list(listing.records)))
    elif markdown:
        print(listing.page(), end="")
    else:
        print_table(listing.table())


@app.command(rich_help_panel=LOOK_UP)
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove everything in it, after asking.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Show the size of the cache of decoded images, or clear it.

    Images are decoded once, so that the next run starts at once; cleared images are decoded again when they are needed.
    NEARKIN_CACHE sets another folder; data.cache=memory caches nothing on disk.
    """
    from nearkin.data.cache import cache_contents, clear_cache
    from nearkin.report.table import NOTHING, Part, Table

    contents = cache_contents()
    if clear and contents.parts:
        confirm(f"Remove {_size(contents.bytes)} of decoded images in {contents.root}?", yes=yes)
        contents = clear_cache()
    if as_json:
        parts = [{"what": part.what, "images": part.images, "bytes": part.bytes} for part in contents.parts]
        record = {"folder": str(contents.root), "cleared": clear, "bytes": contents.bytes, "images": contents.images}
        print(json.dumps({**record, "parts": parts}))
    elif not contents.parts:
        say(f"The cache {contents.root} is empty.")
    elif clear:
        say(f"Cleared: {_size(contents.bytes)}, {contents.images:,} images, in {contents.root}")
    else:
        cells = [
            (part.what, f"{part.images:,}" if part.images else NOTHING, _size(part.bytes)) for part in contents.parts
        ]
        hint = "Clear it with --clear; set NEARKIN_CACHE to keep it elsewhere."
        title = f"{contents.root}: {_size(contents.bytes)}"
        print_table(Table(title, (Part.of(("what", "images", "size"), cells),), (hint,)))


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
