"""Commands that put the items of an index into groups: duplicates, cluster."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nearkin.cli._app import SEARCH, Json, Verbose, app
from nearkin.cli.index import Folder, Where, say, told_progress
from nearkin.errors import RecipeError

__all__ = ["cluster", "duplicates"]

_SHOWN = 20


@app.command(rich_help_panel=SEARCH)
def duplicates(
    folder: Folder,
    same_picture: Annotated[
        bool, typer.Option("--same-picture", help="The same picture, stored again (as without any option).")
    ] = False,
    near: Annotated[bool, typer.Option("--near", help="Pictures that the encoder hardly tells apart.")] = False,
    most_bits: Annotated[
        int | None, typer.Option("--bits", help="With --same-picture: so many of 64 bits may differ. Default: 10.")
    ] = None,
    min_confidence: Annotated[
        float | None, typer.Option("--min-confidence", help="With --near: so surely of one kind. Default: 0.99.")
    ] = None,
    min_score: Annotated[
        float | None, typer.Option("--min-score", help="With --near: of such a score, in place of a confidence.")
    ] = None,
    where: Where = None,
    sheet: Annotated[
        Path | None, typer.Option("--sheet", metavar="PNG", help="Also draw the groups into this file.")
    ] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Find images that are there more than once.

    [bold]nearkin duplicates birds.index[/bold]  the same picture: encoded again, made smaller, a little brighter

    [bold]nearkin duplicates birds.index --near[/bold]  another question: what the encoder takes for the same thing

    The first compares what pictures look like from afar, by a perceptual hash, and asks no encoder; a mirror image is
    another picture. The second also joins different photos of one thing.
    """
    from nearkin.index import Index
    from nearkin.index.duplicates import MOST_BITS
    from nearkin.index.duplicates import near as nearly
    from nearkin.index.duplicates import same_picture as same
    from nearkin.index.where import parse_where

    if near and (same_picture or most_bits is not None):
        raise RecipeError("--same-picture and --near are two questions: ask one, --bits goes with the first")
    if not near and (min_confidence is not None or min_score is not None):
        raise RecipeError("--min-confidence and --min-score go with --near")
    _check_picture(sheet)
    opened, asked = Index.open(folder), parse_where(where or [])
    with told_progress("comparing", verbose) as progress:
        if near:
            found = nearly(opened, min_confidence=min_confidence, min_score=min_score, where=asked, progress=progress)
        else:
            bits = MOST_BITS if most_bits is None else most_bits
            found = same(opened, most_bits=bits, where=asked, progress=progress)
    if sheet is not None:
        from nearkin.report.contact_sheet import draw_groups

        draw_groups(sheet, opened, [(f"group {place}", ids) for place, ids in enumerate(found.groups, start=1)])
    if as_json:
        groups = [[asdict(item) for item in opened.items(ids)] for ids in found.groups]
        print(json.dumps({"question": found.question, "groups": groups, "blank": found.blank}))
        return
    what = "Near to the encoder, whether the same picture or not" if near else "The same picture"
    say(f"{what}: {len(found.groups):,} groups, {sum(map(len, found.groups)):,} images in all")
    for place, ids in enumerate(found.groups[:_SHOWN], start=1):
        say(f"{place}.")
        for item in opened.items(ids[:_SHOWN]):
            say(f"  {item.id}  {item.label or '–'}  {item.path or '–'}")
        if len(ids) > _SHOWN:
            say(f"  … and {len(ids) - _SHOWN:,} more")
    if len(found.groups) > _SHOWN:
        say(f"… and {len(found.groups) - _SHOWN:,} more groups (--json has all)")
    if found.blank:
        say(f"{len(found.blank):,} images of one colour throughout were not compared")
    if sheet is not None:
        say(f"Contact sheet: {sheet}")


@app.command(rich_help_panel=SEARCH)
def cluster(
    folder: Folder,
    number: Annotated[
        int | None, typer.Option("-n", "--number", help="How many clusters. Default: as many as suit the images best.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="New folder: a picture of each cluster, and clusters.csv with all items."),
    ] = None,
    where: Where = None,
    seed: Annotated[int, typer.Option("--seed", help="Another one begins elsewhere.")] = 0,
    as_json: Json = False,
) -> None:
    """Put the images of an index into groups that look alike.

    [bold]nearkin cluster birds.index -o clusters[/bold]  as many as suit the images best, by their silhouette

    [bold]nearkin cluster birds.index -n 20[/bold]

    By k-means on the vectors. Where items have labels, it says how well the clusters are those.
    """
    from nearkin.disk import make_folder
    from nearkin.index import Index
    from nearkin.index.clusters import cluster as clustered
    from nearkin.index.clusters import write_manifest
    from nearkin.index.where import parse_where

    if output is not None and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise RecipeError(f"{output} is there already: give a new folder with -o")
    opened = Index.open(folder)
    found = clustered(opened, number, where=parse_where(where or []), seed=seed)
    if output is not None:
        from nearkin.report.contact_sheet import draw_groups

        make_folder(output)
        write_manifest(output / "clusters.csv", opened, found)
        digits = len(str(len(found.ids)))
        for place, ids in enumerate(found.ids, start=1):
            draw_groups(output / f"cluster-{place:0{digits}d}.png", opened, [(f"cluster {place}", ids)])
    if as_json:
        print(json.dumps(asdict(found)))
        return
    suits = "" if found.silhouette is None else f", chosen by a silhouette of {found.silhouette:.2f}"
    say(f"{len(found.ids):,} clusters of {sum(map(len, found.ids)):,} images{suits}")
    if found.purity is not None and found.nmi is not None:
        say(f"Against the labels: purity {found.purity:.1%}, NMI {100 * found.nmi:.1f}")
    for place, ids in enumerate(found.ids[:_SHOWN], start=1):
        items = opened.items(ids)
        labels: dict[str, int] = {}
        for item in items:
            labels[item.label or "no label"] = labels.get(item.label or "no label", 0) + 1
        most = sorted(labels.items(), key=lambda both: -both[1])[:3]
        say(f"{place:4}. {len(ids):,} images: {', '.join(f'{label} {count:,}' for label, count in most)}")
    if len(found.ids) > _SHOWN:
        say(f"      … and {len(found.ids) - _SHOWN:,} more (--json has all)")
    if output is not None:
        say(f"A picture of each, and clusters.csv: {output}")


def _check_picture(file: Path | None) -> None:
    if file is not None and file.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise RecipeError(f"--sheet must end in .png, .pdf or .svg, got {str(file)!r}")
