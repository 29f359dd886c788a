"""The command that averages the weights of runs: soup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from nearkin.cli._app import (
    ENCODER,
    Checkpoint,
    DataRoot,
    Device,
    Json,
    Verbose,
    app,
    escape,
    print_table,
    progress_console,
)

__all__ = ["soup"]


@app.command(rich_help_panel=ENCODER)
def soup(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Finished runs with the same encoder, the same images and the same start; losses may differ.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the soup, a new one.")],
    checkpoint: Checkpoint = "best",
    data_root: DataRoot = None,
    device: Device = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Average the weights of several runs that began alike: one encoder, as fast as each of them.

    [bold]nearkin soup runs/a runs/b runs/c -o runs/soup[/bold]

    The folder is a run for evaluate, embed, index, export, plot, report and table; it has neither curves nor proxies,
    and cannot be trained further. The soup is scored beside each of its runs, on the test classes of the first.

    Runs with the same encoder.weights and training.seed began alike. The mean of runs that did not is usually
    worthless: a line says so, and 'nearkin evaluate RUN --with RUN' uses such runs side by side.
    """
    from nearkin.report.soup_table import soup_table, soup_verdict
    from nearkin.runs.folder import RunFolder
    from nearkin.runs.soup import soup as make
    from nearkin.training.observers import ConsoleObserver

    with ConsoleObserver(progress_console(verbose)) as observer:
        made = make(
            runs,
            output,
            which=checkpoint,
            device=device,
            data_root=data_root,
            progress=observer.decoding,
            watch=observer.on_scoring,
        )
    if as_json:
        print(json.dumps({"run": str(output), **made}))
        return
    console = Console()
    if made.test is None:
        console.print("No classes were kept for testing, so there is no score.")
        console.print(f"Batch-norm: {made.batch_norm}.", highlight=False)
    else:
        print_table(soup_table(made, RunFolder(output).scores()))
    if (said := soup_verdict(made)) is not None:
        console.print(f"[yellow]{escape(said)}[/yellow]", highlight=False, soft_wrap=True)
    console.print(f"Run folder: {escape(str(output))}", highlight=False, soft_wrap=True)
    console.print(
        f"Next: nearkin index {escape(str(output))} FOLDER -o INDEX, then nearkin search INDEX IMAGE",
        highlight=False,
        soft_wrap=True,
    )
