"""The command that writes a run's encoder to one file for use elsewhere."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from nearkin.cli._app import ENCODER, Checkpoint, DataRoot, Json, Verbose, app, progress_console

__all__ = ["export"]


@app.command(rich_help_panel=ENCODER)
def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    format_: Annotated[
        Literal["onnx", "torch-export", "safetensors"],
        typer.Option("--format", help="onnx runs without torch; torch-export without nearkin; safetensors is weights."),
    ] = "onnx",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write. Default: RUN.onnx, .pt2 or .safetensors here.")
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Eight bits (onnx); says what that costs in R@1.")] = False,
    images: Annotated[
        Path | None,
        typer.Option("--images", help="Image or folder to check the file on. Default: some of the run's own."),
    ] = None,
    checkpoint: Checkpoint = "best",
    data_root: DataRoot = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Write the encoder of a run to one file: raw pixels of any size in, embeddings out.

    [bold]nearkin export runs/photos -o photos.onnx[/bold]  for onnxruntime, without torch

    [bold]nearkin export runs/photos --int8 -o photos.onnx[/bold]  smaller, and its loss of R@1

    Resizing, crop and normalisation are inside. The file is checked on real images before it gets its name, and a
    model card goes beside it.
    """
    from nearkin.data.folder import list_images
    from nearkin.exports.export import export as write
    from nearkin.training.observers import ConsoleObserver

    given = list_images(images) if images is not None and images.is_dir() else images
    with ConsoleObserver(progress_console(verbose)) as observer:
        made = write(
            run,
            format_,
            output,
            int8=int8,
            which=checkpoint,
            images=given,
            data_root=data_root,
            progress=observer.decoding,
        )
    if as_json:
        print(json.dumps(dataclasses.asdict(made), default=str))
        return
    console = Console(highlight=False, soft_wrap=True)
    size, check = made.file.stat().st_size / 1e6, made.check
    console.print(f"{made.file}: {made.settings.dim} dimensions, {size:.1f} MB, model card: {made.card}")
    console.print(
        f"Checked on {check.images}: at most {check.to_torch:.0e} from torch; where the file resizes and not Pillow, "
        f"pixels {check.to_pillow:.2f} of 256 levels apart and embeddings {check.distance:.3f}"
    )
    if made.int8 is not None:
        lost = "R@1 not measured"
        if made.int8.recall is not None and made.int8.float_recall is not None:
            lost = f"R@1 {100 * made.int8.recall:.2f}, {100 * made.int8.float_recall:.2f} in float32"
        console.print(f"int8: cosine to float32 {made.int8.cosine:.4f}, {lost}")
