"""Commands for an index: make it and add to it, say what it holds, upgrade, export and take away."""

from __future__ import annotations

import difflib
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from typer.core import TyperGroup

from nearkin.cli._app import SEARCH, Device, Json, Verbose, app, escape, progress_console
from nearkin.cli._test_time import Flip, TestSize, With
from nearkin.errors import RecipeError

if TYPE_CHECKING:
    from nearkin.index import Status

__all__ = ["Folder", "Where", "index", "say", "told_progress"]

_SHOWN = 10
Folder = Annotated[Path, typer.Argument(metavar="INDEX", help="An index that 'nearkin index' made.")]
Where = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="FIELD=VALUE", help="Only these: label=tit (twice: either), 'year>=2020'."),
]


class _AddingUnlessNamed(TyperGroup):
    """``nearkin index RUN FOLDER -o INDEX`` is ``nearkin index add …``; a word that is nearly a command's is not."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            near = difflib.get_close_matches(args[0], self.commands, n=1, cutoff=0.7)
            if near and not Path(args[0]).exists():
                raise RecipeError(f"there is neither a run nor a command {args[0]!r}: did you mean {near[0]!r}?")
            args = ["add", *args]
        return super().parse_args(ctx, args)


commands = typer.Typer(
    cls=_AddingUnlessNamed,
    subcommand_metavar="RUN FOLDER... -o INDEX | COMMAND ...",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Make a folder of images searchable, and look after the index.\n\n"
    "[bold]nearkin index runs/photos photos -o birds.index[/bold]  embed every image, once; again for what is new\n\n"
    "Without one of the words below it is 'add'; each has a --help of its own.",
)
app.add_typer(commands, name="index", rich_help_panel=SEARCH)


@contextmanager
def told_progress(what: str, verbose: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar for what takes a while, told how much is done and of how much."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=progress_console(verbose), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def say(text: str) -> None:
    """A line for people, as it is."""
    Console().print(escape(text), highlight=False, soft_wrap=True)


@commands.command("add")
def index(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN FOLDER|MANIFEST",
            help="A run folder, or a file that 'nearkin export' wrote, and the images to add: folders, manifests or "
            "image files.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The index: a new folder, or an index to add to.")
    ] = None,
    labels: Annotated[
        bool, typer.Option("--labels/--no-labels", help="Label images by their folder or manifest.")
    ] = True,
    test_images: Annotated[
        bool, typer.Option("--test-images", help="Add the run's own test images, in place of a folder.")
    ] = False,
    flip: Flip = None,
    eval_size: TestSize = None,
    also: With = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="NAME|ADDRESS",
            help="What searches: exact, faiss, postgresql://HOST/DATABASE (pgvector), http://HOST:19530 "
            "(Milvus). An index that is there changes to it. Else its own, and exact for a new one.",
        ),
    ] = None,
    device: Device = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Embed images and add them to an index, which is made where there is none. The word 'add' may be left out.

    [bold]nearkin index runs/photos photos -o birds.index[/bold]  embed every image, once

    [bold]nearkin index runs/photos --test-images -o test.index[/bold]  what the run was tested on

    The same command again goes on after an interruption, and adds what is new.
    """
    from nearkin.index import Index
    from nearkin.index.engine import check_engine
    from nearkin.runs.model import load

    if test_images and len(words) > 1:
        raise RecipeError("give images to add, or --test-images for the run's own, not both")
    if len(words) < 2 and not test_images:
        raise RecipeError(f"give a run and the images to add: nearkin index {words[0]} FOLDER -o INDEX")
    if output is None:
        raise RecipeError("say where the index is to be: -o INDEX")
    if engine is not None:
        check_engine(engine)
    model = load(
        [words[0], *(also or [])],
        device=device,
        flip=flip,
        eval_size=eval_size,
    )
    there = (output / "items.sqlite").is_file()
    opened = Index.open(output, model) if there else Index.create(output, model, engine=engine or "exact")
    if there and engine is not None:
        opened.use_engine(engine)
    with told_progress("indexing", verbose) as progress:
        if test_images:
            added = opened.add_test_images(words[0], progress=progress)
        else:
            given = words[1:] if len(words) > 2 else words[1]
            added = opened.add(given, "folder" if labels else None, progress=progress)
    if as_json:
        print(json.dumps({"index": str(output), "items": len(opened), **asdict(added)}))
        return
    console = Console()
    known = f", {added.known:,} were there already" if added.known else ""
    console.print(f"{added.added:,} images added{known}; {escape(str(output))} holds {len(opened):,}.", soft_wrap=True)
    _print_failed(console, added.failed)
    for line in added.left_out:
        console.print(f"Left out: {escape(line)}", highlight=False, soft_wrap=True)
    say(f"Next: nearkin search {output} IMAGE")
    say(f"      nearkin serve {output} --open  (the gallery, in a browser)")


@commands.command("status")
def status(
    folder: Folder,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="PNG", help="Also draw how far confidences can be believed into this file."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what an index holds, what could not be read and why, and how sure hits are."""
    from nearkin.index import Index

    if picture is not None and picture.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise RecipeError(f"--picture must end in .png, .pdf or .svg, got {str(picture)!r}")
    told = Index.open(folder).status()
    if picture is not None:
        if told.calibration is None:
            raise RecipeError(f"{folder} has too few labels to learn confidences from: there is nothing to draw")
        from nearkin.report.figures.reliability import draw_reliability

        draw_reliability(picture, told.calibration)
    _print_status(told, as_json=as_json)


@commands.command("upgrade")
def upgrade(
    folder: Folder,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run, or exported file, with the new encoder.")],
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Let go of items whose file is gone or has changed.")
    ] = False,
    keep_old: Annotated[bool, typer.Option("--keep-old", help="Leave the index as it was in INDEX.old.")] = False,
    device: Device = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Embed all images of an index again with another encoder, which takes the place of the old one at the end.

    [bold]nearkin index upgrade birds.index runs/better[/bold]

    Images are read from their files again. Ids, labels, columns and thumbnails stay. Until all is done the old vectors
    are searched; the same command goes on after an interruption. It says how far the two agree.
    """
    from nearkin.index.upgrade import upgrade as upgraded
    from nearkin.runs.model import load

    model = load(run, device=device)
    with told_progress("embedding", verbose) as progress:
        done = upgraded(folder, model, drop_missing=drop_missing, keep_old=keep_old, progress=progress)
    if as_json:
        print(json.dumps({**asdict(done), "old": None if done.old is None else str(done.old)}))
        return
    say(f"{folder}: {done.items:,} images embedded with {run}")
    for id, reason in done.dropped[:_SHOWN]:
        say(f"  let go of item {id}: {reason}")
    if len(done.dropped) > _SHOWN:
        say(f"  … and of {len(done.dropped) - _SHOWN:,} more")
    if done.overlap is not None:
        say(f"Of the ten nearest of {done.compared:,} images {done.overlap:.0%} are the same as before")
    if done.accuracy is not None and done.accuracy_before is not None:
        say(
            f"The label that most of the ten nearest have was right for {done.accuracy_before:.1%} of labelled images, "
            f"and is for {done.accuracy:.1%} now"
        )
    if done.old is not None:
        say(f"The index as it was: {done.old}")


@commands.command("compact")
def compact(folder: Folder, as_json: Json = False, verbose: Verbose = False) -> None:
    """Take the vectors of removed images off the disk for good. Ids and all else of the others stay."""
    from nearkin.index.upgrade import compact as compacted

    with told_progress("writing", verbose) as progress:
        done = compacted(folder, progress=progress)
    if as_json:
        print(json.dumps(asdict(done)))
        return
    say(
        f"{folder}: {done.items:,} images stay, the vectors of {done.removed:,} removed ones are gone; "
        f"{done.after / 1e6:,.1f} MB of {done.before / 1e6:,.1f} MB are left"
    )


@commands.command("export")
def export(
    folder: Folder,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .npz or .parquet.")],
    where: Where = None,
    as_json: Json = False,
) -> None:
    """Write ids, paths, labels, further columns and vectors to one file.

    [bold]nearkin index export birds.index -o birds.parquet[/bold]  for data frames (extra 'parquet')

    [bold]nearkin index export birds.index -o birds.npz[/bold]  for NumPy, without pickle
    """
    from nearkin.index import Index
    from nearkin.index.export import export as write
    from nearkin.index.where import parse_where

    count = write(Index.open(folder), output, where=parse_where(where or []))
    if as_json:
        print(json.dumps({"file": str(output), "items": count}))
    else:
        say(f"{output}: {count:,} items")


@commands.command("remove")
def remove(
    folder: Folder,
    ids: Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Items to take away.")] = None,
    where: Where = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    as_json: Json = False,
) -> None:
    """Take items out of an index, by id or by what they are. Their files stay.

    [bold]nearkin index remove birds.index 3 17[/bold]

    [bold]nearkin index remove birds.index --where 'label=blue tit' --where 'year<=2015' --yes[/bold]
    """
    from nearkin.index import Index
    from nearkin.index.where import parse_where

    if bool(ids) == bool(where):
        raise RecipeError("say which items to remove: give ids, or --where, not both")
    opened = Index.open(folder)
    gone = sorted(set(ids)) if ids else opened.ids(parse_where(where or [])).tolist()
    opened.items(gone)  # an id that is not there is an error before anybody is asked
    if gone and not yes:
        if not sys.stdin.isatty():
            raise RecipeError(f"nobody can be asked here: give --yes as well to remove {len(gone):,} items")
        typer.confirm(f"Remove {len(gone):,} of {len(opened):,} items from {folder}?", abort=True, err=True)
    opened.remove(gone)
    if as_json:
        print(json.dumps({"removed": gone, "items": len(opened)}))
    else:
        say(f"{len(gone):,} items removed; {folder} holds {len(opened):,}.")


def _print_status(status: Status, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**asdict(status), "path": str(status.path)}))
        return
    console = Console()
    say(f"{status.path}: {status.items:,} images, {status.labelled:,} of them with one of {status.labels:,} labels")
    twice = f", {status.duplicates:,} of these the same as another" if status.duplicates else ""
    say(f"Files: {status.found:,} found, {status.embedded:,} embedded{twice}, {len(status.failed):,} failed")
    _print_failed(console, status.failed)
    for source, lines in status.left_out.items():
        for line in lines:
            say(f"Left out of {source}: {line}")
    if status.columns:
        say(f"Further columns: {', '.join(status.columns)}")
    asked = "".join(f", {key} {value}" for key, value in status.model_options.items())
    say(f"Encoder: {status.model}{asked}, {status.dim} numbers, compared by {status.distance} ({status.encoder[:8]})")
    say(f"Engine: {', '.join(f'{key} {value}' for key, value in status.engine.items())}")
    if (curve := status.calibration) is None:
        say("Confidence: none, as there are too few labels to learn it from")
        return
    say(
        f"Confidence: learned from {curve.source}; Brier score {curve.brier:.3f} on classes not fitted to "
        f"({curve.brier_of_share:.3f} if all hits were given the same)"
    )
    if curve.shift:
        here = 1 / (1 + math.exp(-curve.shift))
        say(
            f"Shifted to the number of classes in this index: a confidence of 50% in the table below is {here:.0%} here"
        )
    if curve.label is not None:
        say(
            f"Labels by classify: Brier score {curve.label.brier:.3f} ({curve.label.brier_of_share:.3f} if all were "
            f"given the same), one in five of a kind that is not there"
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
