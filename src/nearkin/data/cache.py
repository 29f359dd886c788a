"""Opening a table of images: every file is decoded once and kept, and unreadable files are reported before training.

A cache folder holds ``files.json``, which remembers the digest of each file by its path, size and time of change, and
one folder of packs for each decoding size. A pack is an immutable safetensors file with the pixels of many images,
each named by the digest of its file. A killed process leaves no incomplete pack.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import filelock
import numpy as np
from numpy.typing import NDArray

from nearkin.data.folder import some_of
from nearkin.data.images import UnreadableImageError, decode, decode_bytes, read_file
from nearkin.data.table import ImageTable
from nearkin.disk import output_error, remove_leftovers, replacing
from nearkin.errors import DataError

PACK_BYTES = 64 << 20
"""A killed run loses at most this much decoded work."""
DECODED, GLYPHS = "decoded", "glyphs"

# Part of the name of a pack's folder: raise it whenever decoding or shrinking changes pixels.
_PIXELS_VERSION = 1

_ADVICE = (
    "Decoded images are kept there: set NEARKIN_CACHE (from Python cache_dir) to a folder with room for them, or "
    "data.cache=memory (cache_dir=None) to store nothing"
)
_SETTLED_NS = 2_000_000_000

Progress = Callable[[int, int], None]
T = TypeVar("T")
R = TypeVar("R")


class Images(Protocol):
    """The pixels of a table, by row; safe to read from many threads, and picklable."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> NDArray[np.uint8]: ...


@dataclass(frozen=True)
class OpenedImages:
    """A table without its unreadable rows, and ``images[row]``, uint8 ``[H, W, 3]``, for each of its rows."""

    table: ImageTable
    images: Images
    unreadable: tuple[UnreadableImageError, ...] = ()
    digests: tuple[str, ...] = ()
    """A hash of the content of each row's file, or of its pixels where the table holds them in memory."""


def cache_root() -> Path:
    """The folder for decoded and rendered images: ``NEARKIN_CACHE``, else the user's cache folder."""
    if chosen := os.environ.get("NEARKIN_CACHE"):
        return Path(chosen).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "nearkin"
    return Path.home() / ".cache" / "nearkin"


def open_images(
    table: ImageTable,
    *,
    cache_dir: Path | None,
    shorter_side: int = 256,
    tolerance: float = 0.01,
    memory_budget: int = 4 << 30,
    workers: int | None = None,
    progress: Progress | None = None,
) -> OpenedImages:
    """Decode the images that are not in the cache yet, leave out unreadable ones, and give access to the pixels.

    With ``cache_dir`` the images, shrunk to ``shorter_side``, are kept there and memory-mapped: a second opening
    decodes nothing, even after files were moved or renamed. Without it they are held in memory up to ``memory_budget``
    bytes, and the rest are decoded whenever they are needed.

    Rows whose file cannot be read are left out if they are fewer than the share ``tolerance`` of the table; otherwise
    :class:`~nearkin.errors.DataError` lists them. ``progress(done, total)`` is called for each file that is read.

    >>> table = ImageTable.build("toy", np.zeros((2, 8, 8), np.uint8), ["cat", "dog"], splits=["train", "train"])
    >>> open_images(table, cache_dir=None).images[1].shape
    (8, 8, 3)
    """
    if isinstance(table.images, np.ndarray):
        digests = tuple(_digest(image.tobytes()) for image in table.images)
        return OpenedImages(table, ArrayImages(table.images), digests=digests)

    reader = _Reader(shorter_side, workers or usable_cores(), progress)
    paths = [Path(image) for image in table.images]
    files = list(dict.fromkeys(paths))
    decoded: dict[str, NDArray[np.uint8]] = {}
    if cache_dir is None:
        for digest, image in reader.read(files, known=set()):
            if image.nbytes <= memory_budget:
                memory_budget -= image.nbytes
                decoded[digest] = image
    else:
        entries = _pack(files, reader, Path(cache_dir))
    rows = _readable_rows(table, paths, reader.unreadable, tolerance)
    paths = [paths[row] for row in rows]
    digests = tuple(reader.digests[path] for path in paths)
    images: Images
    if cache_dir is None:
        images = MemoryImages([decoded.get(d, path) for d, path in zip(digests, paths, strict=True)], shorter_side)
    else:
        images = PackedImages([entries[digest] for digest in digests])
    if reader.unreadable:
        table = table.take(rows)
    return OpenedImages(table, images, tuple(reader.unreadable.values()), digests)


class ArrayImages:
    """The images of a table in memory; greyscale is shown as three equal channels without a copy."""

    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4) or (pixels.ndim == 4 and pixels.shape[3] != 3):
            got = f"{pixels.dtype} {list(pixels.shape)}"
            raise DataError(f"images in memory must be uint8 [N, H, W] or [N, H, W, 3], got {got}")
        self._pixels = pixels

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, row: int, /) -> NDArray[np.uint8]:
        image = self._pixels[row]
        return image if image.ndim == 3 else np.broadcast_to(image[:, :, None], (*image.shape, 3))


@dataclass(frozen=True, eq=False)
class SelectedImages:
    """Some ``rows`` of other images, in that order."""

    images: Images
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int, /) -> NDArray[np.uint8]:
        return self.images[int(self.rows[row])]


@dataclass(frozen=True, eq=False)
class MemoryImages:
    """Decoded images, and the paths of those that did not fit in memory, which are decoded at every access."""

    images: Sequence[NDArray[np.uint8] | Path]
    shorter_side: int

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int, /) -> NDArray[np.uint8]:
        image = self.images[row]
        return decode(image, shorter_side=self.shorter_side) if isinstance(image, Path) else image


@dataclass(frozen=True)
class _Reader:
    """Reads, hashes and decodes files in threads, and keeps the digest or the error of each."""

    shorter_side: int
    workers: int
    progress: Progress | None
    digests: dict[Path, str] = field(default_factory=dict)
    unreadable: dict[Path, UnreadableImageError] = field(default_factory=dict)

    def read(self, files: Sequence[Path], known: set[str]) -> Iterator[tuple[str, NDArray[np.uint8]]]:
        """Digest and pixels of every file whose content is not ``known`` yet; adds its digest to ``known``."""

        def read_one(path: Path) -> tuple[str, NDArray[np.uint8] | None] | UnreadableImageError:
            try:
                data = read_file(path)
                digest = _digest(data)
                if digest in known:
                    return digest, None
                return digest, decode_bytes(data, path=path, shorter_side=self.shorter_side)
            except UnreadableImageError as error:
                # A new one, because the traceback of the old one keeps the bytes of the file.
                return UnreadableImageError(error.path, error.reason)

        results = threaded_map(read_one, files, self.workers)
        for done, (path, result) in enumerate(zip(files, results, strict=True), start=1):
            if isinstance(result, UnreadableImageError):
                self.unreadable[path] = result
            else:
                digest, image = result
                self.digests[path] = digest
                # Two files with the same content may both have been decoded before either was known.
                if image is not None and digest not in known:
                    known.add(digest)
                    yield digest, image
            if self.progress is not None:
                self.progress(done, len(files))


def _pack(files: Sequence[Path], reader: _Reader, cache_dir: Path) -> dict[str, PackEntry]:
    """Write the files that are in no pack yet into new packs; returns all entries by digest."""
    folder = cache_dir / f"pixels{_PIXELS_VERSION}-side{reader.shorter_side}"

    def look_up() -> tuple[dict[str, PackEntry], list[Path]]:
        digests, entries = FileDigests(cache_dir), read_packs(folder)
        known = {path: digest for path in files if (digest := digests.get(path)) in entries}
        reader.digests.update(known)
        return entries, [path for path in files if path not in known]

    entries, missing = look_up()
    if not missing:
        return entries
    # Of several runs that start together only one decodes.
    with writer_lock(cache_dir) as is_locked:
        if is_locked:  # otherwise another machine may be writing them
            remove_leftovers(cache_dir)
            remove_leftovers(folder)
        entries, missing = look_up()
        # Taken before reading, so that a change while reading is noticed the next time.
        states = {path: file_state(path) for path in missing}
        try:
            write_packs(folder, reader.read(missing, set(entries)))
        except OSError as error:
            raise output_error(error, folder, advice=_ADVICE) from error
        read = reader.digests
        FileDigests(cache_dir).remember({p: (state, read[p]) for p, state in states.items() if state and p in read})
    return read_packs(folder)


def _readable_rows(
    table: ImageTable, paths: Sequence[Path], unreadable: dict[Path, UnreadableImageError], tolerance: float
) -> list[int]:
    rows = [row for row, path in enumerate(paths) if path not in unreadable]
    lost = len(paths) - len(rows)
    if lost and (not rows or lost / len(paths) >= tolerance):
        listed = some_of([str(error) for error in unreadable.values()], most=20)
        remedy = f", or raise data.unreadable_tolerance (now {tolerance:g}; tolerance= in Python)" if rows else ""
        raise DataError(
            f"{lost:,} of the {len(paths):,} images of {table.name!r} cannot be read:\n{listed}\n"
            f"Repair or remove these files{remedy}."
        )
    return rows


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def file_state(path: Path) -> list[int] | None:
    """Size and time of change: while both are the same, a file counts as unchanged without being read."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return [status.st_size, status.st_mtime_ns]


class FileDigests:
    """Digests of files read before, by path, valid while size and time of change are the same."""

    def __init__(self, cache_dir: Path) -> None:
        self._path = cache_dir / "files.json"
        self._entries: dict[str, list[Any]] = {}
        with contextlib.suppress(OSError, ValueError, TypeError):
            self._entries.update(json.loads(self._path.read_bytes()))

    def get(self, path: Path) -> str | None:
        *state, digest = self._entries.get(os.path.abspath(path), [None])
        return digest if state == file_state(path) else None

    def remember(self, digests: Mapping[Path, tuple[list[int], str]]) -> None:
        """Add entries and write the file again, if it can be written.

        A file changed a moment ago could change again within the resolution of its time stamp, so it is left out.
        """
        settled = time.time_ns() - _SETTLED_NS
        new = {
            os.path.abspath(path): [*state, digest] for path, (state, digest) in digests.items() if state[1] < settled
        }
        if new:
            self._entries |= new
            with contextlib.suppress(OSError), replacing(self._path) as file:
                file.write(json.dumps(self._entries).encode())


@contextlib.contextmanager
def writer_lock(cache_dir: Path, *, wait: bool = True) -> Iterator[bool]:
    """A lock for the one process that fills or clears a cache folder; without ``wait`` a busy one is an error.

    The value is False on a file system without locks, where packs are safe all the same.
    """
    lock = filelock.FileLock(cache_dir / "writer.lock", timeout=-1 if wait else 0)
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except filelock.Timeout as error:
        raise DataError(
            f"another process is decoding images into {str(cache_dir)!r}: wait until it is done, then try again"
        ) from error
    except (OSError, NotImplementedError):
        pass
    try:
        yield lock.is_locked
    finally:
        lock.release()


class PackEntry(NamedTuple):
    """Where an image is stored: the pack, the first byte in it, and the shape."""

    pack: Path
    offset: int
    height: int
    width: int


class PackedImages:
    """Rows of a table, each a read-only view ``[H, W, 3]`` into a memory-mapped pack.

    A pickle holds the entries, not the pixels; it maps the same files again.
    """

    def __init__(self, entries: Sequence[PackEntry]) -> None:
        packs = list(dict.fromkeys(entry.pack for entry in entries))
        number = {pack: index for index, pack in enumerate(packs)}
        rows = [(number[entry.pack], *entry[1:]) for entry in entries]
        self.__setstate__((packs, np.array(rows, dtype=np.int64).reshape(-1, 4)))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        pack, offset, height, width = self._rows[row].tolist()
        pixels: NDArray[np.uint8] = self._maps[pack][offset : offset + height * width * 3]
        return pixels.reshape(height, width, 3)

    def __getstate__(self) -> tuple[list[Path], NDArray[np.int64]]:
        return self._packs, self._rows

    def __setstate__(self, state: tuple[list[Path], NDArray[np.int64]]) -> None:
        self._packs, self._rows = state
        self._maps = [_map(pack) for pack in self._packs]


def _map(pack: Path) -> NDArray[np.uint8]:
    try:
        with open(pack, "rb") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
    except (OSError, ValueError) as error:
        raise DataError(f"the decoded images in {pack} are gone ({error}); run again to decode them again") from error


def write_packs(folder: Path, images: Iterable[tuple[str, NDArray[np.uint8]]]) -> None:
    """Write images, each with the digest of its file, into new packs of about :data:`PACK_BYTES`."""
    from safetensors.numpy import save

    pending: dict[str, NDArray[np.uint8]] = {}
    size = 0

    def write() -> None:
        nonlocal size
        content = save(pending)
        pending.clear()
        size = 0
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / f"{secrets.token_hex(8)}.safetensors") as file:
            file.write(content)

    try:
        for digest, image in images:
            pending[digest] = np.ascontiguousarray(image)
            size += image.nbytes
            if size >= PACK_BYTES:
                write()
    finally:  # also after Ctrl-C, to keep what is decoded already
        if pending:
            write()


def read_packs(folder: Path) -> dict[str, PackEntry]:
    """Every image in the packs of ``folder``, by the digest of its file; damaged packs are skipped."""
    entries: dict[str, PackEntry] = {}
    for pack in sorted(folder.glob("*.safetensors")):
        with contextlib.suppress(OSError, ValueError), open(pack, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = 8 + int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(start, size) - 8))
            if size == start + max(tensor["data_offsets"][1] for tensor in header.values()):
                for digest, tensor in header.items():
                    entries[digest] = PackEntry(pack, start + tensor["data_offsets"][0], *tensor["shape"][:2])
    return entries


def threaded_map(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """``map`` over a pool of threads that works only a few items ahead, so that few results wait in memory."""
    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="nearkin-images") as pool:
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) >= 4 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def usable_cores() -> int:
    """The cores this process may use, at most 16."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 16)


def cached_files(root: Path) -> dict[Path, int]:
    """The files that nearkin keeps in a cache folder, and their sizes in bytes; other files there are ignored."""
    names = ("pixels[0-9]*-side[0-9]*/*", "files.json", ".files.json.*.tmp", "writer.lock")
    sizes = {}
    for pattern in (*(f"{DECODED}/{name}" for name in names), f"{GLYPHS}/glyphs-*.npz"):
        for file in sorted(root.glob(pattern)):
            with contextlib.suppress(FileNotFoundError):  # a temporary file that was renamed in the meantime
                sizes[file] = file.stat().st_size
    return sizes


def clear_cache(root: Path) -> None:
    """Remove the :func:`cached_files` and nothing else; it is an error while another process writes to the cache.

    Runs that have opened images keep them.
    """
    if not cached_files(root):
        return
    with writer_lock(root / DECODED, wait=False):
        for file in cached_files(root):
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                raise DataError(f"cannot remove {str(file)!r} ({error.strerror or error})") from error
    for folder in (*(root / DECODED).glob("pixels[0-9]*-side[0-9]*"), root / DECODED, root / GLYPHS):
        with contextlib.suppress(OSError):
            folder.rmdir()
