"""A trained run put to use on data: scores and embeddings."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.data.folder import list_images
from nearkin.data.images import UnreadableImageError
from nearkin.data.table import ImageTable
from nearkin.device import describe_hardware
from nearkin.errors import DataError, RecipeError
from nearkin.evaluation.protocol import EvaluationSet, Protocol
from nearkin.run import load_run, open_data
from nearkin.run_folder import write_atomically

Progress = Callable[[int, int], None]


def evaluate_run(
    path: str | Path,
    *,
    data: str | None = None,
    data_root: str | Path | None = None,
    which: str = "best",
    device: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Scores of a run's encoder on its own test classes, or on ``data``."""
    run = load_run(path, which=which, device=device)
    section = run.recipe.data
    if data is not None:
        section = replace(section, source=data)
    if data_root is not None:
        section = replace(section, root=str(data_root))
    opened = open_data(section, progress=progress)
    table = opened.table
    part = None
    if data is not None and not any(table.has_split(name) for name in ("test", "query")):
        protocol = Protocol(replace(run.recipe.protocol, test_share=0.0), table)
        part = EvaluationSet(np.arange(len(table), dtype=np.int64))
    else:
        protocol = Protocol(run.recipe.protocol, table)
        part = protocol.test
    if part is None:
        raise DataError(f"{table.name!r} has no test classes: give others with --data")
    embed = partial(run.embed, opened.images)
    scores = protocol.score(part, embed, distance=run.encoder.distance, final=True)
    rows = part.query
    return {
        "run": str(path),
        "checkpoint": which,
        "data": table.name,
        "images": len(rows),
        "classes": len(np.unique(table.labels[rows])),
        "hardware": describe_hardware(run.device),
        "scores": scores,
    }


@dataclass(frozen=True)
class EmbeddedFolder:
    """What :func:`embed_folder` wrote."""

    ids: tuple[str, ...]
    dim: int
    unreadable: tuple[UnreadableImageError, ...]


def embed_folder(
    path: str | Path,
    folder: str | Path,
    output: str | Path,
    *,
    which: str = "best",
    device: str | None = None,
    progress: Progress | None = None,
) -> EmbeddedFolder:
    """Embed every readable image below ``folder`` and write ``output`` (.npz or .csv)."""
    target = Path(output)
    if target.suffix not in (".npz", ".csv"):
        raise RecipeError(f"the output file must end in .npz or .csv, got {str(output)!r}")
    if not target.parent.is_dir():
        raise RecipeError(f"there is no folder {str(target.parent)!r} to write {target.name} to")
    run = load_run(path, which=which, device=device)
    files = list_images(folder)
    ids = [file.relative_to(folder).as_posix() for file in files]
    table = ImageTable.build(Path(folder).name, files, ["?"] * len(files), splits=["test"] * len(files), ids=ids)
    opened = open_data(replace(run.recipe.data, unreadable_tolerance=1.0), table=table, progress=progress)
    if not len(opened.table):
        raise DataError(
            f"none of the {len(files)} images below {str(folder)!r} can be read; the first: {opened.unreadable[0]}"
        )
    embeddings = run.embed(opened.images).cpu().numpy()
    write_atomically(
        target, _npz(opened.table.ids, embeddings) if target.suffix == ".npz" else _csv(opened.table.ids, embeddings)
    )
    return EmbeddedFolder(opened.table.ids, run.encoder.dim, tuple(opened.unreadable))


def _npz(ids: tuple[str, ...], embeddings: NDArray[np.float32]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, embeddings=embeddings, ids=np.array(ids, dtype=np.str_))
    return buffer.getvalue()


def _csv(ids: tuple[str, ...], embeddings: NDArray[np.float32]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["id", *(f"e{i}" for i in range(embeddings.shape[1]))])
    for name, row in zip(ids, embeddings.tolist(), strict=True):
        writer.writerow([name, *(f"{value:.8g}" for value in row)])
    return text.getvalue().encode()
