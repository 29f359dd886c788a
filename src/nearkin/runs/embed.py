"""Images in files, folders and manifests embedded with a trained run, and written to one file."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearkin import ranks
from nearkin.data.file_names import printable
from nearkin.data.images import UnreadableImageError
from nearkin.data.source import collect_images
from nearkin.data.table import ImageTable, LeftOut
from nearkin.disk import check_room, check_writable, write_atomically
from nearkin.errors import RecipeError
from nearkin.runs.data import Progress, open_data
from nearkin.runs.trained_run import load_run
from nearkin.training.build import data_of

_BYTES_PER_NUMBER = {".npz": 4, ".csv": 13}


@dataclass(frozen=True)
class EmbeddedFiles:
    """What :func:`embed_files` has written, and what it could not read."""

    ids: tuple[str, ...]
    dim: int
    unreadable: tuple[UnreadableImageError, ...]
    left_out: tuple[LeftOut, ...]


def embed_files(
    path: str | Path,
    sources: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    which: str = "best",
    device: str | None = None,
    flip: bool | None = None,
    eval_size: int | None = None,
    progress: Progress | None = None,
) -> EmbeddedFiles:
    """Embed every readable image of ``sources`` with the run at ``path`` and write ``output`` (.npz or .csv).

    The .npz holds ``embeddings`` (float32 ``[N, dim]``) and as text ``ids``, ``paths`` (absolute) and ``labels``: the
    name of the class folder or the label in a manifest, and ``""`` where there is neither. The .csv has the same
    columns: id, path, label, then the embedding. An id is the path below the folder where one folder is given, the id
    in a manifest, or else the path as given.

    Args:
        path: a run folder.
        sources: image files, folders with or without class folders, manifests with or without labels; one or several.
        output: the file to write; whether that is possible is checked first.
        which: ``best`` or ``last`` checkpoint.
        device: as for training.
        flip: whether an embedding is averaged with the mirror image's; default: as the run was scored.
        eval_size: side of the crops; default: as the run was scored.
        progress: called while images are decoded.
    """
    target = Path(output).expanduser()
    with ranks.joined():
        ranks.from_first(lambda: check_output(target))
        run = load_run(path, which=which, device=device, flip=flip, eval_size=eval_size)
        table = collect_images(sources, class_folders=run.recipe.data.class_folders)
        section = replace(data_of(run.recipe), unreadable_tolerance=1.0)
        opened = ranks.first_on_each_machine(lambda: open_data(section, table=table, progress=progress))
        needed = len(opened.table) * run.encoder.dim * _BYTES_PER_NUMBER[target.suffix]
        ranks.from_first(lambda: check_room(target.parent, needed, target.name))
        rows = np.arange(len(opened.table), dtype=np.int64)
        embeddings = run.embed_together(opened.images, rows).cpu().numpy()
        if ranks.is_first():
            write_atomically(target, (_npz if target.suffix == ".npz" else _csv)(opened.table, embeddings))
        return EmbeddedFiles(opened.table.ids, run.encoder.dim, tuple(opened.unreadable), table.left_out)


def check_output(target: Path) -> None:
    """Refuse, before any work, a ``target`` that cannot be written."""
    if target.suffix not in _BYTES_PER_NUMBER:
        raise RecipeError(f"the output file must end in .npz or .csv, got {str(target)!r}")
    if not target.parent.is_dir():
        what = "is not a folder" if target.parent.exists() else "does not exist"
        raise RecipeError(f"cannot write {target.name}: the folder {str(target.parent)!r} {what}; make it first")
    if target.is_dir():
        raise RecipeError(f"cannot write {str(target)!r}: it is a folder; give a file name in it")
    check_writable(target.parent)


def _columns(table: ImageTable) -> tuple[tuple[str, ...], list[str], list[str]]:
    paths = [os.path.abspath(image) for image in table.images]
    return table.ids, paths, [table.class_names[label] for label in table.labels.tolist()]


def _npz(table: ImageTable, embeddings: NDArray[np.float32]) -> bytes:
    ids, paths, labels = (np.array(column, dtype=np.str_) for column in _columns(table))
    buffer = io.BytesIO()
    np.savez(buffer, embeddings=embeddings, ids=ids, paths=paths, labels=labels)
    return buffer.getvalue()


def _csv(table: ImageTable, embeddings: NDArray[np.float32]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["id", "path", "label", *(f"e{i}" for i in range(embeddings.shape[1]))])
    for name, path, label, row in zip(*_columns(table), embeddings.tolist(), strict=True):
        writer.writerow([name, printable(path), label, *(f"{value:.8g}" for value in row)])
    return text.getvalue().encode()
