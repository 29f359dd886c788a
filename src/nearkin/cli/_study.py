"""Running a study from its plan to its table, for the commands compare, mlrc, reproduce and tune."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from nearkin.cli._app import announcer, label_line, print_table, progress_console

if TYPE_CHECKING:
    from nearkin.studies.study import Study
    from nearkin.studies.tune import Search


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
        label_line("error", "bold red", message)
        raise typer.Exit(code)
