"""What the commands for many runs share: say what will be run and how long it takes, run it, print and write it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from nearkin.cli._app import announcer, error_line, print_table, progress_console
from nearkin.errors import RecipeError

if TYPE_CHECKING:
    from nearkin.studies.study import Study

__all__ = ["Format", "Jobs", "Listed", "OtherData", "Overwrite", "Seeds", "Yes", "names_in", "run_study"]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Begin without asking, however long it will take.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs at a time, to fill a GPU.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Runs of each row.")]
Listed = Annotated[bool, typer.Option("--list", help="Show the rows and their options, and run nothing.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Run anew what the folder holds with another recipe.")]
OtherData = Annotated[
    str | None, typer.Option("--data", help="Images instead of the recipe's: a benchmark, a folder or a manifest.")
]
Format = Annotated[Literal["table", "md", "latex", "csv"], typer.Option("--format", help="How to print the result.")]


def names_in(text: str | None) -> list[str] | None:
    """Names with commas between."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def run_study(
    study: Study,
    *,
    jobs: int,
    yes: bool,
    overwrite: bool = False,
    format_: str = "table",
    as_json: bool = False,
    verbose: bool = False,
) -> None:
    """Run a study from its plan to its table; where runs did not finish, that is said last, with their exit code."""
    agree(study, jobs=jobs, overwrite=overwrite, yes=yes)
    progress = progress_console(verbose)
    announce = announcer(progress, as_json=as_json)
    outcomes = study.run(jobs=jobs, overwrite=overwrite, console=progress, announce=announce)
    files = study.write()
    if as_json:
        print(json.dumps(study.record()))
    else:
        for table in study.tables():
            print_table(table, format_)
        if format_ == "table":
            console = Console()
            console.print(f"Written: {', '.join(map(str, files))}", soft_wrap=True, highlight=False, markup=False)
            for command in study.next_steps():
                console.print(f"Next: {command}", soft_wrap=True, highlight=False, markup=False)
    if (failure := study.failure(outcomes)) is not None:
        said, code = failure
        error_line(said)
        raise typer.Exit(code)


def agree(study: Study, *, jobs: int, overwrite: bool, yes: bool) -> None:
    """Print the plan and its time on the error stream, also when piped; beyond a quarter of an hour, ask.

    Where nobody can be asked a long study needs ``--yes``.
    """
    from nearkin.studies.time_plan import ASK_BEYOND, plan_time
    from nearkin.training.time_estimate import in_words

    console = Console(stderr=True)
    runs = study.runs()
    anew = [planned.folder.path for planned in runs if planned.was_changed(forgive=overwrite)]
    for line in study.plan():
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    if not runs:
        return
    with console.status("timing a few training steps …"):
        plan = plan_time(runs, jobs=jobs, anew=anew)
    console.print(f"Time: {plan.text}", highlight=False, soft_wrap=True, markup=False)
    if yes or not plan.is_long:
        return
    assert plan.seconds is not None, "a plan without a time is not long"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise RecipeError(
            f"this would take about {in_words(plan.seconds)}, and beyond {ASK_BEYOND // 60} minutes it asks first, but "
            f"nobody can be asked here: add --yes to begin, or run less of it (fewer rows, seeds or epochs)"
        )
    if not typer.confirm("Begin?", err=True):
        console.print("Nothing was run.")
        raise typer.Exit(1)
