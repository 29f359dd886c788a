"""The command index: make an index and add to it, show its status, upgrade, export, remove items."""

from __future__ import annotations

import difflib
import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from nearkin.cli import options
from nearkin.cli._app import SEARCH, app, confirm, print_table, progress_bar, say, say_first
from nearkin.errors import RecipeError

if TYPE_CHECKING:
    from nearkin.index import Status
    from nearkin.index.adding import Unfinished

_SHOWN = 10


class _AddingUnlessNamed(TyperGroup):
    """``nearkin index RUN FOLDER -o INDEX`` means ``nearkin index add …``, unless a command's name is misspelt."""

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
    help="Make a folder of images searchable, and maintain the index.\n\n"
    "[bold]nearkin index runs/photos photos -o birds.index[/bold]  embed every image; again for new ones\n\n"
    "Without one of the commands below it is 'add'; each has its own --help.",
)
app.add_typer(commands, name="index", rich_help_panel=SEARCH)


@commands.command("add")
def index(
    words: Annotated[
        list[str],
        Argument(
            metavar="RUN FOLDER|MANIFEST",
            help="A run or exported file, and the images to add: folders, manifests or image files.",
        ),
    ],
    output: Annotated[Path | None, options.output("A new folder, or an index to add to.")] = None,
    labels: Annotated[bool, Option("--labels/--no-labels", help="Label by folder or manifest.")] = True,
    test_images: Annotated[bool, Option("--test-images", help="Add the run's test images, not a folder.")] = False,
    class_folders: options.ClassFolders = None,
    flip: options.Flip = None,
    eval_size: options.EvalSize = None,
    also: options.With = None,
    engine: Annotated[
        str | None,
        Option(
            metavar="NAME|ADDRESS",
            help="exact (the default), faiss, postgresql://HOST/DATABASE (pgvector) or http://HOST:19530 (Milvus). "
            "Changes that of an existing index.",
        ),
    ] = None,
    device: options.Device = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Embed images and add them to an index, which is created if needed. The word 'add' may be left out.

    [bold]nearkin index runs/photos photos -o birds.index[/bold]  embed every image

    [bold]nearkin index runs/photos --test-images -o test.index[/bold]  the run's test images

    The same command resumes after an interruption, and adds new images.
    """
    from nearkin.index import Index
    from nearkin.index.engine import check_engine
    from nearkin.runs.model import load

    if test_images and len(words) > 1:
        raise RecipeError("give images to add or --test-images, not both")
    if len(words) < 2 and not test_images:
        raise RecipeError(f"give a run and the images to add: nearkin index {words[0]} FOLDER -o INDEX")
    if output is None:
        raise RecipeError("no folder to write the index to: give -o INDEX")
    if engine is not None:
        check_engine(engine)
    model = load([words[0], *(also or [])], device=device, flip=flip, eval_size=eval_size)
    exists = (output / "items.sqlite").is_file()
    opened = Index.open(output, model) if exists else Index.create(output, model, engine=engine or "exact")
    if exists and engine is not None:
        opened.use_engine(engine)
    with progress_bar("indexing", verbose) as progress:
        if test_images:
            added = opened.add_test_images(words[0], progress=progress)
        else:
            given = words[1:] if len(words) > 2 else words[1]
            added = opened.add(given, "folder" if labels else None, class_folders=class_folders, progress=progress)
    if as_json:
        print(json.dumps({"index": str(output), "items": len(opened), **asdict(added)}))
        return
    known = f", {added.known:,} were there already" if added.known else ""
    say(f"{added.added:,} images added{known}; {output} holds {len(opened):,}.")
    say_first([f"  could not read {path}: {reason}" for path, reason in added.failed], _SHOWN)
    for line in added.left_out:
        say(f"Left out: {line}")
    names, classes = {label for label, _ in opened.label_counts()}, model.classes()
    if classes and (others := names - classes):
        known = f"are no classes of {words[0]}, which has {len(classes):,}"
        say(f"Labels: {len(others):,} of {len(names):,} {known}. --class-folders reads folders in another way.")
    say(f"Next: nearkin search {output} IMAGE")
    say(f"      nearkin serve {output} --open  (the gallery, in a browser)")


@commands.command("status")
def show_status(
    folder: options.IndexFolder,
    figure: Annotated[
        Path | None, Option(metavar="PNG", callback=options.figure_file, help="Also draw the confidences' reliability.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show what an index holds, which files could not be read, and how reliable the confidences are."""
    from nearkin.evaluation.confidence import DEFAULT_THRESHOLD
    from nearkin.index import Index
    from nearkin.report.table import Part, Table

    status = Index.open(folder).status()
    if figure is not None:
        if status.confidence is None:
            raise RecipeError(f"{folder} has no confidences to draw: {status.no_confidence}")
        from nearkin.report.figures.reliability import draw_reliability

        draw_reliability(figure, status.confidence)
    if as_json:
        print(json.dumps({**asdict(status), "path": str(status.path)}))
        return
    say(f"{status.path}: {status.items:,} images, {status.labelled:,} of them with one of {status.labels:,} labels")
    if status.unfinished is not None:
        _print_unfinished(status, status.unfinished)
    twice = f", {status.duplicates:,} of these the same as another" if status.duplicates else ""
    say(f"Files: {status.found:,} found, {status.embedded:,} embedded{twice}, {len(status.failed):,} failed")
    say_first([f"  could not read {path}: {reason}" for path, reason in status.failed], _SHOWN)
    if status.columns:
        say(f"Further columns: {', '.join(status.columns)}")
    asked = "".join(f", {key} {value}" for key, value in status.model_options.items())
    say(f"Encoder: {status.model}{asked}, {status.dim} numbers, compared by {status.distance} ({status.encoder[:8]})")
    say(f"Engine: {', '.join(f'{key} {value}' for key, value in status.engine.items())}")
    if (learned := status.confidence) is None:
        why = status.no_confidence if status.unfinished is None else "it is learned when all images are added"
        say(f"Confidence: none; {why}")
        return
    say(
        f"Confidence: learned from {learned.images:,} images of {learned.classes:,} classes that the encoder was not "
        f"trained on, each searched among the others, and again with no image of its class in the index"
    )
    cells = [
        (name, f"{curve.calibration_error:.3f}", f"{curve.brier:.3f}", f"{curve.brier_of_constant:.3f}")
        for name, curve in (("hit is of the query's class", learned.hit), ("label is right", learned.label))
    ]
    headings = ("confidence that a", "calibration error", "Brier score", "Brier score of guessing")
    print_table(Table("", (Part.of(headings, cells, texts=1),)))
    say(
        f"Labels: {learned.accuracy:.0%} right; {learned.refused:.0%} of the images get a confidence below "
        f"{DEFAULT_THRESHOLD:.0%}, and {learned.unknown_refused:.0%} with no image of their class in the index"
    )


@commands.command("upgrade")
def upgrade(
    folder: options.IndexFolder,
    run: Annotated[Path, Argument(metavar="RUN", help="The run, or exported file, with the new encoder.")],
    drop_missing: Annotated[bool, Option("--drop-missing", help="Drop items whose file is gone or changed.")] = False,
    device: options.Device = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Embed all images of an index again with another encoder, which replaces the old one at the end.

    [bold]nearkin index upgrade birds.index runs/better[/bold]

    Images are read from their files again. Ids, labels, columns and thumbnails stay. Searches use the old vectors until
    all is done. The same command resumes after an interruption.
    """
    from nearkin.index.upgrade import upgrade as upgraded
    from nearkin.runs.model import load

    model = load(run, device=device)
    with progress_bar("embedding", verbose) as progress:
        done = upgraded(folder, model, drop_missing=drop_missing, progress=progress)
    if as_json:
        print(json.dumps(asdict(done)))
        return
    say(f"{folder}: {done.items:,} images embedded with {run}")
    say_first([f"  removed item {id}: {reason}" for id, reason in done.dropped], _SHOWN)


@commands.command("export")
def export(
    folder: options.IndexFolder,
    output: Annotated[Path, options.output("File to write: .npz or .parquet.")],
    where: options.Where = None,
    as_json: options.Json = False,
) -> None:
    """Write ids, paths, labels, further columns and vectors to one file.

    [bold]nearkin index export birds.index -o birds.parquet[/bold]  for data frames (extra 'parquet')

    [bold]nearkin index export birds.index -o birds.npz[/bold]  for NumPy, without pickle
    """
    from nearkin.index import Index
    from nearkin.index.export import export as write
    from nearkin.index.filters import parse_where

    count = write(Index.open(folder), output, where=parse_where(where or []))
    if as_json:
        print(json.dumps({"file": str(output), "items": count}))
    else:
        say(f"{output}: {count:,} items")


@commands.command("remove")
def remove(
    folder: options.IndexFolder,
    ids: Annotated[list[int] | None, Argument(metavar="[ID]...", help="Items to remove.")] = None,
    where: options.Where = None,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Remove items from an index, by id or by a condition. Their files stay.

    [bold]nearkin index remove birds.index 3 17[/bold]

    [bold]nearkin index remove birds.index --where 'label=blue tit' --where 'year<=2015' --yes[/bold]
    """
    from nearkin.index import Index
    from nearkin.index.filters import parse_where

    if bool(ids) == bool(where):
        raise RecipeError("name the items to remove: give ids or --where, not both")
    opened = Index.open(folder)
    removed_ids = sorted(set(ids)) if ids else opened.ids(parse_where(where or [])).tolist()
    opened.items(removed_ids)  # an unknown id is an error before anything is asked
    if removed_ids:
        confirm(f"Remove {len(removed_ids):,} of {len(opened):,} items from {folder}?", yes=yes)
    opened.remove(removed_ids)
    if as_json:
        print(json.dumps({"removed": removed_ids, "items": len(opened)}))
    else:
        say(f"{len(removed_ids):,} items removed; {folder} holds {len(opened):,}.")


def _print_unfinished(status: Status, unfinished: Unfinished) -> None:
    from nearkin.disk import writer_of

    progress = f"Unfinished: {unfinished.done:,} of {unfinished.total:,} images are done"
    if (process := writer_of(status.path)) is not None:
        say(f"{progress}; {process} is adding them")
        return
    sources = [shlex.quote(source) for source in unfinished.sources]
    given = " ".join(sources) if 1 <= len(sources) <= _SHOWN else "IMAGES"
    say(f"{progress}. Continue with the same command: nearkin index {status.model} {given} -o {status.path}")
