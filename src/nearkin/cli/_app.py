"""The application that commands are added to, and what they share: options, the console, escaping."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import nearkin

__all__ = ["DataRoot", "Device", "Json", "Verbose", "app", "escape", "progress_console"]

app = typer.Typer(
    name="nearkin",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Learn an embedding in which images of the same kind are near each other, also for kinds never seen in "
    "training, and use it to find near kin.\n\n"
    "Start with [bold]nearkin train glyphs/demo[/bold] (nothing to download), or with your own photos, one folder per "
    "kind: [bold]nearkin train --data PHOTOS[/bold].",
    epilog="Exit codes: 0 done, 2 mistake on the command line or in a recipe, 3 data missing or unreadable, 4 an extra "
    "is not installed, 5 training diverged, 130 interrupted (continue with --resume).",
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show progress also when the output is piped.")]
DataRoot = Annotated[
    Path | None, typer.Option("--data-root", help="Folder that holds the benchmarks. Default: $NEARKIN_DATA.")
]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda, cuda:1 or mps.")]


def _version(asked: bool) -> None:
    if asked:
        print(f"nearkin {nearkin.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What goes for every command."""


def progress_console(verbose: bool) -> Console:
    """Progress goes to the error stream, and is silent when nobody watches it."""
    console = Console(stderr=True)
    return console if console.is_terminal or verbose else Console(quiet=True)
