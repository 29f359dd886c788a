"""Vectors of an index written again in one commit: by another encoder (upgrade), or without removed items (compact).

The new vectors go to a subfolder of the index. Which folder counts is a fact in the table of items, as the encoder is,
so at any moment the index is either all old or all new. Ids, labels, columns and thumbnails stay in the table. An
interrupted upgrade resumes where it stopped.

An item's id is the row of its vector, and stays. So a compaction writes zeros for removed items; where a long run of
them was removed nothing is written, and the file has a hole that takes no room on the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearkin.data.cache import threaded_map, usable_cores
from nearkin.data.images import UnreadableImageError, decode_bytes, read_file
from nearkin.disk import check_room, make_folder, sole_writer_of, write_atomically, writing
from nearkin.errors import DataError, NearkinError, OutputError, RecipeError, notice
from nearkin.index.adding import Progress, check_vectors, hash_of
from nearkin.index.calibration import calibration_facts
from nearkin.index.engine import ENGINES, new_identity
from nearkin.index.index import Index, encoder_facts
from nearkin.index.items import NAME, Items, vectors_folder
from nearkin.index.segments import Segments
from nearkin.runs.model import Model

BLOCK = 1024
"""Rows that a compaction writes together, or leaves out together where all of them were removed."""
_UPGRADED, _COMPACTED = "upgrade-", "compact-"
_PROGRESS = "progress.json"


@dataclass(frozen=True)
class Upgraded:
    """The result of an upgrade."""

    items: int
    dropped: tuple[tuple[int, str], ...]
    """Items that were removed because their file is gone or has changed, and the reason."""
    old: Path | None
    """Where the old index was kept."""


@dataclass(frozen=True)
class Compacted:
    """The result of a compaction."""

    items: int
    removed: int
    """Rows without an item, whose vectors were deleted."""
    before: int
    """Bytes that items, vectors and engine took on the disk."""
    after: int


def upgrade(
    folder: str | Path,
    model: Model,
    *,
    drop_missing: bool = False,
    keep_old: bool = False,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> Upgraded:
    """Embed every image of the index in ``folder`` with ``model``, which is its encoder from then on.

    Images are read from their files again, which must have the content they had. Searches use the old vectors
    meanwhile; a process that has the index open then has to open it again.

    Args:
        folder: an index.
        model: the new encoder.
        drop_missing: remove items whose file is gone or has changed; without it they are an error.
        keep_old: keep a copy of the old index in ``FOLDER.old``.
        batch_size: images that are embedded together; an interrupted upgrade resumes after the last batch.
        progress: called with the numbers of images done and in all.
    """
    with _sole_writer(folder) as index:
        items, path = index._items, index.path
        kept = path.with_name(f"{path.name}.old") if keep_old else None
        if kept is not None and kept.exists():
            raise RecipeError(f"{kept} is there already: move it away, or upgrade without keeping the old index")
        if items.fact("encoder") == model.identity:
            raise RecipeError(f"{path} is of this encoder already: there is nothing to upgrade")
        old = vectors_folder(path, items)
        new = path / f"{_UPGRADED}{hash_of(model.identity.encode()).hex()[:16]}"
        _remove_leftovers(path, keep=(old, new))
        ids, rows = items.ids(), int(items.fact("rows"))
        if not drop_missing:
            _refuse(path, _without_file(items, ids))
        vectors = Segments(new / "vectors", model.dim, np.float32)
        check_room(path, 2 * (rows - vectors.available()) * model.dim * 4, "the new vectors")
        missing = _embed(path, items, vectors, model, rows, drop_missing, batch_size, progress)
        vectors.show(rows)
        labelled, labels = items.labels()
        stays = np.isin(labelled, list(missing), invert=True)
        calibration = calibration_facts(labelled[stays], labels[stays], vectors, model)
        if kept is not None:
            _keep(items, old, kept)
        with items.writing():
            items.delete(list(missing))
            # A server keeps rows under the index's identity: a new one keeps old vectors from being taken for new.
            facts = {"identity": new_identity(), "vectors": new.name, "calibration": calibration}
            for key, value in (encoder_facts(model) | facts).items():
                items.set_fact(key, value)
        if kept is None:
            try:
                index._engine.discard()
            except NearkinError as error:
                notice(f"what the engine of {path} held of the old vectors could not be deleted ({error})")
        _remove_vectors(path, old)
    _build_engine(path, model)
    return Upgraded(len(ids) - len(missing), tuple(missing.items()), kept)


@contextlib.contextmanager
def _sole_writer(folder: str | Path) -> Iterator[Index]:
    """The index in ``folder``, opened when no other process writes to it."""
    Index.open(folder).close()  # an error where there is none
    path = Path(folder).expanduser()
    with sole_writer_of(path), contextlib.closing(Index.open(path)) as index:
        yield index


def _build_engine(folder: Path, model: Model) -> None:
    """Build the engine of the new vectors; where its server cannot be reached the index is searched exactly."""
    index = Index.open(folder, model)
    name = index._items.fact("engine")
    try:
        index.rebuild_engine()
    except DataError as error:
        if name in ENGINES:
            raise
        with sole_writer_of(folder), index._items.writing():
            index._items.set_fact("engine", "exact")
        index.rebuild_engine()
        notice(
            f"{folder} is upgraded, and is searched by an exact scan for now. To search by its engine again give the "
            f"address, with the password where it has one: nearkin index {model.path} FOLDER -o {folder} --engine "
            f"{name}, or Index.open({str(folder)!r}).use_engine({name!r}). It could not be built now: {error}"
        )
    finally:
        index.close()


def _embed(
    folder: Path,
    items: Items,
    vectors: Segments,
    model: Model,
    rows: int,
    drop_missing: bool,
    batch_size: int,
    progress: Progress | None,
) -> dict[int, str]:
    """Write the vectors of all rows, zeros where there is no item; returns the items without a vector, and why."""

    def read(item: tuple[int, tuple[bytes, list[str]]]) -> tuple[int, NDArray[np.uint8] | str]:
        id, (digest, paths) = item
        reason = "it was given as pixels, not as a file"
        for path in map(Path, paths):
            try:
                content = read_file(path)
                if hash_of(content) == digest:
                    return id, decode_bytes(content, path=path, shorter_side=model.shorter_side)
                reason = f"{path} has changed"
            except UnreadableImageError as error:
                reason = str(error)
        return id, reason

    file = vectors.folder.parent / _PROGRESS
    make_folder(file.parent)
    first, missing = 0, dict[int, str]()
    if file.is_file():
        state = json.loads(file.read_bytes())
        first, missing = state["rows"], {int(id): reason for id, reason in state["missing"]}
    first = min(first, vectors.available())
    if missing and not drop_missing:  # perhaps they are there again
        first, missing = min(first, *missing), {}
    while first < rows:
        last = min(first + batch_size, rows)
        images = dict(threaded_map(read, sorted(items.contents(range(first, last)).items()), usable_cores()))
        gone = {id: reason for id, reason in images.items() if isinstance(reason, str)}
        if not drop_missing:
            _refuse(folder, gone)
        missing |= gone
        block = np.zeros((last - first, model.dim), dtype=np.float32)
        if pixels := {id: image for id, image in images.items() if not isinstance(image, str)}:
            embedded = model.embed(list(pixels.values()), batch_size)
            check_vectors(embedded, model.dim)
            block[np.array(list(pixels)) - first] = embedded
        vectors.append(first, block)
        # Rows behind those recorded here are overwritten when an interrupted upgrade resumes.
        write_atomically(file, json.dumps({"rows": last, "missing": list(missing.items())}).encode())
        first = last
        if progress is not None:
            progress(first, rows)
    present = set(items.ids().tolist())
    return {id: reason for id, reason in missing.items() if id in present}


def _without_file(items: Items, ids: NDArray[np.int64]) -> dict[int, str]:
    """Items none of whose files exists, before any work; changed files show when they are read."""
    gone: dict[int, str] = {}
    for start in range(0, len(ids), 10_000):
        for id, (_, paths) in items.contents(ids[start : start + 10_000].tolist()).items():
            if not any(map(os.path.isfile, paths)):
                gone[id] = f"{paths[0]}: no such file" if paths else "it was given as pixels, not as a file"
    return gone


def _refuse(folder: Path, missing: Mapping[int, str]) -> None:
    if missing:
        first = "; ".join(f"item {id}: {reason}" for id, reason in list(missing.items())[:3])
        raise DataError(
            f"{len(missing):,} images of {folder} cannot be embedded again ({first}): put the files back, or remove "
            f"these items with --drop-missing (drop_missing=True)"
        )


def _keep(items: Items, old: Path, kept: Path) -> None:
    """Copy the old index to a folder that is there whole or not at all."""
    partial = kept.with_name(f".{kept.name}.new")
    with writing(kept):
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(old / "vectors", partial / "vectors") if (old / "vectors").is_dir() else partial.mkdir()
        items.copy_to(partial / NAME)
        copy = Items.open(partial / NAME)
        with copy.writing():
            copy.set_fact("vectors", None)
        copy.close()
        os.replace(partial, kept)


def compact(folder: str | Path, *, progress: Progress | None = None) -> Compacted:
    """Delete the vectors of removed items from the disk; ids, labels and everything else of the others stay.

    A process that has the index open then has to open it again. If this is killed, the index is either as it was or
    compacted; the same call again deletes what was left over, also what an interrupted upgrade had embedded.
    """
    with _sole_writer(folder) as index:
        items, path = index._items, index.path
        old = vectors_folder(path, items)
        before = _bytes_on_disk(path, old)
        _remove_leftovers(path, keep=(old,))
        ids, rows = items.ids(), int(items.fact("rows"))
        if len(ids) < rows:
            check_room(path, len(ids) * index.dim * 5, "the vectors that stay")
            new = path / f"{_COMPACTED}{new_identity()}"
            _copy(Segments(old / "vectors", index.dim, np.float32), new, ids, rows, progress)
            with items.writing():
                items.set_fact("vectors", new.name)
            _remove_vectors(path, old)
            try:
                items.rows("VACUUM")  # frees the pages of removed thumbnails
            except sqlite3.OperationalError as error:
                raise OutputError(
                    f"the removed vectors of {path} are deleted, their thumbnails are not ({error}): make room for "
                    f"another copy of {NAME}, and compact again"
                ) from error
        engine, vectors = items.fact("engine"), vectors_folder(path, items)
    if engine in ENGINES:  # a server has deleted removed rows already
        with contextlib.closing(Index.open(path)) as index:
            index.rebuild_engine()
    return Compacted(len(ids), rows - len(ids), before, _bytes_on_disk(path, vectors))


def _copy(old: Segments, folder: Path, ids: NDArray[np.int64], rows: int, progress: Progress | None) -> None:
    old.show(rows)
    new = Segments(folder / "vectors", old.width, old.dtype, rows_per_segment=old.rows_per_segment)
    stays = np.zeros(rows, dtype=bool)
    stays[ids] = True
    for first in range(0, rows, BLOCK):
        last = min(first + BLOCK, rows)
        ends_file = last == rows or last % old.rows_per_segment == 0
        if stays[first:last].any() or ends_file:  # a file must have its whole length
            block = old.take(np.arange(first, last))
            block[~stays[first:last]] = 0
            new.append(first, block)
        if progress is not None:
            progress(last, rows)


def _remove_leftovers(folder: Path, keep: Sequence[Path]) -> None:
    """Delete the vectors of abandoned and killed upgrades and compactions."""
    for left in (*folder.glob(f"{_UPGRADED}*"), *folder.glob(f"{_COMPACTED}*")):
        if left not in keep:
            shutil.rmtree(left, ignore_errors=True)
    if folder not in keep:
        _remove_vectors(folder, folder)


def _remove_vectors(folder: Path, old: Path) -> None:
    """Delete vectors that the index no longer uses, and their engine's files."""
    for left in (folder / "vectors", folder / "engine") if old == folder else (old,):
        shutil.rmtree(left, ignore_errors=True)


def _bytes_on_disk(index: Path, vectors: Path) -> int:
    """Bytes that items, vectors and the engine take, without the holes in files."""
    files = [*index.glob(f"{NAME}*"), *(vectors / "vectors").rglob("*"), *(vectors / "engine").rglob("*")]
    stats = [path.stat() for path in files if path.is_file()]
    return sum(getattr(stat, "st_blocks", -(-stat.st_size // 512)) * 512 for stat in stats)
