"""Options that several commands share, and the recipe that a command line gives."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from nearkin.cli._app import say
from nearkin.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearkin.index import Index
    from nearkin.recipe import Recipe


def output(help: str) -> Any:
    """The option ``-o``, for which each command has words of its own."""
    return Option("--output", "-o", help=help)


def figure_file(file: Path | None) -> Path | None:
    """Check the file of a figure that an option names."""
    if file is not None and file.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise RecipeError(f"the file of a figure must end in .png, .pdf or .svg, got {str(file)!r}")
    return file


Json = Annotated[bool, Option("--json", help="Print the result as JSON.")]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Show progress also when the output is piped.")]
Checkpoint = Annotated[Literal["best", "last"], Option("--checkpoint", help="Which weights of the run.")]
Device = Annotated[str | None, Option("--device", help="auto, cpu, cuda, cuda:1 or mps.")]
Format = Annotated[Literal["table", "md", "latex", "csv"], Option("--format", help="How to print the result.")]
Yes = Annotated[bool, Option("--yes", "-y", help="Do it without asking.")]
RunFolders = Annotated[list[Path], Argument(metavar="RUN...", help="Run folders; that of a study stands for its runs.")]
OneRun = Annotated[Path, Argument(metavar="RUN", help="A run folder.")]

DataRoot = Annotated[Path | None, Option("--data-root", help="Folder of the benchmarks. Default: $NEARKIN_DATA.")]
MovedData = Annotated[str | None, Option("--data", help="Where the runs' images are now, if they have moved.")]
Data = Annotated[
    str | None,
    Option("--data", help="A folder with one folder per class, a CSV or JSONL manifest, or a benchmark's name."),
]
ClassFolders = Annotated[
    Literal["deepest", "top"] | None,
    Option("--class-folders", help="Which of nested folders are classes: those that hold images, or the top ones."),
]

RecipeAndChanges = Annotated[
    list[str] | None,
    Argument(metavar="RECIPE [KEY=VALUE]...", help="A recipe file or name, then changes, such as encoder.dim=128."),
]
RunsFolder = Annotated[Path | None, output("Folder for all runs. Default: one in runs/ named after the data.")]
Epochs = Annotated[int | None, Option("--epochs", min=0, help="Epochs of every run.")]
Jobs = Annotated[int, Option("--jobs", "-j", min=1, help="Runs at a time, to fill a GPU.")]
ListRows = Annotated[bool, Option("--list", help="Show the rows and train nothing.")]

Flip = Annotated[bool | None, Option("--flip/--no-flip", help="Average with the mirror image. Default: as in the run.")]
EvalSize = Annotated[int | None, Option("--eval-size", help="Side of the crops in pixels. Default: the run's.")]
With = Annotated[list[Path] | None, Option("--with", metavar="RUN", help="Run to concatenate with. Repeat for more.")]
Rerank = Annotated[
    int | None, Option("--rerank", metavar="K", min=1, help="Re-rank by common k-reciprocal neighbours, such as 20.")
]

IndexFolder = Annotated[Path, Argument(metavar="INDEX", help="An index that 'nearkin index' made.")]
Where = Annotated[
    list[str] | None,
    Option(
        "--where",
        metavar="FIELD=VALUE",
        help="Only these: label=tit (twice: either), or by a manifest's column 'year>=2020'.",
    ),
]
MovedRun = Annotated[Path | None, Option("--run", help="The index's run or exported file, if it has moved.")]
Sheet = Annotated[
    Path | None, Option("--sheet", metavar="PNG", callback=figure_file, help="Also draw a contact sheet.")
]

MapClasses = Annotated[int, Option("--classes", min=2, help="Classes in a map of embeddings.")]
ViewSeed = Annotated[int, Option("--seed", min=0, help="Selects the classes and images that are shown.")]


def names_in(text: str | None) -> list[str] | None:
    """Names separated by commas."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def open_index(folder: Path, run: Path | None, device: str | None) -> Index:
    """An index with its encoder, which is loaded from ``run`` if that is given."""
    from nearkin.index import Index
    from nearkin.runs.model import reload

    index = Index.open(folder)
    if run is None and device is None:
        return index
    status = index.status()
    return Index.open(folder, reload(run or status.model, status.model_options, device=device))


def changes_from(given: Sequence[str], options: Mapping[str, object]) -> list[str]:
    """The changes ``key=value`` that were given, then one for each option that has a value, by its key.

    >>> changes_from(["training.seed=1"], {"training.epochs": 5, "training.device": None})
    ['training.seed=1', 'training.epochs=5']
    """
    return [*given, *(f"{key}={json.dumps(value, default=str)}" for key, value in options.items() if value is not None)]


def split_arguments(arguments: Sequence[str] | None, *, what: str) -> tuple[str | None, list[str]]:
    """The name, if one is given, and the changes ``key=value``."""
    names = [text for text in arguments or () if "=" not in text]
    if len(names) > 1:
        raise RecipeError(f"give one {what}, got {', '.join(names)}; changes to it are written key=value")
    return (names[0] if names else None), [text for text in arguments or () if "=" in text]


def recipe_from(
    arguments: Sequence[str] | None,
    data: str | None,
    options: Mapping[str, object],
    *,
    backbone: str | None = None,
) -> Recipe:
    """The recipe of a command line: a name and changes to it, or what suits the images of --data."""
    from nearkin.data.source import check_source
    from nearkin.runs.folder import own_photos_recipe
    from nearkin.training.recipe_check import load_recipe

    name, changes = split_arguments(arguments, what="recipe")
    changes = changes_from(changes, options)
    if name is not None:
        if backbone is not None:
            raise RecipeError(f"--backbone goes with --data alone; with a recipe write encoder.backbone={backbone}")
        return load_recipe(name, changes_from(changes, {"data.source": data}))
    if data is None:
        raise RecipeError("nothing to train: name one of 'nearkin list recipes', or give images with --data FOLDER")
    check_source(data)  # before weights are downloaded
    return own_photos_recipe(data, changes, backbone=backbone, say=partial(say, stderr=True))
