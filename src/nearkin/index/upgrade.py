"""Another encoder for an index: its images embedded again beside the old vectors, and taken over in one commit.

The new vectors lie in a folder of their own in the index; which folder counts is a fact in the table of items, as the
encoder is. So at any moment it is either all of the old or all of the new. Ids, labels, columns and thumbnails are in
that table and stay. An upgrade that was interrupted goes on where it was.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearkin.data.images import UnreadableImageError, decode_bytes, read_file
from nearkin.data.threads import threaded_map, usable_cores
from nearkin.disk import check_room, make_folder, write_atomically, writing
from nearkin.errors import DataError, NearkinError, RecipeError, notice
from nearkin.index.adding import Progress, check_vectors, hash_of
from nearkin.index.confidence import fitted_curve
from nearkin.index.engine import ENGINES, Distance, new_identity
from nearkin.index.exact import ExactEngine
from nearkin.index.index import Index
from nearkin.index.items import NAME, Items, vectors_folder
from nearkin.index.queries import nearest_of, unit_rows
from nearkin.index.segments import Segments
from nearkin.runs.lock import sole_writer_of
from nearkin.runs.model import Model

NEIGHBOURS = 10
MOST_COMPARED = 1_000
"""Images whose neighbours before and after are compared, drawn by chance."""
_PREFIX, COMPACTED = "upgrade-", "compact-"
"""What folders of vectors begin with that upgrades and compactions made."""
_PROGRESS = "progress.json"


@dataclass(frozen=True)
class Upgraded:
    """How the new vectors of an index compare with the old ones."""

    items: int
    dropped: tuple[tuple[int, str], ...]
    """Items that went, as their file is gone or has changed, and why."""
    compared: int
    """Images that the next figures are of."""
    overlap: float | None
    """Share of an image's ten nearest that are the same before and after."""
    accuracy_before: float | None
    """Share of labelled images that have the label most of their ten nearest have, without the image itself."""
    accuracy: float | None
    old: Path | None
    """Where the index as it was has been kept."""


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

    Images are read from their files again, by path, and must have the content they had. Searches go on with the old
    vectors meanwhile; whoever has the index open then is told to open it again.

    Args:
        folder: an index.
        model: the new encoder.
        drop_missing: let go of items whose file is gone or has changed; without it they are an error.
        keep_old: leave the index as it was beside it, as ``FOLDER.old``.
        batch_size: images that are embedded together; after each batch an interrupted upgrade can go on.
        progress: told how many images are done, and of how many.
    """
    index = Index.open(folder)
    kept = index.path.with_name(f"{index.path.name}.old") if keep_old else None
    if kept is not None and kept.exists():
        raise RecipeError(f"{kept} is there already: move it away, or upgrade without keeping the old index")
    with sole_writer_of(index.path):
        items = Items.open(index.path / NAME)
        try:
            done = _upgrade(index, items, model, drop_missing, kept, batch_size, progress)
        finally:
            items.close()
            index.close()
    _build_engine(index.path, model)
    return done


def _upgrade(
    index: Index,
    items: Items,
    model: Model,
    drop_missing: bool,
    kept: Path | None,
    batch_size: int,
    progress: Progress | None,
) -> Upgraded:
    if items.fact("encoder") == model.identity:
        raise RecipeError(f"{index.path} is of this encoder already: there is nothing to upgrade")
    old, new = vectors_folder(index.path, items), index.path / f"{_PREFIX}{hash_of(model.identity.encode()).hex()[:16]}"
    _remove_others(index.path, keep=(old, new))
    ids, rows = items.ids(), int(items.fact("rows"))
    if not drop_missing:
        _refuse(index.path, _gone(items, ids))
    vectors = Segments(new / "vectors", model.dim, np.float32)
    check_room(index.path, 2 * (rows - vectors.available()) * model.dim * 4, "the new vectors")
    missing = _embed(index.path, items, vectors, model, rows, drop_missing, batch_size, progress)
    vectors.show(rows)
    there = np.setdiff1d(ids, np.array(list(missing), dtype=np.int64))
    labelled, labels = items.labels()
    of_those = np.isin(labelled, there)
    labelled, labels = labelled[of_those], labels[of_those]
    before = Segments(old / "vectors", index.dim, np.float32)
    before.show(rows)
    both = ((before, items.fact("distance")), (vectors, model.distance))
    compared = _compared(both, there, dict(zip(labelled.tolist(), labels.tolist(), strict=True)))
    curve = fitted_curve(labelled, labels, vectors, model)
    if kept is not None:
        _keep(items, old, kept)
    with items.writing():
        items.delete(list(missing))
        facts = {
            "encoder": model.identity,
            "model": str(model.path),
            "model_options": dict(model.options),
            "dim": model.dim,
            "distance": model.distance,
        }
        # An engine that is a server keeps its rows under this name: those of the old vectors must not be taken for new.
        facts["identity"] = new_identity()
        for key, value in {**facts, "vectors": new.name, "calibration": curve}.items():
            items.set_fact(key, value)
    if kept is None:
        _discard(index)
    remove_vectors(index.path, old)
    return Upgraded(len(there), tuple(missing.items()), *compared, old=kept)


def _discard(index: Index) -> None:
    """Take away the engine of the old vectors, of which a server has a table under a name that nobody uses any more."""
    try:
        index._engine.discard()
    except NearkinError as error:
        notice(f"what the engine of {index.path} held of the old vectors could not be deleted ({error})")


def _build_engine(folder: Path, model: Model) -> None:
    """Build the engine of the new vectors; with a server that cannot be had, an index that is searched without it."""
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
    """Write the vectors of all rows, zeros where there is no item any more; returns the items without, and why."""
    file = vectors.folder.parent / _PROGRESS
    make_folder(file.parent)
    first, missing = _begun(file)
    first = min(first, vectors.available())
    if missing and not drop_missing:  # perhaps they are there again
        first, missing = min(first, *missing), {}
    model.prepare(rows - first)
    while first < rows:
        last = min(first + batch_size, rows)
        found, gone = _vectors_of(items, list(range(first, last)), model, batch_size)
        if not drop_missing:
            _refuse(folder, gone)
        missing |= gone
        block = np.zeros((last - first, model.dim), dtype=np.float32)
        for id, vector in found.items():
            block[id - first] = vector
        vectors.append(first, block)
        # What is behind the rows noted here is written over when an interrupted upgrade goes on.
        write_atomically(file, json.dumps({"rows": last, "missing": list(missing.items())}).encode())
        first = last
        if progress is not None:
            progress(first, rows)
    there = set(items.ids().tolist())
    return {id: reason for id, reason in missing.items() if id in there}


def _begun(file: Path) -> tuple[int, dict[int, str]]:
    """How many rows an upgrade before has written, and which items it could not embed."""
    if not file.is_file():
        return 0, {}
    told = json.loads(file.read_bytes())
    return told["rows"], {int(id): reason for id, reason in told["missing"]}


def _vectors_of(
    items: Items, ids: Sequence[int], model: Model, batch_size: int
) -> tuple[dict[int, NDArray[np.float32]], dict[int, str]]:
    """New vectors by item, and the reason for those items whose image is not to be had."""

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

    looked = dict(threaded_map(read, sorted(items.contents(ids).items()), usable_cores()))
    gone = {id: found for id, found in looked.items() if isinstance(found, str)}
    pixels = {id: found for id, found in looked.items() if not isinstance(found, str)}
    if not pixels:
        return {}, gone
    found = model.embed(list(pixels.values()), batch_size)
    check_vectors(found, model.dim)
    return dict(zip(pixels, found, strict=True)), gone


def _gone(items: Items, ids: NDArray[np.int64]) -> dict[int, str]:
    """Items none of whose files is there, found before any work; what has changed shows when it is read."""
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
            f"{len(missing):,} images of {folder} cannot be embedded again ({first}): put the files back, or let these "
            f"items go with --drop-missing (drop_missing=True)"
        )


def _compared(
    both: tuple[tuple[Segments, Distance], tuple[Segments, Distance]], ids: NDArray[np.int64], labels: Mapping[int, str]
) -> tuple[int, float | None, float | None, float | None]:
    """How many images were compared, the overlap of their neighbours, and how often those have the right label.

    By exact scans before and after: it is encoders that are compared, and an engine may be a server that is gone.
    """
    some = np.sort(np.random.default_rng(0).permutation(ids)[:MOST_COMPARED])
    if len(ids) < 2:
        return len(some), None, None, None
    before, after = (_neighbours(vectors, distance, some, ids) for vectors, distance in both)
    overlap = float(np.mean([len({*before[id]} & {*after[id]}) / len(after[id]) for id in before]))
    return len(some), overlap, _accuracy(before, labels), _accuracy(after, labels)


def _neighbours(
    vectors: Segments, distance: Distance, some: NDArray[np.int64], ids: NDArray[np.int64]
) -> dict[int, list[int]]:
    """The nearest of ``ids`` for each of ``some``, without itself."""
    engine = ExactEngine(vectors.folder.parent / "engine" / "exact", vectors, distance)
    engine.show(vectors.rows)
    queries = vectors.take(some).astype(np.float64)
    ranked = nearest_of(
        engine, vectors, distance, unit_rows(queries) if distance == "cosine" else queries, NEIGHBOURS + 1, ids
    )
    return {
        id: [each for each in found.tolist() if each != id][:NEIGHBOURS]
        for id, (found, _) in zip(some.tolist(), ranked, strict=True)
    }


def _accuracy(neighbours: Mapping[int, Sequence[int]], labels: Mapping[int, str]) -> float | None:
    """Share of labelled images with the label that most of their neighbours have, of equally many the nearest's."""
    right = []
    for id, found in neighbours.items():
        votes = Counter(labels[each] for each in found if each in labels)
        if id in labels and votes:
            right.append(votes.most_common(1)[0][0] == labels[id])
    return float(np.mean(right)) if right else None


def _keep(items: Items, old: Path, kept: Path) -> None:
    """The index as it is, in a folder of its own that is there whole or not at all."""
    half_done = kept.with_name(f".{kept.name}.new")
    with writing(kept):
        shutil.rmtree(half_done, ignore_errors=True)
        shutil.copytree(old / "vectors", half_done / "vectors") if (old / "vectors").is_dir() else half_done.mkdir()
        items.copy_to(half_done / NAME)
        copy = Items.open(half_done / NAME)
        with copy.writing():
            copy.set_fact("vectors", None)
        copy.close()
        os.replace(half_done, kept)


def _remove_others(folder: Path, keep: Sequence[Path]) -> None:
    """What upgrades left that were given up, or killed after they were through."""
    for left in (*folder.glob(f"{_PREFIX}*"), *folder.glob(f"{COMPACTED}*")):
        if left not in keep:
            shutil.rmtree(left, ignore_errors=True)
    if folder not in keep:
        remove_vectors(folder, folder)


def remove_vectors(folder: Path, old: Path) -> None:
    """Take away vectors of an index that are no longer its own, and what an engine made of them."""
    for left in (folder / "vectors", folder / "engine") if old == folder else (old,):
        shutil.rmtree(left, ignore_errors=True)
