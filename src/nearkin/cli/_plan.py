"""What a study is about to run and how long it will take, said before it begins, and asked where it is long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from nearkin.cli._app import escape
from nearkin.errors import RecipeError

if TYPE_CHECKING:
    from nearkin.studies.time_plan import TimePlan

__all__ = ["Yes", "agree", "counted"]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Begin without asking, however long it will take.")]


def agree(lines: Sequence[str], estimate: Callable[[], TimePlan], *, yes: bool) -> None:
    """Print the plan and its time on the error stream, also when piped; beyond a quarter of an hour, ask.

    Where nobody can be asked a long study needs ``--yes``.
    """
    from nearkin.studies.time_plan import ASK_BEYOND, duration

    console = Console(stderr=True)
    for line in lines:
        console.print(escape(line), highlight=False, soft_wrap=True)
    with console.status("timing a few training steps …"):
        plan = estimate()
    console.print(escape(f"Time: {plan.text}"), highlight=False, soft_wrap=True)
    if yes or not plan.is_long:
        return
    assert plan.seconds is not None, "a plan without a time is not long"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise RecipeError(
            f"this would take {duration(plan.seconds)}, more than {ASK_BEYOND // 60} minutes, and nobody can be asked "
            f"here: add --yes to begin, or run less of it (fewer rows, seeds or epochs)"
        )
    if not typer.confirm("Begin?", err=True):
        console.print("Nothing was run.")
        raise typer.Exit(1)


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
