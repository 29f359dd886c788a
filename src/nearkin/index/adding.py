"""Adding images to an index: they are read, hashed, decoded, embedded and written durably, batch by batch.

The vectors of a batch reach the disk first, then the table of items commits. If the process is killed in between, the
next writer overwrites the vectors that have no item.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nearkin.data.cache import Images, threaded_map, usable_cores
from nearkin.data.folder import ClassFolders, printable
from nearkin.data.image_inputs import ImageInputs, is_one_image
from nearkin.data.images import UnreadableImageError, decode_bytes, read_file
from nearkin.data.source import collect_images
from nearkin.data.table import ImageTable
from nearkin.errors import DataError, RecipeError
from nearkin.index.engine import Engine
from nearkin.index.fingerprint import SIDE, brightness, perceptual_hash
from nearkin.index.items import File, Item, Items
from nearkin.index.segments import Segments
from nearkin.runs.model import Model

THUMBNAIL_SIDE = 192
Labels = str | Sequence[str] | None
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Added:
    """The result of an ``add``: how many images are new and how many were known."""

    added: int
    known: int
    failed: tuple[tuple[str, str], ...]
    """The images that could not be read, and the reasons."""
    left_out: tuple[str, ...] = ()
    """What else the folders hold: files of other types, and images outside the class folders."""


@dataclass(frozen=True)
class Unfinished:
    """An ``add`` that has not ended, and how many of its images are done."""

    done: int
    total: int
    sources: Sequence[str]


@dataclass(frozen=True)
class Source:
    """An image to add: a file, or the image at index ``number`` of those passed in."""

    path: Path | None
    number: int
    label: str | None
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        return None if self.path is None else printable(os.path.abspath(self.path))


@dataclass(frozen=True)
class Sources:
    """All images of one ``add``: ``images`` without files, or those of the files and folders in ``paths``."""

    images: Images | None
    rows: Sequence[Source]
    left_out: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Loaded:
    """A source that was decoded, is known already, or cannot be read for a ``reason``."""

    source: Source
    file: File | None
    hash: bytes = b""
    pixels: NDArray[np.uint8] | None = None
    thumbnail: bytes = b""
    fingerprint: int | None = None
    reason: str | None = None


def sources_of(
    given: Any, labels: Labels, shorter_side: int | None, class_folders: ClassFolders | None = None
) -> Sources:
    """The images of an ``add``, labelled by their folders or manifest, by a list of labels, or not at all."""
    if isinstance(labels, str) and labels != "folder":
        raise RecipeError(f"labels must be 'folder', one for each image, or None, got {labels!r}")
    images = [given] if is_one_image(given) or not isinstance(given, Iterable) else list(given)
    names = None if labels is None or isinstance(labels, str) else list(labels)
    if names is not None and len(names) != len(images):
        raise RecipeError(f"{len(images):,} images were given, and {len(names):,} labels: give one for each")
    if not all(isinstance(image, (str, os.PathLike)) for image in images):
        rows = [Source(None, i, label or None) for i, label in enumerate(names or [None] * len(images))]
        return Sources(ImageInputs(images, shorter_side=shorter_side), rows)
    if names is None:
        table = collect_images([Path(image) for image in images], class_folders=class_folders)
    else:
        table = ImageTable.build("images given", list(map(Path, images)), names, splits=["test"] * len(images))
    columns = {key: list(map(str, values.tolist())) for key, values in table.columns.items()}
    rows = []
    for i, (path, label) in enumerate(zip(table.images, table.labels.tolist(), strict=True)):
        class_name = None if labels is None else table.class_names[label] or None
        rows.append(Source(Path(path), i, class_name, {key: column[i] for key, column in columns.items()}))
    paths = tuple(printable(os.path.abspath(image)) for image in images)
    return Sources(None, rows, tuple(map(str, table.left_out)), paths)


def write_all(
    sources: Sources,
    items: Items,
    vectors: Segments,
    engine: Engine,
    model: Model,
    batch_size: int,
    progress: Progress | None,
) -> Added:
    """Add the images whose content is new, batch by batch."""
    with items.writing():
        items.add_columns([source.columns for source in sources.rows])
        _record_progress(items, sources, 0)
    added = done = 0
    failed: list[tuple[str, str]] = []
    with contextlib.closing(_load_all(sources, model.shorter_side, items)) as images:
        while batch := list(itertools.islice(images, batch_size)):
            added += _write_batch(batch, items, vectors, engine, model, batch_size)
            done += len(batch)
            for loaded in batch:
                if loaded.reason is not None:
                    failed.append((loaded.source.name or f"image {loaded.source.number + 1}", loaded.reason))
            with items.writing():
                _record_progress(items, sources, done)
            if progress is not None:
                progress(done, len(sources.rows))
    return Added(added, done - added - len(failed), tuple(failed), sources.left_out)


def _record_progress(items: Items, sources: Sources, done: int) -> None:
    """Store how far an ``add`` of files has come; the index deletes this at the end."""
    if sources.paths:
        items.set_fact("unfinished", asdict(Unfinished(done, len(sources.rows), sources.paths)))


def _load_all(sources: Sources, shorter_side: int | None, items: Items) -> Generator[_Loaded]:
    """Every source in order; those with new content are decoded, on all cores."""

    def load(source: Source) -> _Loaded:
        file = None
        try:
            if sources.images is not None:
                pixels = sources.images[source.number]
                digest = hash_of_pixels(pixels)
            elif source.path is not None and source.name is not None:
                file = File(source.name, 0, 0, None)
                with contextlib.suppress(OSError):
                    status = os.stat(source.path)
                    file = File(source.name, status.st_size, status.st_mtime_ns, None)
                before = items.file(source.name)
                if before is not None and replace(before, id=None) == file:
                    return _Loaded(source, before)
                content = read_file(source.path)
                digest = hash_of(content)
                if items.ids_by_hash([digest]):
                    return _Loaded(source, file, digest)
                pixels = decode_bytes(content, path=source.path, shorter_side=shorter_side)
            thumbnail = thumbnail_of(pixels)
            fingerprint = None if min(pixels.shape[:2]) < SIDE else perceptual_hash(brightness(thumbnail))
            return _Loaded(source, file, digest, pixels, thumbnail, fingerprint)
        except UnreadableImageError as error:
            return _Loaded(source, file, reason=error.reason)

    yield from threaded_map(load, sources.rows, usable_cores())


def _write_batch(
    batch: Sequence[_Loaded], items: Items, vectors: Segments, engine: Engine, model: Model, batch_size: int
) -> int:
    """Embed and write the new images of a batch; returns their number."""
    known = items.ids_by_hash([loaded.hash for loaded in batch if loaded.hash])
    new = {loaded.hash: loaded for loaded in batch if loaded.pixels is not None and loaded.hash not in known}
    first = items.fact("rows")
    if new:
        embedded = model.embed([loaded.pixels for loaded in new.values() if loaded.pixels is not None], batch_size)
        check_vectors(embedded, model.dim)
        vectors.append(first, embedded)
        engine.add(first, embedded)
    ids = known | {digest: first + i for i, digest in enumerate(new)}
    with items.writing():
        for loaded in new.values():
            source = loaded.source
            item = Item(ids[loaded.hash], source.name, source.label, source.columns)
            items.insert(item, loaded.hash, loaded.thumbnail, loaded.fingerprint)
        items.set_fact("rows", first + len(new))
        deleted = [id for loaded in batch if (id := _record(loaded, items, ids)) is not None]
    if deleted:
        vectors.clear(np.array(deleted, dtype=np.int64))
        engine.remove(np.array(deleted, dtype=np.int64))
    return len(new)


def _record(loaded: _Loaded, items: Items, ids: Mapping[bytes, int]) -> int | None:
    """Store a source's file, and its label and columns if the item is named after this file.

    Returns the item that is deleted because this was its last file and now has other content.
    """
    deleted, id, source, file = None, ids.get(loaded.hash), loaded.source, loaded.file
    if file is not None:
        # A file that could be read before and cannot be read now keeps its item.
        before = file if loaded.reason is None else items.file(file.path)
        if id is None and before is not None:
            id = before.id
        deleted = items.record_file(replace(file, id=id, reason=loaded.reason))
    if id is None or loaded.reason is not None:
        return deleted
    item = items.get([id])[id]
    if item.path is not None and source.name is not None and not os.path.exists(item.path):
        items.move(id, source.name)  # the file was renamed
    elif item.path != source.name:
        return deleted
    items.update(id, source.label, source.columns)
    return deleted


def thumbnail_of(pixels: NDArray[np.uint8]) -> bytes:
    """A small JPEG of an image's pixels, without the metadata of its file."""
    image = Image.fromarray(pixels)
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BILINEAR)
    content = io.BytesIO()
    image.save(content, "JPEG", quality=82)
    return content.getvalue()


def hash_of_pixels(pixels: NDArray[np.uint8]) -> bytes:
    """The hash that identifies an image without a file."""
    return hash_of(repr(pixels.shape).encode() + pixels.tobytes())


def hash_of(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()


def check_vectors(vectors: NDArray[np.float32], dim: int) -> None:
    """Refuse vectors of a damaged encoder: nothing is ever near a NaN."""
    if vectors.shape[1] != dim or not np.isfinite(vectors).all():
        wrong = f"the encoder gave vectors {list(vectors.shape)} with NaN or infinity, or not of dimension {dim}"
        raise DataError(f"{wrong}: its weights are damaged; train it again")
