"""Opening a table: every image decoded once, the unreadable ones found before training, the pixels at hand."""

from __future__ import annotations

import errno
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from nearkin.data.images import MAX_PIXELS, UnreadableImageError, decode, decode_bytes, read_file
from nearkin.data.packs import FileState, KnownFiles, PackedImages, PackWriter, Place, read_packs, sole_writer, sweep
from nearkin.data.table import ImageTable
from nearkin.errors import DataError

SHORTER_SIDE = 256
TOLERANCE = 0.01
MEMORY_BUDGET = 4 << 30

# Part of the key of a pack: raise it whenever decoding or shrinking gives other pixels than before.
_PIXELS_VERSION = 1

_LISTED = 20
_FREE_SPACE_EVERY = 256
_MOST_WORKERS = 16

Progress = Callable[[int, int], None]


class Images(Protocol):
    """The pixels of a table, by row; safe to read from many threads, and picklable."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> NDArray[np.uint8]: ...


@dataclass(frozen=True)
class OpenedImages:
    """A table without its unreadable rows, and ``images[row]``, uint8 ``[H, W, 3]``, for each row that is left."""

    table: ImageTable
    images: Images
    unreadable: tuple[UnreadableImageError, ...] = ()
    digests: tuple[str, ...] = ()
    """A hash of the content of each row's file, or of its pixels where the table holds these itself: an image keeps it
    when it is moved or renamed."""


def cache_root() -> Path:
    """The folder for what is decoded or rendered once: ``NEARKIN_CACHE``, else the user's cache folder.

    >>> isinstance(cache_root(), Path)
    True
    """
    if chosen := os.environ.get("NEARKIN_CACHE"):
        return Path(chosen).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "nearkin"
    try:
        return Path.home() / ".cache" / "nearkin"
    except RuntimeError as error:
        raise DataError("no home folder to keep decoded images in; set NEARKIN_CACHE to a folder") from error


def open_images(
    table: ImageTable,
    *,
    cache_dir: Path | None,
    shorter_side: int = SHORTER_SIDE,
    tolerance: float = TOLERANCE,
    max_pixels: int = MAX_PIXELS,
    memory_budget: int = MEMORY_BUDGET,
    workers: int | None = None,
    progress: Progress | None = None,
) -> OpenedImages:
    """Decode what has not been decoded before, leave out what cannot be, and give access to the pixels.

    With ``cache_dir`` the images, shrunk to ``shorter_side``, are kept there and memory-mapped: a second opening
    decodes nothing, also after the folder was moved or files were renamed. Without it they are held in memory up to
    ``memory_budget`` bytes, and those beyond are decoded whenever they are asked for. Images that a table holds in
    memory are taken as they are.

    Rows whose file cannot be read are left out if they are fewer than the share ``tolerance`` of the table; otherwise
    :class:`~nearkin.errors.DataError` lists them. ``progress(done, total)`` is called for each file that must be read.

    >>> table = ImageTable.build("toy", np.zeros((2, 8, 8), np.uint8), ["cat", "dog"], splits=["train", "train"])
    >>> open_images(table, cache_dir=None).images[1].shape
    (8, 8, 3)
    """
    if shorter_side < 1:
        raise ValueError(f"shorter_side must be at least 1, got {shorter_side}")
    if not 0.0 <= tolerance <= 1.0:
        raise ValueError(f"tolerance must be a share from 0 to 1, got {tolerance}")
    if isinstance(table.images, np.ndarray):
        pixels = ArrayImages(table.images)
        return OpenedImages(table, pixels, digests=tuple(_digest(image.tobytes()) for image in table.images))

    reader = _Reader(shorter_side, max_pixels, workers or usable_cores(), progress)
    paths = [Path(image) for image in table.images]
    if cache_dir is None:
        held, digests, unreadable = _hold(paths, reader, memory_budget)
        rows = _readable_rows(table, paths, unreadable, tolerance)
        kept = [paths[row] for row in rows]
        images: Images = HeldImages(kept, [held.get(path) for path in kept], reader.shorter_side, reader.max_pixels)
    else:
        places, digests, unreadable = _pack(paths, reader, Path(cache_dir))
        rows = _readable_rows(table, paths, unreadable, tolerance)
        images = PackedImages([places[digests[paths[row]]] for row in rows])
    return OpenedImages(
        table.take(rows) if unreadable else table,
        images,
        tuple(unreadable.values()),
        tuple(digests[paths[row]] for row in rows),
    )


class ArrayImages:
    """The images of a table that is in memory; greyscale is shown as three equal channels without a copy."""

    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4) or (pixels.ndim == 4 and pixels.shape[3] != 3):
            raise DataError(
                f"images in memory must be uint8 [N, H, W] or [N, H, W, 3], got {pixels.dtype} {list(pixels.shape)}"
            )
        self._pixels = pixels

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, row: int, /) -> NDArray[np.uint8]:
        image = self._pixels[row]
        return image if image.ndim == 3 else np.broadcast_to(image[:, :, None], (*image.shape, 3))


class SelectedImages:
    """Some rows of other images, in an order of their own."""

    def __init__(self, images: Images, rows: NDArray[np.int64]) -> None:
        self._images = images
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int, /) -> NDArray[np.uint8]:
        return self._images[int(self._rows[row])]


class HeldImages:
    """Images decoded from files, as far as there was memory for them; the others are decoded when asked for."""

    def __init__(
        self, paths: Sequence[Path], held: Sequence[NDArray[np.uint8] | None], shorter_side: int, max_pixels: int
    ) -> None:
        self._paths = paths
        self._held = held
        self._shorter_side = shorter_side
        self._max_pixels = max_pixels

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, row: int, /) -> NDArray[np.uint8]:
        image = self._held[row]
        if image is not None:
            return image
        return decode(self._paths[row], max_pixels=self._max_pixels, shorter_side=self._shorter_side)


@dataclass(frozen=True)
class _Decoded:
    path: Path
    digest: str
    image: NDArray[np.uint8] | None


@dataclass(frozen=True)
class _Reader:
    """Reads, hashes and decodes files in threads: Pillow's decoders and resampling release the interpreter's lock."""

    shorter_side: int
    max_pixels: int
    workers: int
    progress: Progress | None

    def read(self, paths: Sequence[Path], known: set[str]) -> Iterator[_Decoded | UnreadableImageError]:
        """Each file's digest and pixels, in order; files whose digest is in ``known`` are not decoded."""

        def read_one(path: Path) -> _Decoded | UnreadableImageError:
            try:
                data = read_file(path, max_pixels=self.max_pixels)
                digest = _digest(data)
                if digest in known:
                    return _Decoded(path, digest, None)
                image = decode_bytes(data, path=path, max_pixels=self.max_pixels, shorter_side=self.shorter_side)
                return _Decoded(path, digest, image)
            except UnreadableImageError as error:
                # A new one, because the traceback of the old holds on to the bytes of the file.
                return UnreadableImageError(error.path, error.reason)

        for done, result in enumerate(_in_order(read_one, paths, self.workers), start=1):
            yield result
            if self.progress is not None:
                self.progress(done, len(paths))


def _hold(
    paths: Sequence[Path], reader: _Reader, memory_budget: int
) -> tuple[dict[Path, NDArray[np.uint8]], dict[Path, str], dict[Path, UnreadableImageError]]:
    held: dict[Path, NDArray[np.uint8]] = {}
    digests: dict[Path, str] = {}
    unreadable: dict[Path, UnreadableImageError] = {}
    for result in reader.read(list(dict.fromkeys(paths)), known=set()):
        if isinstance(result, UnreadableImageError):
            unreadable[result.path] = result
            continue
        digests[result.path] = result.digest
        if result.image is not None and result.image.nbytes <= memory_budget:
            memory_budget -= result.image.nbytes
            held[result.path] = result.image
    return held, digests, unreadable


def _pack(
    paths: Sequence[Path], reader: _Reader, cache_dir: Path
) -> tuple[dict[str, Place], dict[Path, str], dict[Path, UnreadableImageError]]:
    # max_pixels is no part of the key: it decides whether an image is decoded, never what comes out.
    folder = cache_dir / f"pixels{_PIXELS_VERSION}-side{reader.shorter_side}"
    files = list(dict.fromkeys(paths))
    known = KnownFiles(cache_dir)
    found, stored = _look_up(files, known, folder)
    if len(found) == len(files):
        return stored, found, {}
    work = blake2b("\0".join(os.path.abspath(path) for path in files).encode(errors="surrogateescape"), digest_size=8)
    with sole_writer(folder, work.hexdigest()):
        sweep(cache_dir)
        sweep(folder)
        known.reload()
        found, stored = _look_up(files, known, folder)
        missing = [path for path in files if path not in found]
        # Before reading, so that a change during it is noticed the next time.
        states = {path: FileState.of(path) for path in missing}
        digests, unreadable = _store(missing, reader, folder, stored)
        known.remember({path: (state, digests[path]) for path, state in states.items() if state and path in digests})
    return stored, found | digests, unreadable


def _look_up(files: Sequence[Path], known: KnownFiles, folder: Path) -> tuple[dict[Path, str], dict[str, Place]]:
    """The digests of files that have not changed since they were packed, and every place by digest."""
    stored = read_packs(folder)
    found: dict[Path, str] = {}
    for path in files:
        state = FileState.of(path)
        digest = known.digest(path, state) if state else None
        if digest is not None and digest in stored:
            found[path] = digest
    return found, stored


def _store(
    files: Sequence[Path], reader: _Reader, folder: Path, stored: dict[str, Place]
) -> tuple[dict[Path, str], dict[Path, UnreadableImageError]]:
    """Pack the files whose content is not in ``stored`` yet, and add their places to it."""
    digests: dict[Path, str] = {}
    unreadable: dict[Path, UnreadableImageError] = {}
    known = set(stored)
    writer = PackWriter(folder)
    done = 0
    try:
        with writer:
            for done, result in enumerate(reader.read(files, known), start=1):
                if isinstance(result, UnreadableImageError):
                    unreadable[result.path] = result
                    continue
                digests[result.path] = result.digest
                # Of two files with the same content both may have been decoded before the first was known.
                if result.image is not None and result.digest not in known:
                    known.add(result.digest)
                    writer.add(result.digest, result.image)
                if done % _FREE_SPACE_EVERY == 0 and writer.bytes_written:
                    _check_room(folder, writer.bytes_written * (len(files) - done) // done)
    except OSError as error:
        needed = writer.bytes_written * len(files) // max(done, 1) - writer.bytes_kept
        raise DataError(_no_room(error, folder, needed)) from error
    stored |= writer.places
    return digests, unreadable


def _check_room(folder: Path, needed: int) -> None:
    if needed > shutil.disk_usage(folder).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _no_room(error: OSError, folder: Path, needed: int) -> str:
    advice = (
        "set NEARKIN_CACHE (from Python cache_dir) to a folder with room, or data.cache=memory (cache_dir=None) "
        "to store nothing"
    )
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"cannot write decoded images to {folder} ({error.strerror or error}); {advice}"
    free = shutil.disk_usage(folder).free
    return (
        f"no room for the decoded images in {folder}: about {needed / 1e6:,.0f} MB more are needed and "
        f"{free / 1e6:,.0f} MB are free; {advice}"
    )


def _readable_rows(
    table: ImageTable, paths: Sequence[Path], unreadable: dict[Path, UnreadableImageError], tolerance: float
) -> list[int]:
    rows = [row for row, path in enumerate(paths) if path not in unreadable]
    lost = len(paths) - len(rows)
    if lost and lost / len(paths) >= tolerance:
        listing = [f"  {error}" for error in list(unreadable.values())[:_LISTED]]
        if len(unreadable) > _LISTED:
            listing.append(f"  ... and {len(unreadable) - _LISTED:,} more")
        if not rows:
            raise DataError(f"none of the {len(paths):,} images of {table.name!r} can be read:\n" + "\n".join(listing))
        raise DataError(
            f"{lost:,} of the {len(paths):,} images of {table.name!r} cannot be read; fewer than {tolerance:.2%} would "
            "be left out:\n" + "\n".join(listing) + "\nRepair or remove these files, or raise "
            "data.unreadable_tolerance (from Python tolerance)."
        )
    return rows


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


T = TypeVar("T")
R = TypeVar("R")


def _in_order(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """``map`` over a pool of threads that runs only a few items ahead, so that few results wait in memory."""
    pending: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool:
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
    return min(cores, _MOST_WORKERS)
