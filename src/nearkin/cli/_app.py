"""The application that commands are added to, and what they share: options, the console, escaping."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

import nearkin
from nearkin.errors import RecipeError

if TYPE_CHECKING:
    from nearkin.report.listings import Listing
    from nearkin.report.table import Table
    from nearkin.runs.data import Announce, DataReport

__all__ = [
    "COMPARE",
    "ENCODER",
    "LOOK_UP",
    "SEARCH",
    "Checkpoint",
    "ClassFolders",
    "Data",
    "DataRoot",
    "Device",
    "Epochs",
    "Json",
    "Markdown",
    "Verbose",
    "announcer",
    "app",
    "error_line",
    "escape",
    "print_listing",
    "print_table",
    "progress_console",
]


ENCODER, SEARCH, COMPARE, LOOK_UP = "Train and score", "Search", "Compare and report", "Look up"
"""The headings that ``nearkin --help`` lists commands under."""


class _InOrder(TyperGroup):
    """Typer lists what has commands of its own behind all others: 'index' belongs before 'search'."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: names.index("search") - 0.5 if name == "index" else names.index(name))


app = typer.Typer(
    cls=_InOrder,
    name="nearkin",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Learn an embedding in which images of the same kind are near each other, also for kinds never seen in "
    "training, and use it to find near kin.\n\n"
    "Start with [bold]nearkin train glyphs/demo[/bold] (nothing to download), or with your own photos, one folder per "
    "kind: [bold]nearkin train --data PHOTOS -o RUN[/bold]. Then [bold]nearkin index RUN PHOTOS -o INDEX[/bold] makes "
    "them searchable: [bold]nearkin search INDEX IMAGE[/bold], or [bold]nearkin serve INDEX[/bold] in the browser.",
    epilog="Exit codes: 0 done, 2 mistake on the command line or in a recipe, 3 data missing or unreadable or no place "
    "to write, 4 an extra is not installed, 5 training diverged, 6 another process writes to the folder, 7 "
    "one process of several was lost, 8 memory is full, 130 interrupted (continue with --resume).",
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the page of the documentation.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show progress also when the output is piped.")]
Checkpoint = Annotated[str, typer.Option("--checkpoint", help="best or last.")]
DataRoot = Annotated[
    Path | None, typer.Option("--data-root", help="Folder that holds the benchmarks. Default: $NEARKIN_DATA.")
]
Data = Annotated[
    str | None, typer.Option("--data", help="Where the runs' images are now, if they have moved since training.")
]
ClassFolders = Annotated[
    Literal["deepest", "top"] | None,
    typer.Option(
        "--class-folders",
        help="Which folders are the classes where folders lie inside each other: all that images lie in (deepest), or "
        "those at the top.",
    ),
]
Epochs = Annotated[int | None, typer.Option("--epochs", min=0, help="Epochs of every run.")]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda, cuda:1 or mps.")]


def _version(asked: bool) -> None:
    if asked:
        print(f"nearkin {nearkin.__version__}")
        raise typer.Exit


TOGETHER = ("train", "evaluate", "embed")
"""Commands that several processes, started by torchrun, carry out together."""


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What goes for every command."""
    if (os.environ.get("WORLD_SIZE") or "1") != "1" and context.invoked_subcommand not in TOGETHER:
        raise RecipeError(
            f"torchrun is for nearkin {', '.join(TOGETHER)}: start nearkin {context.invoked_subcommand} without it"
        )


def announcer(progress: Console, *, as_json: bool = False) -> Announce:
    """Prints the report on the data, also where progress is silent: what was left out concerns everybody."""

    def announce(report: DataReport) -> None:
        from nearkin.report.data_report import data_report_text

        # The console that draws a bar must be the one that prints above it.
        console = Console(stderr=True) if progress.quiet else progress
        if text := data_report_text(report, overview=console.is_terminal or not as_json):
            console.print(text, highlight=False, soft_wrap=True)

    return announce


def print_table(table: Table, format_: str = "table") -> None:
    """A table on the output stream, for people or in one of the text formats."""
    from nearkin.report.formats import FORMATS, terminal

    if format_ == "table":
        Console().print(terminal(table), highlight=False)
    else:
        print(FORMATS[format_](table), end="")


def print_listing(listing: Listing, *, as_json: bool, markdown: bool = False) -> None:
    """For people, for programs, or as the page of the documentation."""
    if as_json:
        print(json.dumps(list(listing.records)))
    elif markdown:
        print(listing.page(), end="")
    else:
        print_table(listing.table())


def error_line(text: str) -> None:
    Console(stderr=True).print(f"[bold red]error:[/bold red] {escape(text)}", highlight=False, soft_wrap=True)


def progress_console(verbose: bool) -> Console:
    """Progress goes to the error stream, and is silent when nobody watches it."""
    console = Console(stderr=True)
    return console if console.is_terminal or verbose else Console(quiet=True)
