"""The command that writes a run's encoder to one file for use elsewhere."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from nearkin.cli._app import ENCODER, Checkpoint, DataRoot, Json, app

__all__ = ["export"]


@app.command(rich_help_panel=ENCODER)
def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    format_: Annotated[
        Literal["onnx", "safetensors"],
        typer.Option("--format", help="onnx runs without torch; safetensors is weights, for nearkin to load."),
    ] = "onnx",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write. Default: RUN.onnx or RUN.safetensors here.")
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option("--images", help="Image or folder to check the file on. Default: some of the run's own."),
    ] = None,
    checkpoint: Checkpoint = "best",
    data_root: DataRoot = None,
    as_json: Json = False,
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
    console = Console(highlight=False, soft_wrap=True)
    size, check = made.file.stat().st_size / 1e6, made.check
    console.print(f"{made.file}: {made.settings.dim} dimensions, {size:.1f} MB, model card: {made.card}")
    console.print(
        f"Checked on {check.images}: at most {check.to_torch:.0e} from torch. Where the file resizes instead of "
        f"Pillow, pixels {check.to_pillow:.2f} of 256 levels apart and embeddings {check.distance:.3f}"
    )
