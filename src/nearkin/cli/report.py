"""Commands that show the results of runs: plot, report, table."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from nearkin.catalogue import plot_names
from nearkin.cli import options
from nearkin.cli._app import COMPARE, app, print_table, progress_console, say
from nearkin.errors import DataError


@app.command(rich_help_panel=COMPARE)
def plot(
    runs: Annotated[list[Path], Argument(metavar="RUN...", help="Run folders that share their data.")],
    only: Annotated[str | None, Option(help=f"Figures, by commas: {', '.join(plot_names())}. Default: all.")] = None,
    output: Annotated[Path | None, options.output("Folder for the figures. Default for one run: RUN/plots.")] = None,
    file_format: Annotated[Literal["png", "pdf", "svg"], Option("--format", help="Of the files.")] = "png",
    classes: options.MapClasses = 12,
    seed: options.ViewSeed = 0,
    checkpoint: options.Checkpoint = "best",
    data: options.MovedData = None,
    data_root: options.DataRoot = None,
    device: options.Device = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Draw figures of one run, or of several on the same axes.

    [bold]nearkin plot runs/a[/bold]  all figures, into runs/a/plots

    [bold]nearkin plot runs/a runs/b runs/c -o compared --only curves,neighbours[/bold]  three runs compared

    'nearkin list plots' describes the figures. Those that cannot be drawn are named with the reason.
    """
    from nearkin.report.figures import save_figures
    from nearkin.report.opened_run import ViewOptions
    from nearkin.training.observers import ConsoleObserver

    view = ViewOptions(checkpoint=checkpoint, classes=classes, seed=seed, device=device, data_root=data_root, data=data)
    written: list[str] = []
    missing: list[dict[str, str | None]] = []
    figures_by_reason: dict[str, list[str]] = {}
    names = options.names_in(only) or ()
    with ConsoleObserver(progress_console(verbose)) as bar:
        for name, run, result in save_figures(
            runs, only=names, output=output, file_format=file_format, view=view, progress=bar.decoding
        ):
            if isinstance(result, Path):
                written.append(str(result))
                if not as_json:
                    say(written[-1])
                continue
            of_run = str(run.folder.path) if run is not None and len(runs) > 1 else None
            missing.append({"figure": name, "run": of_run, "reason": str(result)})
            reason = f"{f' of {of_run}' if of_run else ''}: {result}"
            figures_by_reason.setdefault(reason, []).append(name)
    if as_json:
        print(json.dumps({"written": written, "not_drawn": missing}))
    else:
        for reason, figures in figures_by_reason.items():
            say(f"not drawn: {', '.join(figures)}{reason}", stderr=True)
    if not written:
        raise DataError("nothing was drawn: each figure's reason is above")


@app.command(rich_help_panel=COMPARE)
def report(
    runs: options.RunFolders,
    output: Annotated[Path | None, options.output("File to write. Default: report.html, in a single RUN.")] = None,
    open_: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
    classes: options.MapClasses = 12,
    seed: options.ViewSeed = 0,
    data: options.MovedData = None,
    data_root: options.DataRoot = None,
    device: options.Device = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Write a report on runs as one HTML file that needs no network.

    [bold]nearkin report runs/a[/bold]  one run, into runs/a/report.html

    [bold]nearkin report runs/a runs/b -o compared.html --open[/bold]  two runs, opened in a browser

    [bold]nearkin report runs/compare-glyphs-1a2b3c4d[/bold]  a whole comparison

    It has the scores, scores by class, all figures of 'nearkin plot', cost, and the recipe,
    environment and command of every run. Runs that differ only in their seed are grouped.
    """
    from nearkin.report.opened_run import ViewOptions
    from nearkin.report.page import write_report
    from nearkin.training.observers import ConsoleObserver

    view = ViewOptions(classes=classes, seed=seed, device=device, data_root=data_root, data=data)
    with ConsoleObserver(progress_console(verbose)) as observer:
        file, missing = write_report(runs, output, view=view, progress=observer.decoding)
    size = file.stat().st_size
    if as_json:
        print(json.dumps({"file": str(file), "bytes": size, "not_shown": missing}))
    else:
        for line in missing:
            say(f"not shown: {line}", stderr=True)
        say(f"{file} ({size / 1e6:.1f} MB)")
    if open_:
        webbrowser.open(file.resolve().as_uri())


@app.command(rich_help_panel=COMPARE)
def table(
    runs: options.RunFolders,
    format_: options.Format = "md",
    metrics: Annotated[str | None, Option(help="Scores to show, such as R@1,MAP@R.")] = None,
) -> None:
    """Print the scores of runs as a table for a paper, a page or a program.

    [bold]nearkin table runs/a-0 runs/a-1 runs/b-0 --format latex --metrics R@1,MAP@R[/bold]

    Runs that differ only in their seed are one line, with mean and spread. Protocol, selection rule, seeds and hardware
    are in the caption or, where lines differ, in columns.
    """
    from nearkin.report.run_groups import gather_runs
    from nearkin.report.score_tables import score_table

    gathered = gather_runs(runs)
    scores = score_table(gathered.groups, metrics=options.names_in(metrics))
    for line in gathered.left_out:
        say(f"left out: {line}", stderr=True)
    print_table(scores, format_)
