"""Commands that query an index: search, classify, duplicates, cluster, serve."""

from __future__ import annotations

import difflib
import json
import secrets
import webbrowser
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from nearkin.cli import options
from nearkin.cli._app import SEARCH, app, print_table, progress_bar, say, say_first
from nearkin.errors import RecipeError, notice, require

if TYPE_CHECKING:
    from nearkin.index import Hit
    from nearkin.index.search import SearchOptions

_SHOWN = 20


@app.command(rich_help_panel=SEARCH)
def search(
    folder: options.IndexFolder,
    images: Annotated[list[str] | None, Argument(metavar="[IMAGE]...", help="Images to look for.")] = None,
    k: Annotated[int, Option("-k", help="How many to find.")] = 10,
    where: options.Where = None,
    crop: Annotated[str | None, Option(metavar="X,Y,W,H", help="A part of the image, in pixels or fractions.")] = None,
    like: Annotated[list[int] | None, Option(metavar="ID", help="Also like this item.")] = None,
    unlike: Annotated[list[int] | None, Option(metavar="ID", help="Not like this item.")] = None,
    group_by: Annotated[str | None, Option(metavar="FIELD", help="The nearest of each label or other value.")] = None,
    min_confidence: Annotated[float | None, Option(help="Least confidence of a hit.")] = None,
    all_copies: Annotated[bool, Option("--all-copies", help="Show all copies of a photo, not just one.")] = False,
    sheet: options.Sheet = None,
    run: options.MovedRun = None,
    device: options.Device = None,
    as_json: options.Json = False,
) -> None:
    """Find the images that look most like one.

    [bold]nearkin search birds.index query.jpg[/bold]  the ten nearest, with confidences

    [bold]nearkin search birds.index query.jpg --where label=tit --where 'year>=2020'[/bold]  only among these

    [bold]nearkin search birds.index query.jpg --crop 120,80,200,200[/bold]  with a part of the image

    [bold]nearkin search birds.index --like 3 --like 7 --unlike 9[/bold]  more of this, less of that
    """
    from nearkin.index.filters import parse_where

    if not images and not like:
        raise RecipeError(f"give an image to look for: nearkin search {folder} IMAGE, or ids with --like")
    if crop is not None and len(images or []) != 1:
        raise RecipeError(f"--crop is a part of one image, got {len(images or [])} images: give exactly one")
    condition = parse_where(where or [])
    box = None if crop is None or not images else _fractions(crop, images[0])
    opened = options.open_index(folder, run, device)
    for label in condition["label"] if isinstance(condition.get("label"), list) else ():
        if label not in (labels := [name for name, _ in opened.label_counts()]):
            near = difflib.get_close_matches(label, labels, n=1)
            notice(f"no item has the label {label!r}" + "".join(f"; did you mean {name!r}?" for name in near))
    wanted: SearchOptions = {
        "where": condition,
        "like": like or [],
        "unlike": unlike or [],
        "group_by": group_by,
        "min_confidence": min_confidence,
        "crop": box,
        "collapse": not all_copies,
    }
    if images:
        results = list(zip(images, opened.search(images, k, **wanted), strict=True))
    else:
        results = [("", opened.search(None, k, **wanted))]
    if opened.confidence is None and any(hit.label is not None for _, hits in results for hit in hits):
        notice(f"{folder} has no confidences to tell how sure these hits are: see nearkin index status {folder}")
    if sheet is not None:
        from nearkin.report.contact_sheet import draw_sheet

        draw_sheet(sheet, opened, results)
    if as_json:
        print(json.dumps([{"query": query or None, "hits": [asdict(hit) for hit in hits]} for query, hits in results]))
        return
    for query, hits in results:
        _print_hits(query, hits)
    if sheet is not None:
        say(f"Contact sheet: {sheet}")


@app.command(rich_help_panel=SEARCH)
def classify(
    folder: options.IndexFolder,
    images: Annotated[list[str], Argument(metavar="IMAGE...", help="Images to label.")],
    min_confidence: Annotated[float | None, Option(help="Below this: 'none of these'. Default: 0.5.")] = None,
    where: options.Where = None,
    run: options.MovedRun = None,
    device: options.Device = None,
    as_json: options.Json = False,
) -> None:
    """Label images by the nearest class of an index, or as none of these.

    [bold]nearkin classify birds.index query.jpg other.jpg[/bold]

    Confidences are learned from images of the index that the encoder was not trained on: nearkin index status INDEX
    shows how reliable they are. An index with too few such images has none, and labels every image.
    """
    from nearkin.index.filters import parse_where
    from nearkin.report.table import Part, Table

    condition = parse_where(where or []) or None
    opened = options.open_index(folder, run, device)
    answers = opened.classify(images, min_confidence=min_confidence, where=condition)
    if opened.confidence is None:
        so = "so every photo gets a label and 'none of these' is impossible"
        notice(f"{folder} has no confidences, {so}: see nearkin index status {folder}")
    results = list(zip(images, answers, strict=True))
    if as_json:
        print(json.dumps([{"query": query, **asdict(answer)} for query, answer in results]))
        return
    cells = [
        (query, "none of these" if answer.label is None else answer.label, _percent(answer.confidence))
        for query, answer in results
    ]
    print_table(Table("", (Part.of(("image", "label", "confidence"), cells, texts=2),)))


@app.command(rich_help_panel=SEARCH)
def duplicates(
    folder: options.IndexFolder,
    near: Annotated[bool, Option("--near", help="Images that the encoder hardly distinguishes.")] = False,
    most_bits: Annotated[
        int | None, Option("--bits", help="Without --near: how many of 64 bits may differ. Default: 10.")
    ] = None,
    min_confidence: Annotated[float | None, Option(help="With --near: the least confidence. Default: 0.99.")] = None,
    min_score: Annotated[float | None, Option(help="With --near: the least score, instead of a confidence.")] = None,
    where: options.Where = None,
    sheet: options.Sheet = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Find duplicate images.

    [bold]nearkin duplicates birds.index[/bold]  copies: encoded again, resized, a little brighter

    [bold]nearkin duplicates birds.index --near[/bold]  also different photos of the same thing

    The first compares perceptual hashes, in which a mirror image differs; the second compares embeddings.
    """
    from nearkin.index import Index
    from nearkin.index import duplicates as find
    from nearkin.index.filters import parse_where
    from nearkin.index.fingerprint import MOST_BITS

    if near and most_bits is not None:
        raise RecipeError("--bits is for perceptual hashes, --near compares embeddings: give one of them")
    if not near and (min_confidence is not None or min_score is not None):
        raise RecipeError("--min-confidence and --min-score are for embeddings: add --near")
    opened, filters = Index.open(folder), parse_where(where or [])
    with progress_bar("comparing", verbose) as bar:
        if near:
            result = find.near(opened, min_confidence=min_confidence, min_score=min_score, where=filters, progress=bar)
        else:
            bits = MOST_BITS if most_bits is None else most_bits
            result = find.same_picture(opened, most_bits=bits, where=filters)
    if sheet is not None:
        from nearkin.report.contact_sheet import draw_groups

        draw_groups(sheet, opened, [(f"group {position}", ids) for position, ids in enumerate(result.groups, start=1)])
    if as_json:
        groups = [[asdict(item) for item in opened.items(ids)] for ids in result.groups]
        print(json.dumps({"question": result.question, "groups": groups, "blank": result.blank}))
        return
    what = "Near in the embedding" if near else "Copies"
    say(f"{what}: {len(result.groups):,} groups, {sum(map(len, result.groups)):,} images in all")
    for position, ids in enumerate(result.groups[:_SHOWN], start=1):
        say(f"{position}.")
        say_first([f"  {item.id}  {item.label or '–'}  {item.path or '–'}" for item in opened.items(ids)], _SHOWN)
    if len(result.groups) > _SHOWN:
        say(f"… and {len(result.groups) - _SHOWN:,} more groups (--json has all)")
    if result.blank:
        say(f"{len(result.blank):,} images of one colour throughout, or smaller than 32 pixels, were not compared")
    if sheet is not None:
        say(f"Contact sheet: {sheet}")


@app.command(rich_help_panel=SEARCH)
def cluster(
    folder: options.IndexFolder,
    number: Annotated[int | None, Option("-n", "--number", help="How many. Default: by the best silhouette.")] = None,
    output: Annotated[Path | None, options.output("New folder for clusters.csv and a contact sheet of each.")] = None,
    where: options.Where = None,
    seed: Annotated[int, Option(help="Seed of k-means.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Cluster the images of an index by k-means on their vectors.

    [bold]nearkin cluster birds.index -o clusters[/bold]  the number of clusters with the best silhouette

    [bold]nearkin cluster birds.index -n 20[/bold]

    Where items have labels, the clusters are compared with them.
    """
    from nearkin.disk import make_folder
    from nearkin.index import Index
    from nearkin.index.clusters import cluster as clustered
    from nearkin.index.clusters import write_manifest
    from nearkin.index.filters import parse_where

    if output is not None and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise RecipeError(f"{output} exists already: give a new folder with -o")
    opened = Index.open(folder)
    result = clustered(opened, number, where=parse_where(where or []), seed=seed)
    if output is not None:
        from nearkin.report.contact_sheet import draw_groups

        make_folder(output)
        write_manifest(output / "clusters.csv", opened, result)
        digits = len(str(len(result.ids)))
        for position, ids in enumerate(result.ids, start=1):
            draw_groups(output / f"cluster-{position:0{digits}d}.png", opened, [(f"cluster {position}", ids)])
    if as_json:
        print(json.dumps(asdict(result)))
        return
    suits = "" if result.silhouette is None else f", chosen by a silhouette of {result.silhouette:.2f}"
    say(f"{len(result.ids):,} clusters of {sum(map(len, result.ids)):,} images{suits}")
    if result.purity is not None and result.nmi is not None:
        say(f"Compared with the labels: purity {result.purity:.1%}, NMI {100 * result.nmi:.1f}")
    lines = []
    for position, ids in enumerate(result.ids, start=1):
        labels = Counter(item.label or "no label" for item in opened.items(ids)).most_common(3)
        lines.append(f"{position:4}. {len(ids):,} images: {', '.join(f'{label} {count:,}' for label, count in labels)}")
    say_first(lines, _SHOWN, "more (--json has all)")
    if output is not None:
        say(f"Contact sheets and clusters.csv: {output}")


@app.command(rich_help_panel=SEARCH)
def serve(
    folder: options.IndexFolder,
    port: Annotated[int, Option(help="Port to listen on; 0 for any free port.")] = 8000,
    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    key: Annotated[
        str | None,
        Option(
            envvar="NEARKIN_API_KEY",
            help="Key that requests must carry, at least 12 characters of plain ASCII; all but loopback need one, and "
            "without it one is generated and shown once. Prefer the environment: other users see a command line.",
        ),
    ] = None,
    allow_host: Annotated[list[str] | None, Option(metavar="NAME", help="Another host name of the server.")] = None,
    read_only: Annotated[bool, Option("--read-only", help="Nothing is added, removed or corrected.")] = False,
    hide_paths: Annotated[bool, Option("--hide-paths", help="Do not show the paths of the images.")] = False,
    max_megabytes: Annotated[float, Option(help="Largest request.")] = 32.0,
    max_megapixels: Annotated[float, Option(help="Largest uploaded image.")] = 64.0,
    open_browser: Annotated[bool, Option("--open", help="Open it in the browser.")] = False,
    run: options.MovedRun = None,
    device: options.Device = None,
    log_level: Annotated[
        Literal["debug", "info", "warning"], Option("--log-level", help="Logs are JSON on the error stream.")
    ] = "info",
) -> None:
    """Search an index in the browser and over HTTP.

    [bold]nearkin serve birds.index --open[/bold]  for yourself: only this machine can reach it

    [bold]nearkin serve birds.index --host 0.0.0.0 --read-only[/bold]  for others, who need the key that it shows

    Ctrl-C finishes open requests and ends. docs/serving.md describes the interface and the limits.
    """
    for module in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
        require(module, "serve")
    from nearkin.serving.app import serve as run_server
    from nearkin.serving.middleware import log_to_stderr
    from nearkin.serving.settings import Settings, is_loopback

    generated = None if key is not None or is_loopback(host) else secrets.token_urlsafe(24)
    settings = Settings(
        host=host,
        port=port,
        key=key or generated,
        allow_hosts=tuple(allow_host or ()),
        read_only=read_only,
        hide_paths=hide_paths,
        max_bytes=int(max_megabytes * (1 << 20)),
        max_pixels=int(max_megapixels * 1e6),
    )
    index = options.open_index(folder, run, device)

    def ready(url: str) -> None:
        address = f"{url}/#key={generated}" if generated else url
        say(f"{folder} with {len(index):,} images is at {address}  (Ctrl-C ends it)")
        if generated:
            say(f"Its key, shown only once: {generated}")
        if open_browser:
            webbrowser.open(address)

    log_to_stderr(log_level)
    run_server(index, settings, ready=ready)


def _fractions(crop: str, image: str) -> list[float]:
    """``x,y,w,h`` as fractions of an image; values above 1 are pixels of the upright image."""
    from nearkin.data.image_inputs import ImageInputs

    try:
        x, y, width, height = map(float, crop.split(","))
    except ValueError:
        raise RecipeError(f"--crop must be four numbers, x,y,width,height, got {crop!r}") from None
    if max(x, y, width, height) <= 1:
        return [x, y, width, height]
    rows, columns = ImageInputs([image], shorter_side=None)[0].shape[:2]
    if min(x, y) < 0 or min(width, height) <= 0 or x + width > columns or y + height > rows:
        raise RecipeError(f"--crop {crop} does not lie within {image}, which is {columns} pixels wide and {rows} high")
    return [x / columns, y / rows, width / columns, height / rows]


def _print_hits(query: str, hits: list[Hit]) -> None:
    from nearkin.report.table import NOTHING, Part, Table

    if not hits:
        say(f"Nothing found{f' for {query}' if query else ''}.")
        return
    cells: list[tuple[str, ...]] = [
        (hit.label or NOTHING, hit.path or NOTHING, str(hit.id), f"{hit.score:.4f}", _percent(hit.confidence))
        for hit in hits
    ]
    names: tuple[str, ...] = ("label", "path", "id", "score", "confidence")
    if any(hit.copies > 1 for hit in hits):
        names = (*names, "copies")
        cells = [(*row, str(hit.copies)) for row, hit in zip(cells, hits, strict=True)]
    print_table(Table(query, (Part.of(names, cells, texts=2),)))


def _percent(confidence: float | None) -> str:
    return "–" if confidence is None else f"{confidence:.0%}"
