"""Commands that make and use a run: train, evaluate, embed, export."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from typer import Argument, Option

from nearkin.cli import options
from nearkin.cli._app import ENCODER, announcer, app, print_table, progress_console, say
from nearkin.errors import RecipeError


@app.command(rich_help_panel=ENCODER)
def train(
    arguments: Annotated[
        list[str] | None,
        Argument(
            metavar="[RECIPE] [KEY=VALUE]...",
            help="A recipe file or the name of one ('nearkin list recipes'), then changes to it, such as "
            "training.epochs=5. With --resume or --finish, the run's folder.",
        ),
    ] = None,
    data: options.Data = None,
    backbone: Annotated[
        str | None,
        Option(help="With --data: one of 'nearkin list backbones'. Default: the best whose weights can be had here."),
    ] = None,
    output: Annotated[Path | None, options.output("Run folder. Default: runs/<data>-<objective>-<hash>.")] = None,
    final: Annotated[
        Path | None,
        Option(
            metavar="RUN",
            help="Train on all classes, as this finished run up to its selected epoch: the model to use. Default "
            "folder: RUN-final.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        Option(
            "--resume",
            help="Continue an interrupted run, given by its folder or by the command that began it; or a finished one "
            "for longer, with training.epochs=N.",
        ),
    ] = False,
    finish: Annotated[bool, Option("--finish", help="End an interrupted run at its last checkpoint.")] = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace a run that the folder holds.")] = False,
    class_folders: options.ClassFolders = None,
    figure: Annotated[bool, Option("--figure/--no-figure", help="Draw nearest neighbours at the end.")] = True,
    data_root: options.DataRoot = None,
    device: options.Device = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Train an encoder and score it on classes it has never seen.

    [bold]nearkin train glyphs/demo[/bold]  the embedded benchmark, a minute or two on a laptop

    [bold]nearkin train --data PHOTOS -o runs/photos[/bold]  your photos, one folder per class

    [bold]nearkin train --final runs/photos[/bold]  the same on all classes, once the score is known: the model to use

    [bold]nearkin train cub/proxy_anchor encoder.weights=resnet50.safetensors[/bold]  a published recipe

    [bold]nearkin train runs/photos --resume training.epochs=40[/bold]  a run that was interrupted, or is to be longer

    [bold]nearkin train runs/photos --finish[/bold]  a run that was interrupted, ended where it is

    The run folder gets the resolved recipe, checkpoints, every evaluation as CSV, the final scores as JSON and a
    figure of nearest neighbours; that of a final model also a model card.
    """
    from nearkin.data.folder import suggest_path
    from nearkin.ranks import is_first
    from nearkin.report.figures.neighbours import draw_neighbours
    from nearkin.report.score_tables import run_table, verdict
    from nearkin.runs.folder import RunFolder, default_folder
    from nearkin.runs.run import final_folder, run, train_final
    from nearkin.training.observers import ConsoleObserver
    from nearkin.training.trackers import trackers

    progress, drawn = progress_console(verbose), None
    if final is not None:
        if arguments or data is not None or class_folders is not None or backbone is not None:
            raise RecipeError(f"--final takes recipe and data from {final}: leave out other recipes, changes and data")
        if finish:
            raise RecipeError("--finish ends an interrupted run, --final trains another: give one of them")
        recipe, folder = RunFolder.existing(final).recipe(), RunFolder(output or final_folder(final))
    else:
        if (resume or finish) and arguments and RunFolder(arguments[0]).is_begun:
            begun = RunFolder(arguments[0])
            arguments, output = [str(begun.recipe_file), *arguments[1:]], output or begun.path
        elif finish:
            near = suggest_path(Path(arguments[0])) if arguments else ": nearkin train RUN --finish"
            raise RecipeError(f"--finish needs the folder of an interrupted run{near}")
        given = {"data.root": data_root, "training.device": device, "data.class_folders": class_folders}
        recipe = options.recipe_from(arguments, data, given, backbone=backbone)
        folder = RunFolder(output or default_folder(recipe))
    with ConsoleObserver(progress) as bar:
        bar.others += trackers(recipe, folder.path)
        how: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "progress": bar.decoding}
        how["announce"] = announcer(progress, as_json=as_json)
        if final is not None:
            scores = train_final(final, bar, output=folder.path, data_root=data_root, device=device, **how)
        else:
            scores = run(recipe, folder, bar, finish=finish, **how)
            if figure and is_first():
                bar.doing("drawing neighbours")
                drawn = draw_neighbours(folder)
    if as_json:
        print(json.dumps({"run": str(folder.path), **scores}))
        return
    if scores.test is None and scores.final_of is None:
        say("No classes were kept for testing, so there is no score on unseen classes.")
        if scores.on_new_images is not None:
            say(scores.on_new_images)
    else:
        print_table(run_table(scores))
    advice = verdict(scores if scores.final_of is None else scores.final_of.scores, recipe, folder.path)
    if advice is not None:
        say(advice, style="yellow")
    files = f", model card: {folder.card_file}" if final else f", neighbours: {drawn}" if drawn else ""
    say(f"Run folder: {folder.path}{files}")
    say(f"Next: nearkin index {folder.path} FOLDER -o INDEX, then nearkin search INDEX IMAGE")
    say(f"      nearkin embed {folder.path} FOLDER -o embeddings.npz")
    if scores.test is not None and advice is None and scores.chosen.get("epoch"):
        say(f"      nearkin train --final {folder.path}  (on all classes, also those of the test: the model to use)")


@app.command(rich_help_panel=ENCODER)
def evaluate(
    arguments: Annotated[
        list[str] | None,
        Argument(
            metavar="[RUN] [KEY=VALUE]...",
            help="A run folder; or, with --backbone, changes such as data.image_size=160 or encoder.weights=FILE.",
        ),
    ] = None,
    data: Annotated[str | None, Option(help="Folder, manifest or benchmark instead of the run's test classes.")] = None,
    backbone: Annotated[str | None, Option(help="Score a backbone without training.")] = None,
    checkpoint: options.Checkpoint = "best",
    flip: options.Flip = None,
    eval_size: options.EvalSize = None,
    also: options.With = None,
    rerank: options.Rerank = None,
    class_folders: options.ClassFolders = None,
    data_root: options.DataRoot = None,
    device: options.Device = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Score a trained encoder again, on the run's test classes or on other data; or a backbone without any training.

    [bold]nearkin evaluate runs/photos --data OTHER[/bold]  a run on other images

    [bold]nearkin evaluate --backbone efficientnet_lite0 --data PHOTOS[/bold]  what training has to beat

    [bold]nearkin evaluate runs/a --with runs/b --flip[/bold]  two runs, concatenated, with mirror images

    A run is scored on the test images of its beginning, even if they have moved inside the data folder. Images and
    classes that were added since are left out; missing ones are counted.

    Data given with --data and without a test split is scored whole: every image is a query among all the others.

    The conditions below the scores name --flip, --eval-size, --with and --rerank. --rerank uses all test images at once
    (transductive), so its scores cannot be compared with scores without it.
    """
    from nearkin.evaluation.reranking import Rerank as Reranking
    from nearkin.report.score_tables import LEGEND, metric_table
    from nearkin.runs.evaluate import evaluate_backbone, evaluate_run
    from nearkin.training.observers import ConsoleObserver

    given = arguments or []
    if backbone is not None and (rerank is not None or also):
        raise RecipeError("--with and --rerank need a run: nearkin evaluate RUN, without --backbone")
    if backbone is None:
        if len(given) != 1:
            raise RecipeError(
                f"give one run folder, got {', '.join(given) or 'none'}: nearkin evaluate RUN, or for a backbone "
                f"without training nearkin evaluate --backbone NAME --data FOLDER"
            )
    elif data is None:
        raise RecipeError(f"no images to score {backbone} on: give --data FOLDER, a manifest or a benchmark")
    elif wrong := [text for text in given if "=" not in text]:
        raise RecipeError(f"give a run folder or --backbone {backbone}, not both: got {', '.join(wrong)}")
    progress = progress_console(verbose)
    how: dict[str, Any] = {"data_root": data_root, "class_folders": class_folders, "device": device}
    how["announce"] = announcer(progress, as_json=as_json)
    with ConsoleObserver(progress) as observer:
        how["progress"] = observer.decoding
        if backbone is None:
            how |= {"flip": flip, "eval_size": eval_size, "also": also or ()}
            reranking = None if rerank is None else Reranking(k1=rerank)
            result = evaluate_run(given[0], data=data, which=checkpoint, rerank=reranking, **how)
            what = f"{checkpoint} checkpoint of {given[0]}"
        else:
            changes = options.changes_from(given, {"protocol.flip": flip, "protocol.eval_size": eval_size})
            result = evaluate_backbone(backbone, str(data), overrides=changes, watch=observer.on_scoring, **how)
            what = f"{backbone} without training and without a head; weights: {result.weights}"
    if as_json:
        print(json.dumps(dict(result)))
        return
    counted = f"{result.images:,} images of {result.classes:,} classes"
    conditions = "; ".join(part for part in (what, counted, result.conditions, result.hardware) if part) + "."
    print_table(metric_table(result.data, {"score": result.scores}, conditions, f"{LEGEND}."))
    if result.note:
        say(f"Note: {result.note}.", style="yellow")


@app.command(rich_help_panel=ENCODER)
def embed(
    run: options.OneRun,
    sources: Annotated[list[Path], Argument(metavar="IMAGES...", help="Image files, folders or manifests.")],
    output: Annotated[Path, options.output("File to write: .npz or .csv.")],
    checkpoint: options.Checkpoint = "best",
    flip: options.Flip = None,
    eval_size: options.EvalSize = None,
    device: options.Device = None,
    verbose: options.Verbose = False,
) -> None:
    """Embed images.

    [bold]nearkin embed runs/photos PHOTOS -o embeddings.npz[/bold]  every image of a folder

    [bold]nearkin embed runs/photos new.jpg list.csv -o embeddings.csv[/bold]  one image, and those of a manifest

    The .npz holds 'embeddings' (float32, one row per image), 'ids' (paths below the folder), 'paths' (absolute) and
    'labels' (the class folder, or the manifest's label, or nothing); the .csv has id, path and label in its first
    columns. Unreadable images are left out and named.
    """
    from nearkin.report.data_report import left_out_text
    from nearkin.runs.trained_run import embed_files
    from nearkin.training.observers import ConsoleObserver

    with ConsoleObserver(progress_console(verbose)) as observer:
        result = embed_files(
            run,
            sources,
            output,
            which=checkpoint,
            device=device,
            flip=flip,
            eval_size=eval_size,
            progress=observer.decoding,
        )
    if left_out := left_out_text(result.left_out, [str(problem) for problem in result.unreadable]):
        Console(stderr=True).print(left_out, end="", highlight=False, soft_wrap=True)
    say(f"{len(result.ids):,} images embedded in {result.dim} dimensions: {output}")


@app.command(rich_help_panel=ENCODER)
def export(
    run: options.OneRun,
    format_: Annotated[
        Literal["onnx", "safetensors"],
        Option("--format", help="onnx runs without torch; safetensors is weights, for nearkin to load."),
    ] = "onnx",
    output: Annotated[Path | None, options.output("File to write. Default: RUN.onnx or RUN.safetensors here.")] = None,
    images: Annotated[Path | None, Option(help="Image or folder to check it on. Default: some of the run's.")] = None,
    checkpoint: options.Checkpoint = "best",
    data_root: options.DataRoot = None,
    as_json: options.Json = False,
) -> None:
    """Write the encoder of a run to one file: raw pixels of any size in, embeddings out.

    [bold]nearkin export runs/photos -o photos.onnx[/bold]  for onnxruntime, without torch

    Resizing, crop and normalisation are inside. The file is checked on real images before it gets its name, and a
    model card is written next to it.
    """
    from nearkin.data.folder import list_images
    from nearkin.runs.export import export as write

    given = list_images(images) if images is not None and images.is_dir() else images
    made = write(run, format_, output, which=checkpoint, images=given, data_root=data_root)
    if as_json:
        print(json.dumps(dataclasses.asdict(made), default=str))
        return
    size, check = made.file.stat().st_size / 1e6, made.check
    say(f"{made.file}: {made.settings.dim} dimensions, {size:.1f} MB, model card: {made.card}")
    say(
        f"Checked on {check.images}: at most {check.to_torch:.0e} from torch. Where the file resizes instead of "
        f"Pillow, pixels {check.to_pillow:.2f} of 256 levels apart and embeddings {check.distance:.3f}"
    )
