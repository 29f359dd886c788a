"""The command that shows and clears the cache of decoded images: cache."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from nearkin.cli._app import LOOK_UP, Json, app, escape
from nearkin.errors import RecipeError

__all__ = ["cache"]


@app.command(rich_help_panel=LOOK_UP)
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove everything in it, after asking.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Clear without asking.")] = False,
    as_json: Json = False,
) -> None:
    """Show where decoded images are kept and how much room they take, or clear them.

    Images are decoded once and kept, so that the next run starts at once. What is cleared is decoded again when it is
    needed. NEARKIN_CACHE names another folder; data.cache=memory keeps nothing.
    """
    from nearkin.data.cache import cache_contents, clear_cache

    contents = cache_contents()
    if clear and contents.parts:
        if not yes and not sys.stdin.isatty():
            raise RecipeError("nobody can be asked here: give --yes as well to clear the cache")
        if not yes:
            typer.confirm(f"Remove {_size(contents.bytes)} of decoded images in {contents.root}?", abort=True, err=True)
        contents = clear_cache()
    if as_json:
        parts = [{"what": part.what, "images": part.images, "bytes": part.bytes} for part in contents.parts]
        found = {"folder": str(contents.root), "cleared": clear, "bytes": contents.bytes, "images": contents.images}
        print(json.dumps({**found, "parts": parts}))
        return
    console = Console()
    if not contents.parts:
        console.print(f"The cache {escape(str(contents.root))} is empty.", highlight=False, soft_wrap=True)
    elif clear:
        said = f"Cleared: {_size(contents.bytes)}, {contents.images:,} images, in {escape(str(contents.root))}"
        console.print(said, highlight=False, soft_wrap=True)
    else:
        console.print(f"{escape(str(contents.root))}: {_size(contents.bytes)}", highlight=False, soft_wrap=True)
        table = Table()
        table.add_column("what")
        table.add_column("images", justify="right")
        table.add_column("size", justify="right")
        for part in contents.parts:
            table.add_row(part.what, f"{part.images:,}" if part.images else "–", _size(part.bytes))
        console.print(table)
        console.print("Clear it with --clear; set NEARKIN_CACHE to keep it elsewhere.", highlight=False)


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
