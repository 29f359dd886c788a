"""The application that commands are added to, and how they print."""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer import Option
from typer.core import TyperGroup

import nearkin
from nearkin.errors import RecipeError

if TYPE_CHECKING:
    from nearkin.report.listings import Listing
    from nearkin.report.table import Table
    from nearkin.runs.data import Announce, DataReport

ENCODER, SEARCH, COMPARE, LOOK_UP = "Train and score", "Search", "Compare and report", "Look up"
"""The headings of ``nearkin --help``."""


class _InOrder(TyperGroup):
    """Typer lists groups of commands last; 'index' belongs before 'search'. Its error messages get advice."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: names.index("search") - 0.5 if name == "index" else names.index(name))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            _advise(error)
            raise


def _advise(mistake: Any) -> None:
    """Add the nearest valid choice, or the recipe's key of an option's name, to an error of typer."""
    if refused := re.match(r"(?:Value error, )?('(.*?)' is not one of (.*))", str(getattr(mistake, "message", ""))):
        near = difflib.get_close_matches(refused[2], re.findall("'(.*?)'", refused[3]), n=1)
        mistake.message = refused[1] + "".join(f" Did you mean {name!r}?" for name in near)
    elif hasattr(mistake, "option_name") and not getattr(mistake, "possibilities", True):  # an unknown option
        from nearkin.recipe.recipe import keys_named

        takes_keys = "KEY=VALUE" in mistake.ctx.command.get_usage(mistake.ctx)
        keys = " or ".join(f"{key}=VALUE" for key in keys_named(mistake.option_name.strip("-").replace("-", "_")))
        mistake.message += f"; write {keys} instead" if keys and takes_keys else ""


app = typer.Typer(
    cls=_InOrder,
    name="nearkin",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Learn an embedding in which images of the same class are near each other, also for classes never seen in "
    "training, and search with it.\n\n"
    "Start with [bold]nearkin train glyphs/demo[/bold] (nothing to download), or with your own photos, one folder per "
    "class: [bold]nearkin train --data PHOTOS -o RUN[/bold]. Then [bold]nearkin index RUN PHOTOS -o INDEX[/bold] makes "
    "them searchable: [bold]nearkin search INDEX IMAGE[/bold], or [bold]nearkin serve INDEX[/bold] in the browser.",
    epilog="Exit codes: 0 done, 2 mistake on the command line or in a recipe, 3 data missing or unreadable, or output "
    "not writable, 4 an extra is not installed, 5 training diverged, 6 another process writes to the folder, 7 "
    "one process of several was lost, 8 memory is full, 130 interrupted (continue with --resume).",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"nearkin {nearkin.__version__}")
        raise typer.Exit


DISTRIBUTED = ("train", "evaluate", "embed")
"""Commands that torchrun may start in several processes."""


@app.callback()
def check_processes(
    context: typer.Context,
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if is_distributed() and context.invoked_subcommand not in DISTRIBUTED:
        command = context.invoked_subcommand
        raise RecipeError(f"torchrun starts only {', '.join(DISTRIBUTED)}: start nearkin {command} without it")


def is_distributed() -> bool:
    """Whether torchrun started this process; nearkin.ranks, which checks the value, is slow to import."""
    return (os.environ.get("WORLD_SIZE") or "1") != "1"


def announcer(progress: Console, *, as_json: bool = False) -> Announce:
    """A function that prints the summary of the data, also where progress is silent."""

    def announce(report: DataReport) -> None:
        from nearkin.report.data_report import data_report_text

        # The console that draws a bar must be the one that prints above it.
        console = Console(stderr=True) if progress.quiet else progress
        if text := data_report_text(report, overview=console.is_terminal or not as_json):
            console.print(text, highlight=False, soft_wrap=True)

    return announce


def print_table(table: Table, format_: str = "table", *, as_json: bool = False) -> None:
    """Print a table for a terminal or in a text format, or its records as JSON."""
    from nearkin.report.table import FORMATS, terminal

    if as_json:
        print(json.dumps(table.records))
    elif format_ == "table":
        Console().print(terminal(table), highlight=False)
    else:
        print(FORMATS[format_](table), end="")


def print_listing(listing: Listing, *, as_json: bool) -> None:
    """Print a list of what there is to choose from for a terminal, or its records as JSON."""
    if as_json:
        print(json.dumps(listing.records))
    else:
        Console().print(listing.terminal(), highlight=False)


def label_line(label: str, style: str, text: str) -> None:
    """Print ``label: text`` on the error stream."""
    Console(stderr=True).print(Text.assemble((f"{label}: ", style), text), soft_wrap=True)


def progress_console(verbose: bool) -> Console:
    """A console on the error stream, silent where that is piped."""
    console = Console(stderr=True)
    return console if console.is_terminal or verbose else Console(quiet=True)


def say(text: str, *, style: str = "", stderr: bool = False) -> None:
    """Print a line as it is, without markup."""
    Console(stderr=stderr).print(Text(text, style=style), soft_wrap=True)


def say_first(lines: Sequence[str], most: int, more: str = "more") -> None:
    """Print the first lines, and how many there are besides."""
    for line in lines[:most]:
        say(line)
    if len(lines) > most:
        say(f"  … and {len(lines) - most:,} {more}")


@contextmanager
def progress_bar(title: str, verbose: bool) -> Iterator[Callable[[int, int], None]]:
    """A progress bar, updated by a call with the number done and the total."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=progress_console(verbose), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is removed, unless ``--yes`` has answered; without a terminal it has to."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise RecipeError(f"there is no terminal to ask on: {question} Answer with --yes")
    typer.confirm(question, abort=True, err=True)
