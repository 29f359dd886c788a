"""Commands that show what runs came to: report and table."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from nearkin.cli._app import COMPARE, Data, DataRoot, Device, Json, Verbose, app, escape, print_table, progress_console
from nearkin.cli._study import Format, names_in

__all__ = ["report", "table"]

Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="Run folders, or folders of 'nearkin compare' for all their runs."),
]


@app.command(rich_help_panel=COMPARE)
def report(
    runs: Runs,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write. Default: report.html, in RUN when there is only one."),
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Heading of the page.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    classes: Annotated[int, typer.Option("--classes", min=2, help="Classes in a map of embeddings.")] = 12,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Decides which classes and images are shown.")] = 0,
    data: Data = None,
    data_root: DataRoot = None,
    device: Device = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Write a report on runs as one HTML file that needs no network.

    [bold]nearkin report runs/a[/bold]  everything there is to see of one run, into runs/a/report.html

    [bold]nearkin report runs/a runs/b -o compared.html --open[/bold]  two runs, opened in a browser

    [bold]nearkin report runs/compare-glyphs-1a2b3c4d[/bold]  a whole comparison

    Scores beside published ones, curves, maps of the embeddings with the images, nearest neighbours, scores by class,
    worst queries, what the method did, cost, and the recipe, environment and command of every run. Runs that differ
    only in their seed are put together.
    """
    from nearkin.report.opened_run import ViewOptions
    from nearkin.report.page import write_report
    from nearkin.training.observers import ConsoleObserver

    view = ViewOptions(classes=classes, seed=seed, device=device, data_root=data_root, data=data)
    with ConsoleObserver(progress_console(verbose)) as observer:
        written = write_report(runs, output, title=title, view=view, progress=observer.decoding)
    if as_json:
        print(
            json.dumps(
                {
                    "file": str(written.file),
                    "bytes": written.size,
                    "images": written.images,
                    "not_shown": list(written.missing),
                }
            )
        )
    else:
        errors = Console(stderr=True)
        for line in written.missing:
            errors.print(escape(f"not shown: {line}"), highlight=False, soft_wrap=True)
        size = f"{written.size / 1e6:.1f} MB, {written.images:,} images"
        Console().print(escape(f"{written.file} ({size})"), highlight=False, soft_wrap=True)
    if open_:
        webbrowser.open(written.file.resolve().as_uri())


@app.command(rich_help_panel=COMPARE)
def table(
    runs: Runs,
    format_: Format = "md",
    metrics: Annotated[
        str | None, typer.Option("--metrics", help="Scores to show, with commas between, such as R@1,MAP@R.")
    ] = None,
    published: Annotated[
        bool, typer.Option("--published/--no-published", help="Put published figures below ours where they match.")
    ] = True,
) -> None:
    """Print the scores of runs as a table for a paper, a page or a program.

    [bold]nearkin table runs/a-0 runs/a-1 runs/b-0 --format latex --metrics R@1,MAP@R[/bold]

    Runs that differ only in their seed are one line, with mean and spread. Protocol, selection rule, seeds and hardware
    stand in the caption or, where lines differ, in columns.
    """
    from nearkin.report.run_groups import gather_runs
    from nearkin.report.score_tables import score_table

    gathered = gather_runs(runs)
    found = score_table(gathered.groups, metrics=names_in(metrics), published=published)
    errors = Console(stderr=True)
    for line in gathered.left_out:
        errors.print(escape(f"left out: {line}"), highlight=False, soft_wrap=True)
    print_table(found, format_)
