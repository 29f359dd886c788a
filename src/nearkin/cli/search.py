"""Commands that ask an index: search, classify."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from nearkin.cli._app import SEARCH, Device, Json, app, escape
from nearkin.cli._test_time import Rerank
from nearkin.cli.index import Folder, Where, say
from nearkin.errors import RecipeError

if TYPE_CHECKING:
    from nearkin.index import Hit, Index
    from nearkin.index.search import SearchOptions

__all__ = ["classify", "search"]

Run = Annotated[Path | None, typer.Option("--run", help="The run whose encoder made the index, if it has moved since.")]


@app.command(rich_help_panel=SEARCH)
def search(
    folder: Folder,
    images: Annotated[
        list[str] | None, typer.Argument(metavar="[IMAGE]...", help="Images to look for. None with --like alone.")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="How many to find.")] = 10,
    where: Where = None,
    crop: Annotated[
        str | None,
        typer.Option("--crop", metavar="X,Y,W,H", help="Search for a part of the image: pixels, or shares up to 1."),
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
    rerank: Rerank = None,
    run: Run = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Find the images that look most like one.

    [bold]nearkin search birds.index query.jpg[/bold]  the ten nearest, with how likely they are of the same kind

    [bold]nearkin search birds.index query.jpg --where label=tit --where 'year>=2020'[/bold]  only among some

    [bold]nearkin search birds.index query.jpg --crop 120,80,200,200[/bold]  for a part of the image

    [bold]nearkin search birds.index --like 3 --like 7 --unlike 9[/bold]  more of this, less of that
    """
    from nearkin.index.where import parse_where

    if not images and not like:
        raise RecipeError(f"give an image to look for: nearkin search {folder} IMAGE, or ids with --like")
    if sheet is not None and sheet.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise RecipeError(f"--sheet must end in .png, .pdf or .svg, got {str(sheet)!r}")
    if crop is not None and len(images or []) != 1:
        raise RecipeError("--crop is a part of one image: give that image, and no other")
    asked = parse_where(where or [])
    shares = None if crop is None or not images else _shares(crop, images[0])
    opened = _opened(folder, run, device)
    options: SearchOptions = {
        "where": asked,
        "like": like or [],
        "unlike": unlike or [],
        "group_by": group_by,
        "min_confidence": min_confidence,
        "offset": offset,
        "crop": shares,
        "rerank": rerank,
    }
    if images:
        found = list(zip(images, opened.search(images, k, **options), strict=True))
    else:
        found = [("", opened.search(None, k, **options))]
    if sheet is not None:
        from nearkin.report.contact_sheet import draw_sheet

        draw_sheet(sheet, opened, found)
    if as_json:
        print(json.dumps([{"query": query or None, "hits": [asdict(hit) for hit in hits]} for query, hits in found]))
        return
    for query, hits in found:
        _print_hits(query, hits)
    if sheet is not None:
        say(f"Contact sheet: {sheet}")


@app.command(rich_help_panel=SEARCH)
def classify(
    folder: Folder,
    images: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="Images to name.")],
    k: Annotated[int, typer.Option("-k", help="How many of the nearest have a say.")] = 10,
    min_confidence: Annotated[
        float, typer.Option("--min-confidence", help="Less sure than this is 'none of these'.")
    ] = 0.5,
    where: Where = None,
    run: Run = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Say what is on an image, by the labels of the most similar ones, or that it is none of these.

    [bold]nearkin classify birds.index query.jpg other.jpg[/bold]
    """
    from nearkin.index.where import parse_where

    asked = parse_where(where or [])
    answers = _opened(folder, run, device).classify(images, k, min_confidence=min_confidence, where=asked or None)
    found = list(zip(images, answers, strict=True))
    if as_json:
        print(json.dumps([{"query": query, **asdict(answer)} for query, answer in found]))
        return
    table = Table()
    table.add_column("image", overflow="fold")
    table.add_column("label")
    table.add_column("sure", justify="right")
    for query, answer in found:
        sure = "–" if answer.confidence is None else f"{answer.confidence:.0%}"
        table.add_row(escape(query), "none of these" if answer.label is None else escape(answer.label), sure)
    Console().print(table)


def _opened(folder: Path, run: Path | None, device: str | None) -> Index:
    """An index, with its encoder from where it was, or from ``run``, and all that was asked of that."""
    from nearkin.index import Index
    from nearkin.runs.model import load_again

    if run is None and device is None:
        return Index.open(folder)
    status = Index.open(folder).status()
    return Index.open(folder, load_again(run or status.model, status.model_options, device=device))


def _shares(crop: str, image: str) -> list[float]:
    """``x,y,w,h`` as shares of an image: as they are where all are at most 1, else pixels of the upright image."""
    from nearkin.data.image_inputs import ImageInputs

    try:
        x, y, width, height = (float(each) for each in crop.split(","))
    except ValueError:
        raise RecipeError(f"--crop must be four numbers, x,y,width,height, got {crop!r}") from None
    if max(x, y, width, height) <= 1:
        return [x, y, width, height]
    rows, columns = ImageInputs([image], shorter_side=None)[0].shape[:2]
    if min(x, y) < 0 or min(width, height) <= 0 or x + width > columns or y + height > rows:
        raise RecipeError(f"--crop {crop} does not lie within {image}, which is {columns} pixels wide and {rows} high")
    return [x / columns, y / rows, width / columns, height / rows]


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
