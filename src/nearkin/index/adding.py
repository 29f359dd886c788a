"""Images into an index: read, hashed, decoded, embedded, and written batch by batch so that each is there for good.

Of a batch the vectors reach the disk first, then the table of items commits. A process that is killed between the two
has left vectors that no item has; the next writer writes over them.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nearkin.data.cache import Images
from nearkin.data.file_names import readable
from nearkin.data.image_inputs import ImageInputs
from nearkin.data.images import UnreadableImageError, decode_bytes, read_file
from nearkin.data.source import collect_images
from nearkin.data.table import ImageTable
from nearkin.data.threads import threaded_map, usable_cores
from nearkin.errors import DataError, RecipeError
from nearkin.index.engine import Engine
from nearkin.index.items import File, Items, NewItem
from nearkin.index.segments import Segments
from nearkin.runs.model import Model

THUMBNAIL_SIDE = 192
Labels = str | Sequence[str] | None
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Added:
    """What an ``add`` came to."""

    added: int
    known: int
    """Images whose content was there already."""
    failed: tuple[tuple[str, str], ...]
    """Files that could not be read, and why."""
    left_out: tuple[str, ...] = ()
    """Files of a folder that are no images, counted."""


@dataclass(frozen=True)
class Source:
    """An image to be added: a file, or the place of an image among those given."""

    path: Path | None
    place: int
    label: str | None
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        return None if self.path is None else readable(os.path.abspath(self.path))


@dataclass(frozen=True)
class Loaded:
    """A source that was looked at: decoded, or known, or not to be read."""

    source: Source
    file: File | None
    hash: bytes = b""
    pixels: NDArray[np.uint8] | None = None
    thumbnail: bytes = b""
    reason: str | None = None


@dataclass(frozen=True)
class Sources:
    """All images of one ``add``."""

    name: str
    images: Images | None
    """Those that are no files."""
    rows: Sequence[Source]
    columns: Mapping[str, Sequence[str]]
    left_out: tuple[str, ...] = ()


def sources_of(given: Any, labels: Labels, shorter_side: int | None) -> Sources:
    """A folder, a manifest, image files or images, with their labels: by folder or manifest, as given, or none."""
    if isinstance(given, Sources):
        return given
    if isinstance(labels, str) and labels != "folder":
        raise RecipeError(f"labels must be 'folder', one for each image, or None, got {labels!r}")
    if not isinstance(given, (str, os.PathLike)) and (not isinstance(given, Iterable) or _is_one_picture(given)):
        given = [given]
    several = [given] if isinstance(given, (str, os.PathLike)) else list(given)
    in_files = all(isinstance(each, (str, os.PathLike)) for each in several)
    named = None if labels is None or isinstance(labels, str) else list(labels)
    if named is not None and len(named) != len(several):
        raise RecipeError(f"{len(several):,} images were given, and {len(named):,} labels: give one for each")
    if not in_files:
        images = ImageInputs(several, shorter_side=shorter_side)
        said = [None] * len(several) if named is None else named
        rows = [Source(None, place, label or None) for place, label in enumerate(said)]
        return Sources("images given", images, rows, {})
    if named is None:
        table = collect_images([Path(each) for each in several])
    else:
        table = ImageTable.build("images given", list(map(Path, several)), named, splits=["test"] * len(several))
    name = readable(os.path.abspath(several[0])) if len(several) == 1 else f"{len(several)} sources"
    rows = list(_rows(table, with_labels=labels is not None))
    columns = {key: values.tolist() for key, values in table.columns.items()}
    return Sources(name, None, rows, columns, tuple(map(str, table.left_out)))


def _rows(table: ImageTable, *, with_labels: bool) -> Iterator[Source]:
    for place, (path, label) in enumerate(zip(table.images, table.labels.tolist(), strict=True)):
        said = (table.class_names[label] or None) if with_labels else None
        yield Source(Path(path), place, said, {key: str(values[place]) for key, values in table.columns.items()})


def _is_one_picture(given: Any) -> bool:
    if isinstance(given, (bytes, bytearray, Image.Image)):
        return True
    return hasattr(given, "ndim") and given.ndim in (2, 3)


def loaded(
    sources: Sources,
    shorter_side: int | None,
    file_of: Callable[[str], File | None],
    is_known: Callable[[bytes], bool],
) -> Generator[Loaded]:
    """Every source in order, decoded on all cores unless its content is known."""

    def look_up() -> Iterator[tuple[Source, File | None]]:
        for source in sources.rows:
            yield source, None if source.name is None else file_of(source.name)

    def load(both: tuple[Source, File | None]) -> Loaded:
        source, before = both
        file = None if source.path is None else _state(source)
        try:
            if source.path is None or file is None:
                assert sources.images is not None, "a source is a file or among the images given"
                pixels = sources.images[source.place]
                return _with(source, None, hash_of_pixels(pixels), pixels)
            if before is not None and before.reason is None and _is_unchanged(before, file):
                return Loaded(source, before)
            content = read_file(source.path)
            digest = hash_of(content)
            if is_known(digest):
                return Loaded(source, file, digest)
            return _with(source, file, digest, decode_bytes(content, path=source.path, shorter_side=shorter_side))
        except UnreadableImageError as error:
            return Loaded(source, file, reason=error.reason)

    yield from threaded_map(load, look_up(), usable_cores())


def _with(source: Source, file: File | None, digest: bytes, pixels: NDArray[np.uint8]) -> Loaded:
    return Loaded(source, file, digest, pixels, thumbnail_of(pixels))


def thumbnail_of(pixels: NDArray[np.uint8]) -> bytes:
    """A small JPEG of an image's pixels, and of nothing else that its file may say."""
    image = Image.fromarray(pixels)
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BILINEAR)
    content = io.BytesIO()
    image.save(content, "JPEG", quality=82)
    return content.getvalue()


def write_all(
    sources: Sources,
    items: Items,
    vectors: Segments,
    engine: Engine,
    model: Model,
    batch_size: int,
    progress: Progress | None,
) -> Added:
    """Everything of ``sources`` that is not there yet, batch by batch."""
    model.prepare(len(sources.rows) - items.count())
    with items.writing():
        items.add_columns(sources.columns)
        items.set_fact("left_out", (items.fact("left_out") or {}) | {sources.name: sources.left_out})
    added, known, done = 0, 0, 0
    failed: list[tuple[str, str]] = []
    batch: list[Loaded] = []
    every = loaded(sources, model.shorter_side, items.file, lambda each: bool(items.known([each])))
    with contextlib.closing(every):
        for one in every:
            batch.append(one)
            done += 1
            if one.reason is not None:
                failed.append((one.source.name or f"image {one.source.place + 1}", one.reason))
            if len(batch) == batch_size or done == len(sources.rows):
                new = write_batch(batch, items, vectors, engine, model, batch_size)
                added += new
                known += sum(each.reason is None for each in batch) - new
                batch = []
                if progress is not None:
                    progress(done, len(sources.rows))
    return Added(added, known, tuple(failed), sources.left_out)


def write_batch(
    batch: Sequence[Loaded], items: Items, vectors: Segments, engine: Engine, model: Model, batch_size: int
) -> int:
    """Embed what is new of a batch and write it; returns how many that were."""
    known = items.known([one.hash for one in batch if one.hash])
    new = {one.hash: one for one in batch if one.pixels is not None and one.hash not in known}
    first = items.fact("rows")
    if new:
        found = model.embed([one.pixels for one in new.values() if one.pixels is not None], batch_size)
        check_vectors(found, model.dim)
        vectors.append(first, found)
        engine.add(first, found)
    ids = known | {digest: first + place for place, digest in enumerate(new)}
    with items.writing():
        for one in new.values():
            source = one.source
            items.insert(NewItem(ids[one.hash], one.hash, source.name, source.label, source.columns, one.thumbnail))
        items.set_fact("rows", first + len(new))
        gone = [id for one in batch if (id := _note(one, items, ids)) is not None]
    if gone:
        engine.remove(np.array(gone, dtype=np.int64))
    return len(new)


def _note(one: Loaded, items: Items, ids: Mapping[bytes, int]) -> int | None:
    """Remember the file of an image, and what is said of it now where it is the item's own; returns what it was."""
    gone, id = None, ids.get(one.hash) if one.hash else None
    if one.file is not None:
        # What was read before and cannot be read now stays what it was.
        before = items.file(one.file.path) if one.reason is not None else one.file
        id = id if id is not None or before is None else before.id
        gone = items.note_file(File(one.file.path, one.file.size, one.file.changed, id, one.reason))
    if id is None or one.reason is not None:
        return gone
    item = items.get([id])[id]
    if item.path is not None and one.source.name is not None and not os.path.exists(item.path):
        items.move(id, one.source.name)  # the file was renamed
    elif item.path != one.source.name:
        return gone
    items.describe(id, one.source.label, one.source.columns)
    return gone


def _state(source: Source) -> File:
    assert source.path is not None
    assert source.name is not None
    try:
        status = os.stat(source.path)
    except OSError:
        return File(source.name, 0, 0, None)
    return File(source.name, status.st_size, status.st_mtime_ns, None)


def _is_unchanged(before: File, now: File) -> bool:
    return (before.size, before.changed) == (now.size, now.changed)


def hash_of_pixels(pixels: NDArray[np.uint8]) -> bytes:
    """What an image that is no file is known by."""
    return hash_of(repr(pixels.shape).encode() + pixels.tobytes())


def hash_of(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()


def check_vectors(vectors: NDArray[np.float32], dim: int) -> None:
    """Refuse what an encoder must not give: a stored NaN would be near nothing for ever."""
    if vectors.shape[1] != dim or not np.isfinite(vectors).all():
        raise DataError(
            f"the encoder gave vectors {list(vectors.shape)} with NaN or infinity, or not of dimension {dim}: its "
            f"weights are damaged; train anew"
        )
