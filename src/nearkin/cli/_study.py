"""What the commands for many runs share: options, and running a study from its plan to its table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from nearkin.cli._app import announcer, error_line, print_table, progress_console

if TYPE_CHECKING:
    from nearkin.studies.study import Study
    from nearkin.studies.tune import Search

__all__ = ["Format", "Jobs", "Listed", "OtherData", "Overwrite", "Seeds", "names_in", "run_study"]

Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs at a time, to fill a GPU.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Runs of each row.")]
Listed = Annotated[bool, typer.Option("--list", help="Show the rows and what is special about each, and run nothing.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Run again what the folder holds with another recipe.")]
OtherData = Annotated[
    str | None, typer.Option("--data", help="Images instead of the recipe's: a benchmark, a folder or a manifest.")
]
Format = Annotated[Literal["table", "md", "latex", "csv"], typer.Option("--format", help="How to print the result.")]


def names_in(text: str | None) -> list[str] | None:
    """Names with commas between."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def run_study(
    study: Study | Search,
    *,
    jobs: int,
    overwrite: bool = False,
    format_: str = "table",
    as_json: bool = False,
    verbose: bool = False,
) -> None:
    """Run a study from its plan to its table; the last line says why runs did not finish."""
    plan = Console(stderr=True)
    for line in study.plan():
        plan.print(line, highlight=False, soft_wrap=True, markup=False)
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
            lines = [f"Written: {', '.join(map(str, files))}", *(f"Next: {step}" for step in study.next_steps())]
            for line in lines:
                Console().print(line, soft_wrap=True, highlight=False, markup=False)
    if (failure := study.failure(outcomes)) is not None:
        message, code = failure
        error_line(message)
        raise typer.Exit(code)
