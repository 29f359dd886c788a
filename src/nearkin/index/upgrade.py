"""Another encoder for an index: all images are embedded again, then one commit replaces the vectors.

The new vectors go to a subfolder of the index. The table of items says which folder and which encoder count, so at any
moment the index is either all old or all new. An item's id is the row of its vector.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.data.cache import threaded_map, usable_cores
from nearkin.data.images import UnreadableImageError, decode_bytes, read_file
from nearkin.disk import check_room, make_folder, sole_writer_of, write_atomically
from nearkin.errors import DataError, NearkinError, RecipeError, notice
from nearkin.index.adding import Progress, check_vectors, hash_of
from nearkin.index.calibration import calibration_facts
from nearkin.index.engine import new_identity
from nearkin.index.index import Index, encoder_facts
from nearkin.index.items import vectors_folder
from nearkin.index.segments import Segments
from nearkin.runs.model import Model

_UPGRADED = "upgrade-"
_PROGRESS = "progress.json"
_NO_FILE = "uploaded or given as pixels, so there is no file to read again"


@dataclass(frozen=True)
class Upgraded:
    """The result of an upgrade."""

    items: int
    dropped: tuple[tuple[int, str], ...]
    """Items removed because their file is gone or has changed, and the reasons."""


def upgrade(
    folder: str | Path,
    model: Model,
    *,
    drop_missing: bool = False,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> Upgraded:
    """Embed every image of the index in ``folder`` again with ``model``, which becomes its encoder.

    Images are read from their files. If a file is gone or has changed, ``drop_missing`` removes its item; otherwise it
    is an error. Searches use the old vectors meanwhile, and other processes must open the index again afterwards. An
    interrupted upgrade resumes after the last batch. ``progress`` is called with the numbers of rows done and in all.
    """
    with contextlib.closing(Index.open(folder)) as index, sole_writer_of(index.path):
        index._refresh()  # an error if another process has just upgraded it
        items, path = index._items, index.path
        if items.fact("encoder") == model.identity:
            raise RecipeError(f"{path} is of this encoder already: there is nothing to upgrade")
        old = vectors_folder(path, items)
        new = path / f"{_UPGRADED}{hash_of(model.identity.encode()).hex()[:16]}"
        for left in (path, *path.glob(f"{_UPGRADED}*")):  # from abandoned and killed upgrades
            if left not in (old, new):
                _remove_vectors(path, left)
        ids, rows = items.ids(), int(items.fact("rows"))
        if not drop_missing:  # before any work; changed files are only noticed when they are read
            contents = items.contents(ids).items()
            gone = {id: paths for id, (_, paths) in contents if not any(map(os.path.isfile, paths))}
            reasons = {id: f"{paths[0]}: no such file" if paths else _NO_FILE for id, paths in gone.items()}
            _refuse(path, model, reasons)
        vectors = Segments(new / "vectors", model.dim, np.float32)
        check_room(path, 2 * (rows - vectors.available()) * model.dim * 4, "the new vectors")
        missing = _embed(index, vectors, model, drop_missing, batch_size, progress)
        vectors.show(rows)
        calibration = calibration_facts(items, vectors, model, without=missing)
        with items.writing():
            items.delete(list(missing))
            # A server stores rows under the index's identity: with a new one, old vectors are never taken for new ones.
            facts = {"identity": new_identity(), "vectors": new.name, "calibration": calibration}
            for key, value in (encoder_facts(model) | facts).items():
                items.set_fact(key, value)
        try:
            index._engine.discard()
        except NearkinError as error:
            notice(f"the old vectors in the engine of {path} could not be deleted ({error})")
        _remove_vectors(path, old)
    with contextlib.closing(Index.open(path, model)) as index:
        try:
            with index._writing():  # which brings the engine up to date
                pass
        except DataError as error:
            raise type(error)(f"{path} is upgraded, but its engine could not be built: {error}") from error
    return Upgraded(len(ids) - len(missing), tuple(missing.items()))


def _embed(
    index: Index, vectors: Segments, model: Model, drop_missing: bool, batch_size: int, progress: Progress | None
) -> dict[int, str]:
    """Write the vectors of all rows, zeros without an item; returns the items without a vector and the reasons."""

    def read(item: tuple[int, tuple[bytes, list[str]]]) -> tuple[int, NDArray[np.uint8] | str]:
        id, (digest, paths) = item
        reason = _NO_FILE
        for path in map(Path, paths):
            try:
                content = read_file(path)
                if hash_of(content) == digest:
                    return id, decode_bytes(content, path=path, shorter_side=model.shorter_side)
                reason = f"{path} has changed"
            except UnreadableImageError as error:
                reason = str(error)
        return id, reason

    items, file = index._items, vectors.folder.parent / _PROGRESS
    rows = int(items.fact("rows"))
    make_folder(file.parent)
    state: dict[str, Any] = json.loads(file.read_bytes()) if file.is_file() else {"rows": 0, "missing": []}
    first, missing = min(state["rows"], vectors.available()), dict[int, str](state["missing"])
    if missing and not drop_missing:  # their files may be back
        first, missing = min(first, *missing), {}
    while first < rows:
        last = min(first + batch_size, rows)
        images = dict(threaded_map(read, sorted(items.contents(range(first, last)).items()), usable_cores()))
        gone = {id: reason for id, reason in images.items() if isinstance(reason, str)}
        if not drop_missing:
            _refuse(index.path, model, gone)
        missing |= gone
        block = np.zeros((last - first, model.dim), dtype=np.float32)
        if pixels := {id: image for id, image in images.items() if not isinstance(image, str)}:
            embedded = model.embed(list(pixels.values()), batch_size)
            check_vectors(embedded, model.dim)
            block[np.array(list(pixels)) - first] = embedded
        vectors.append(first, block)
        # If the upgrade is interrupted, it resumes here and overwrites any rows behind.
        write_atomically(file, json.dumps({"rows": last, "missing": list(missing.items())}).encode())
        first = last
        if progress is not None:
            progress(first, rows)
    present = set(items.ids().tolist())
    return {id: reason for id, reason in missing.items() if id in present}


def _refuse(folder: Path, model: Model, missing: Mapping[int, str]) -> None:
    if missing:
        first = "; ".join(f"item {id}: {reason}" for id, reason in list(missing.items())[:3])
        remedy = "" if set(missing.values()) == {_NO_FILE} else "put the files back, or "
        command = f"nearkin index upgrade {shlex.quote(str(folder))} {shlex.quote(str(model.path))} --drop-missing"
        raise DataError(
            f"{len(missing):,} images of {folder} cannot be embedded again ({first}): {remedy}remove these items with "
            f"{command} (drop_missing=True)"
        )


def _remove_vectors(folder: Path, old: Path) -> None:
    """Delete unused vectors, and their engine's files."""
    for left in (folder / "vectors", folder / "engine") if old == folder else (old,):
        shutil.rmtree(left, ignore_errors=True)
