"""The command that draws runs: plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from nearkin.catalogue import plot_names
from nearkin.cli._app import COMPARE, Checkpoint, Data, DataRoot, Device, Json, Verbose, app, escape, progress_console
from nearkin.cli._study import names_in
from nearkin.errors import DataError

__all__ = ["plot"]


@app.command(rich_help_panel=COMPARE)
def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders that share their data.")],
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            help=f"Figures to draw, separated by commas: {', '.join(plot_names())}. Default: all.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the figures. Default for one run: RUN/plots.")
    ] = None,
    file_format: Annotated[str, typer.Option("--format", help="png, pdf or svg.")] = "png",
    classes: Annotated[int, typer.Option("--classes", help="Classes in a map of embeddings.")] = 12,
    seed: Annotated[int, typer.Option("--seed", help="Decides which classes and images are shown.")] = 0,
    by: Annotated[
        str, typer.Option("--by", help="Compare classes (pairs) by their mean embeddings (means) or proxies (proxies).")
    ] = "means",
    checkpoint: Checkpoint = "best",
    data: Data = None,
    data_root: DataRoot = None,
    device: Device = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Draw one run, or several on the same axes and side by side.

    [bold]nearkin plot runs/a[/bold]  everything there is to see, into runs/a/plots

    [bold]nearkin plot runs/a runs/b runs/c -o compared --only curves,neighbours[/bold]  three runs against each other

    [bold]nearkin plot runs/a --only pairs --by proxies[/bold]  closest and farthest classes by their proxies

    Curves of loss and scores (seeds of one recipe as a band), maps of the embeddings with the proxies, VCPA's
    uncertainty, closest and farthest classes, CCP's covering radius and sub-problems, similarities to the proxies, and
    nearest neighbours. What a run has nothing to show in is named with the reason.
    """
    from nearkin.report.figures import save_figures
    from nearkin.report.opened_run import ViewOptions
    from nearkin.training.observers import ConsoleObserver

    view = ViewOptions(
        checkpoint=checkpoint, classes=classes, seed=seed, device=device, data_root=data_root, data=data, classes_by=by
    )
    console, errors = Console(), Console(stderr=True)
    written: list[str] = []
    missing: dict[tuple[str | None, str], list[str]] = {}
    with ConsoleObserver(progress_console(verbose)) as observer:
        for drawn in save_figures(
            runs,
            only=names_in(only) or (),
            output=output,
            file_format=file_format,
            view=view,
            progress=observer.decoding,
        ):
            if drawn.file is not None:
                written.append(str(drawn.file))
                if not as_json:
                    console.print(escape(str(drawn.file)), highlight=False, soft_wrap=True)
                continue
            of_run = str(drawn.run.folder.path) if drawn.run is not None and len(runs) > 1 else None
            missing.setdefault((of_run, drawn.reason), []).append(drawn.name)
    if as_json:
        listed = [
            {"figure": name, "run": of_run, "reason": reason}
            for (of_run, reason), names in missing.items()
            for name in names
        ]
        print(json.dumps({"written": written, "not_drawn": listed}))
    else:
        for (of_run, reason), names in missing.items():
            place = f" of {of_run}" if of_run else ""
            errors.print(escape(f"not drawn: {', '.join(names)}{place}: {reason}"), highlight=False, soft_wrap=True)
    if not written:
        raise DataError("nothing was drawn: each figure's reason is above")
