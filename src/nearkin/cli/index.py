"""Commands for a search over images: index, search."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from nearkin.cli._app import Device, Json, Verbose, app, escape, progress_console
from nearkin.errors import RecipeError

if TYPE_CHECKING:
    from nearkin.index import Hit, Status

__all__ = ["index", "search"]

_SHOWN = 10
Run = Annotated[Path | None, typer.Option("--run", help="The run whose encoder made the index, if it has moved since.")]


@app.command()
def index(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN FOLDER|MANIFEST... | status INDEX",
            help="A run folder and the images to add: folders, manifests or image files. Or the word 'status' and an "
            "index.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The index: a new folder, or an index to add to.")
    ] = None,
    labels: Annotated[
        bool, typer.Option("--labels/--no-labels", help="Label images by their folder or manifest.")
    ] = True,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="NAME|ADDRESS",
            help="What searches: exact, faiss, faiss-hnsw, postgresql://HOST/DATABASE (pgvector), http://HOST:19530 "
            "(Milvus). An index that is there changes to it. Else its own, and exact for a new one.",
        ),
    ] = None,
    device: Device = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Make a folder of images searchable, or say what an index holds.

    [bold]nearkin index runs/photos photos -o birds.index[/bold]  embed every image, once

    [bold]nearkin index status birds.index[/bold]  what was found, what could not be read and why, how sure hits are

    The same command again goes on after an interruption, and adds what is new.
    """
    from nearkin.index import Index
    from nearkin.index.engine import check_engine
    from nearkin.runs.model import load

    if words[0] == "status":
        if len(words) != 2 or output is not None:
            raise RecipeError("give one index: nearkin index status INDEX")
        _print_status(Index.open(words[1]).status(), as_json=as_json)
        return
    if len(words) < 2:
        raise RecipeError(f"give a run and the images to add: nearkin index {words[0]} FOLDER -o INDEX")
    if output is None:
        raise RecipeError("say where the index is to be: -o INDEX")
    if engine is not None:
        check_engine(engine)
    model = load(words[0], device=device)
    there = (output / "items.sqlite").is_file()
    opened = Index.open(output, model) if there else Index.create(output, model, engine=engine or "exact")
    if there and engine is not None:
        opened.use_engine(engine)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=progress_console(verbose), transient=True) as bar:
        task = bar.add_task("indexing", total=None)
        added = opened.add(
            words[1:] if len(words) > 2 else words[1],
            "folder" if labels else None,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if as_json:
        print(json.dumps({"index": str(output), "items": len(opened), **asdict(added)}))
        return
    console = Console()
    known = f", {added.known:,} were there already" if added.known else ""
    console.print(f"{added.added:,} images added{known}; {escape(str(output))} holds {len(opened):,}.", soft_wrap=True)
    _print_failed(console, added.failed)
    for line in added.left_out:
        console.print(f"Left out: {escape(line)}", highlight=False, soft_wrap=True)
    console.print(f"Next: nearkin search {escape(str(output))} IMAGE", highlight=False, soft_wrap=True)


@app.command()
def search(
    folder: Annotated[Path, typer.Argument(metavar="INDEX", help="An index that 'nearkin index' made.")],
    images: Annotated[
        list[str] | None, typer.Argument(metavar="[IMAGE]...", help="Images to look for. None with --like alone.")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="How many to find.")] = 10,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", help="Only these: label=tit (twice: either), 'year>=2020', 'year<=2022'."),
    ] = None,
    like: Annotated[list[int] | None, typer.Option("--like", metavar="ID", help="Also like this item.")] = None,
    unlike: Annotated[list[int] | None, typer.Option("--unlike", metavar="ID", help="Not like this item.")] = None,
    group_by: Annotated[
        str | None, typer.Option("--group-by", metavar="FIELD", help="The nearest of each, such as of each label.")
    ] = None,
    min_confidence: Annotated[
        float | None, typer.Option("--min-confidence", help="Only hits that are of the kind at least so probably.")
    ] = None,
    offset: Annotated[int, typer.Option("--offset", help="Pass over so many: the next page.")] = 0,
    sheet: Annotated[
        Path | None, typer.Option("--sheet", metavar="PNG", help="Also draw what was found into this file.")
    ] = None,
    run: Run = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Find the images that look most like one.

    [bold]nearkin search birds.index query.jpg[/bold]  the ten nearest, with how likely they are of the same kind

    [bold]nearkin search birds.index query.jpg --where label=tit --where 'year>=2020'[/bold]  only among some

    [bold]nearkin search birds.index --like 3 --like 7 --unlike 9[/bold]  more of this, less of that
    """
    from nearkin.index import Index
    from nearkin.index.where import parse_where
    from nearkin.runs.model import load

    if not images and not like:
        raise RecipeError(f"give an image to look for: nearkin search {folder} IMAGE, or ids with --like")
    if sheet is not None and sheet.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise RecipeError(f"--sheet must end in .png, .pdf or .svg, got {str(sheet)!r}")
    asked = parse_where(where or [])
    opened = Index.open(folder, None if run is None and device is None else load(_run_of(folder, run), device=device))
    answers = opened.search(
        images or None,
        k,
        where=asked,
        like=like or [],
        unlike=unlike or [],
        group_by=group_by,
        min_confidence=min_confidence,
        offset=offset,
    )
    found = list(zip(images, answers, strict=True)) if images else [("", answers)]
    if sheet is not None:
        from nearkin.report.contact_sheet import draw_sheet

        draw_sheet(sheet, opened, found)
    if as_json:
        print(json.dumps([{"query": query or None, "hits": [asdict(hit) for hit in hits]} for query, hits in found]))
        return
    for query, hits in found:
        _print_hits(query, hits)
    if sheet is not None:
        Console().print(f"Contact sheet: {escape(str(sheet))}", highlight=False, soft_wrap=True)


def _run_of(folder: Path, run: Path | None) -> str:
    from nearkin.index import Index

    return str(run) if run is not None else Index.open(folder).status().model


def _print_hits(query: str, hits: list[Hit]) -> None:
    console = Console()
    if not hits:
        console.print(f"Nothing found{f' for {escape(query)}' if query else ''}.", highlight=False, soft_wrap=True)
        return
    table = Table(title=escape(query) or None, title_justify="left")
    for name in ("id", "score", "same kind"):
        table.add_column(name, justify="right")
    table.add_column("label")
    table.add_column("path", overflow="fold")
    for hit in hits:
        sure = "–" if hit.confidence is None else f"{hit.confidence:.0%}"
        table.add_row(str(hit.id), f"{hit.score:.4f}", sure, escape(hit.label or "–"), escape(hit.path or "–"))
    console.print(table)


def _print_status(status: Status, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**asdict(status), "path": str(status.path)}))
        return
    console = Console()

    def say(text: str) -> None:
        console.print(escape(text), highlight=False, soft_wrap=True)

    say(f"{status.path}: {status.items:,} images, {status.labelled:,} of them with one of {status.labels:,} labels")
    twice = f", {status.duplicates:,} of these the same as another" if status.duplicates else ""
    say(f"Files: {status.found:,} found, {status.embedded:,} embedded{twice}, {len(status.failed):,} failed")
    _print_failed(console, status.failed)
    for source, lines in status.left_out.items():
        for line in lines:
            say(f"Left out of {source}: {line}")
    if status.columns:
        say(f"Further columns: {', '.join(status.columns)}")
    say(f"Encoder: {status.model}, {status.dim} numbers, compared by {status.distance} ({status.encoder[:8]})")
    say(f"Engine: {', '.join(f'{key} {value}' for key, value in status.engine.items())}")
    if (curve := status.calibration) is None:
        say("Confidence: none, as there are too few labels to learn it from")
        return
    say(
        f"Confidence: learned from {curve.source}; Brier score {curve.brier:.3f} on kinds not fitted to "
        f"({curve.brier_of_share:.3f} if all hits were given the same)"
    )
    table = Table()
    for name in ("said", "right", "hits"):
        table.add_column(name, justify="right")
    for each in curve.reliability:
        table.add_row(f"{each.confidence:.0%}", f"{each.right:.0%}", f"{each.hits:,}")
    console.print(table)


def _print_failed(console: Console, failed: tuple[tuple[str, str], ...]) -> None:
    for path, reason in failed[:_SHOWN]:
        console.print(f"  could not read {escape(path)}: {escape(reason)}", highlight=False, soft_wrap=True)
    if len(failed) > _SHOWN:
        console.print(f"  … and {len(failed) - _SHOWN:,} more", highlight=False)
