"""The command line: parse, call, print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import nearkin
from nearkin.errors import NearkinError, RecipeError

if TYPE_CHECKING:
    from nearkin.recipe import Recipe

app = typer.Typer(
    name="nearkin",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Learn an embedding in which images of the same kind are near each other, also for kinds never seen in "
    "training, and use it to find near kin.\n\n"
    "Start with [bold]nearkin train glyphs/demo[/bold] (nothing to download), or with your own photos, one folder per "
    "kind: [bold]nearkin train --data PHOTOS[/bold].",
    epilog="Exit codes: 0 done, 2 mistake on the command line or in a recipe, 3 data missing or unreadable, 4 an extra "
    "is not installed, 5 training diverged, 130 interrupted (continue with --resume).",
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show progress also when the output is piped.")]
DataRoot = Annotated[
    Path | None, typer.Option("--data-root", help="Folder that holds the benchmarks. Default: $NEARKIN_DATA.")
]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda, cuda:1 or mps.")]


def main() -> None:
    """Run the command line; errors a person can put right are printed without a traceback."""
    try:
        app()
    except NearkinError as error:
        Console(stderr=True).print(
            f"[bold red]error:[/bold red] {_escape(str(error))}", highlight=False, soft_wrap=True
        )
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)


def _version(asked: bool) -> None:
    if asked:
        print(f"nearkin {nearkin.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What goes for every command."""


@app.command()
def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [KEY=VALUE]...",
            help="A recipe file or the name of one that comes with nearkin (see 'nearkin recipes'), then changes to "
            "it, such as training.epochs=5 or objective.alpha=16.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Own images: a folder with one folder per kind, or a CSV/JSONL manifest."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for the run. Default: runs/<data>-<objective>-<hash>."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was interrupted.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin anew in a folder that holds a run.")] = False,
    data_root: DataRoot = None,
    device: Device = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Train an encoder and score it on classes it has never seen.

    [bold]nearkin train glyphs/demo[/bold]  the embedded benchmark, a minute or two on a laptop

    [bold]nearkin train --data PHOTOS -o runs/photos[/bold]  own photos, one folder per kind

    [bold]nearkin train cub/proxy_anchor encoder.weights=resnet50.safetensors[/bold]  a published recipe

    The run folder gets the resolved recipe, checkpoints, every evaluation as CSV, the final scores as JSON and a
    picture of nearest neighbours.
    """
    from nearkin.progress import ConsoleObserver, Observers, TensorBoardObserver
    from nearkin.report import draw_neighbours
    from nearkin.report.tables import score_table
    from nearkin.run import default_folder, run
    from nearkin.run_folder import RunFolder

    progress = _progress_console(verbose)
    recipe = _recipe(arguments or [], data, data_root, device, progress)
    folder = RunFolder(output or default_folder(recipe))
    with ConsoleObserver(progress) as observer:
        observers = Observers(observer, TensorBoardObserver(folder)) if recipe.training.tensorboard else observer
        scores = run(recipe, folder, observers, resume=resume, overwrite=overwrite, progress=observer.decoding)
    picture = draw_neighbours(folder)
    if as_json:
        print(json.dumps({"run": str(folder.path), **scores}))
        return
    console = Console()
    if scores["test"] is None:
        console.print("No classes were kept for testing, so there is no score.")
    else:
        console.print(score_table(scores))
    console.print(f"Run folder: {folder.path}" + (f", neighbours: {picture}" if picture else ""), soft_wrap=True)
    console.print(f"Next: nearkin embed {folder.path} FOLDER -o embeddings.npz", soft_wrap=True)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    data: Annotated[
        str | None, typer.Option("--data", help="Score on this folder, manifest or benchmark instead of the run's own.")
    ] = None,
    checkpoint: Annotated[str, typer.Option("--checkpoint", help="best or last.")] = "best",
    data_root: DataRoot = None,
    device: Device = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Score a trained encoder again, on the run's test classes or on other data.

    Own data given with --data that has no test split of its own is scored whole: every image looks for its like
    among all the others.
    """
    from nearkin.evaluate import evaluate_run
    from nearkin.progress import ConsoleObserver
    from nearkin.report.tables import metric_table

    with ConsoleObserver(_progress_console(verbose)) as observer:
        result = evaluate_run(
            run, data=data, data_root=data_root, which=checkpoint, device=device, progress=observer.decoding
        )
    if as_json:
        print(json.dumps(result))
        return
    counted = f"{result['images']:,} images of {result['classes']:,} classes"
    caption = f"{checkpoint} checkpoint of {run}; {counted}; {result['hardware']}"
    Console().print(metric_table(str(result["data"]), {"score": result["scores"]}, caption))


@app.command()
def embed(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    folder: Annotated[Path, typer.Argument(help="A folder of images, with or without folders inside.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .npz or .csv.")],
    checkpoint: Annotated[str, typer.Option("--checkpoint", help="best or last.")] = "best",
    device: Device = None,
    verbose: Verbose = False,
) -> None:
    """Embed every image of a folder.

    The .npz holds 'embeddings' (float32, one row per image) and 'ids' (paths relative to the folder); the .csv has the
    id in its first column. Unreadable images are left out and named.
    """
    from nearkin.evaluate import embed_folder
    from nearkin.progress import ConsoleObserver

    with ConsoleObserver(_progress_console(verbose)) as observer:
        result = embed_folder(run, folder, output, which=checkpoint, device=device, progress=observer.decoding)
    errors = Console(stderr=True)
    for problem in result.unreadable:
        errors.print(f"left out: {_escape(str(problem))}", highlight=False, soft_wrap=True)
    Console().print(f"{len(result.ids):,} images embedded in {result.dim} dimensions: {output}", soft_wrap=True)


@app.command()
def datasets(data_root: DataRoot = None, as_json: Json = False) -> None:
    """List the benchmarks and what is found of them under the data root."""
    from nearkin.data.benchmarks import survey
    from nearkin.data.source import data_root as root_of

    root = root_of(data_root)
    rows = survey(root or Path("data"))
    if as_json:
        print(json.dumps([_availability(row) for row in rows]))
        return
    where = f"under {root}" if root else "(no data root given)"
    table = Table(title=f"Benchmarks {where}", title_justify="left")
    for column in ("name", "title", "images (classes)", "found"):
        table.add_column(column, overflow="fold")
    for row in rows:
        known = _availability(row)
        counts = ", ".join(f"{split} {n:,} ({c:,})" for split, (n, c) in known["counts"].items())
        table.add_row(known["name"], known["title"], counts, known["problem"] or known["found"] or "–")
    Console().print(table)
    Console().print("Put data sets below one folder and name it with --data-root or NEARKIN_DATA.")


@app.command()
def losses(
    as_json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
) -> None:
    """List the losses, with their options and defaults: names for a recipe's objective.name."""
    from nearkin.report.tables import loss_rows, losses_page

    rows = loss_rows()
    if as_json:
        print(json.dumps(rows))
        return
    if markdown:
        print(losses_page(rows), end="")
        return
    table = Table(title="Losses", title_justify="left")
    for column in ("name", "kind", "what it is", "options"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(
            row["name"], row["kind"], row["summary"], ", ".join(f"{k}={v}" for k, v in row["options"].items())
        )
    Console().print(table)


@app.command()
def recipes() -> None:
    """List the recipes that come with nearkin."""
    from nearkin.recipe import recipes_folder

    folder = recipes_folder()
    table = Table(title="Recipes", title_justify="left")
    table.add_column("name", overflow="fold")
    table.add_column("what it does", overflow="fold")
    for file in sorted(folder.rglob("*.yaml")):
        first = file.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        table.add_row(str(file.relative_to(folder).with_suffix("")), first)
    Console().print(table)


def _recipe(arguments: list[str], data: str | None, root: Path | None, device: str | None, console: Console) -> Recipe:
    from nearkin.own_photos import own_photos_recipe
    from nearkin.recipe import Recipe

    names = [text for text in arguments if "=" not in text]
    overrides = [text for text in arguments if "=" in text]
    if len(names) > 1:
        raise RecipeError(f"one recipe at a time, got {', '.join(names)}; changes to it are written key=value")
    if root is not None:
        overrides.append(f"data.root={json.dumps(str(root))}")
    if device is not None:
        overrides.append(f"training.device={device}")
    if names:
        if data is not None:
            overrides.append(f"data.source={json.dumps(data)}")
        return Recipe.load(names[0], overrides)
    if data is None:
        raise RecipeError("what to train? Name a recipe (nearkin recipes lists them) or give images with --data FOLDER")
    return own_photos_recipe(data, overrides, say=console.print)


def _progress_console(verbose: bool) -> Console:
    """Progress goes to the error stream, and is silent when nobody watches it."""
    console = Console(stderr=True)
    return console if console.is_terminal or verbose else Console(quiet=True)


def _availability(row: Any) -> dict[str, Any]:
    benchmark = row.benchmark
    found = "comes with nearkin" if benchmark.embedded else (str(row.path) if row.path else None)
    counts = {split: list(pair) for split, pair in benchmark.counts.items()}
    return {
        "name": benchmark.name,
        "title": benchmark.title,
        "counts": counts,
        "home": benchmark.home,
        "found": found,
        "problem": row.problem,
    }


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
