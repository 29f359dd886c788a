"""Opening a table of images: every file is decoded once and kept, and unreadable ones are found before training.

A cache folder holds ``files.json``, which remembers the content of each file by its path, size and time of change, and
one folder of packs for each way of decoding. A pack is immutable: ``<name>.bin`` has the pixels of many images one
after another, and ``<name>.npz`` says by the digest of each image's file where its pixels are. The index is moved into
place last, so a ``.bin`` without one was left by a process that was killed: it is never read.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
import time
import zipfile
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, TypeVar

import filelock
import numpy as np
from numpy.typing import NDArray

from nearkin.data.folder import some_of
from nearkin.data.images import UnreadableImageError, decode, decode_bytes, read_file
from nearkin.data.table import ImageTable
from nearkin.disk import output_error, replacing
from nearkin.errors import DataError

SHORTER_SIDE = 256
TOLERANCE = 0.01
MEMORY_BUDGET = 4 << 30
PACK_BYTES = 1 << 30  # a run that is killed loses at most this much decoded work
DECODED, GLYPHS = "decoded", "glyphs"

# Part of the name of a pack's folder: raise it whenever decoding or shrinking gives other pixels than before.
_PIXELS_VERSION = 1

_ADVICE = (
    "Decoded images are kept there: set NEARKIN_CACHE (from Python cache_dir) to another folder with room for them, or "
    "data.cache=memory (cache_dir=None) to store nothing"
)
_LISTED = 20
_SETTLED_NS = 2_000_000_000
_STALE_SECONDS = 24 * 3600

Progress = Callable[[int, int], None]
T = TypeVar("T")
R = TypeVar("R")


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
    """A hash of the content of each row's file, or of its pixels where the table holds them in memory. It stays the
    same when an image is moved or renamed."""


def cache_root() -> Path:
    """The folder for what is decoded or rendered once: ``NEARKIN_CACHE``, else the user's cache folder."""
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

    reader = _Reader(shorter_side, workers or usable_cores(), progress)
    paths = [Path(image) for image in table.images]
    files = list(dict.fromkeys(paths))
    decoded: dict[Path, NDArray[np.uint8]] = {}
    if cache_dir is None:
        for path, image in reader.read(files, known=()):
            if image.nbytes <= memory_budget:
                memory_budget -= image.nbytes
                decoded[path] = image
    else:
        entries = _pack(files, reader, Path(cache_dir))
    rows = _readable_rows(table, paths, reader.unreadable, tolerance)
    paths = [paths[row] for row in rows]
    digests = tuple(reader.digests[path] for path in paths)
    images: Images
    if cache_dir is None:
        images = MemoryImages(paths, decoded, shorter_side)
    else:
        images = PackedImages([entries[digest] for digest in digests])
    if reader.unreadable:
        table = table.take(rows)
    return OpenedImages(table, images, tuple(reader.unreadable.values()), digests)


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
    """Images decoded from files, as many as there was memory for; the others are decoded when asked for."""

    paths: Sequence[Path]
    decoded: Mapping[Path, NDArray[np.uint8]]
    shorter_side: int

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int, /) -> NDArray[np.uint8]:
        path = self.paths[row]
        if path in self.decoded:
            return self.decoded[path]
        return decode(path, shorter_side=self.shorter_side)


@dataclass(frozen=True)
class _Reader:
    """Reads, hashes and decodes files in threads: Pillow's decoders and resampling release the interpreter's lock.

    It keeps the digest of every file that has been read, or the error.
    """

    shorter_side: int
    workers: int
    progress: Progress | None
    digests: dict[Path, str] = field(default_factory=dict)
    unreadable: dict[Path, UnreadableImageError] = field(default_factory=dict)

    def read(self, files: Sequence[Path], known: Container[str]) -> Iterator[tuple[Path, NDArray[np.uint8]]]:
        """Path and pixels of the files, in order, without those whose digest is ``known``."""

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
                self.digests[path], image = result
                if image is not None:
                    yield path, image
            if self.progress is not None:
                self.progress(done, len(files))


def _pack(files: Sequence[Path], reader: _Reader, cache_dir: Path) -> dict[str, PackEntry]:
    """Every pack entry by digest, after the files that are in no pack yet have been put into new ones."""
    folder = cache_dir / f"pixels{_PIXELS_VERSION}-side{reader.shorter_side}"

    def look_up(digests: FileDigests) -> tuple[dict[str, PackEntry], list[Path]]:
        stored = read_packs(folder)
        known = {path: digest for path in files if (digest := digests.get(path)) in stored}
        reader.digests.update(known)
        return stored, [path for path in files if path not in known]

    stored, missing = look_up(FileDigests(cache_dir))
    if not missing:
        return stored
    # Runs that start together decode each image once between them.
    with writer_lock(folder):
        remove_damaged_packs(cache_dir)
        remove_damaged_packs(folder)
        digests = FileDigests(cache_dir)
        stored, missing = look_up(digests)
        # Before reading, so that a change during it is noticed the next time.
        states = {path: file_state(path) for path in missing}
        stored |= _store(missing, reader, folder, set(stored))
        read = [path for path in missing if path not in reader.unreadable]
        digests.remember({path: (state, reader.digests[path]) for path in read if (state := states[path])})
    return stored


def _store(files: Sequence[Path], reader: _Reader, folder: Path, known: set[str]) -> dict[str, PackEntry]:
    """Pack the files whose content is not ``known`` yet."""
    writer = PackWriter(folder)
    try:
        with writer:
            for path, image in reader.read(files, known):
                digest = reader.digests[path]
                # Of two files with the same content both may have been decoded before the first was known.
                if digest not in known:
                    known.add(digest)
                    writer.add(digest, image)
    except OSError as error:
        raise output_error(error, folder, advice=_ADVICE) from error
    return writer.entries


def _readable_rows(
    table: ImageTable, paths: Sequence[Path], unreadable: dict[Path, UnreadableImageError], tolerance: float
) -> list[int]:
    rows = [row for row, path in enumerate(paths) if path not in unreadable]
    lost = len(paths) - len(rows)
    if lost and lost / len(paths) >= tolerance:
        listing = some_of([str(error) for error in unreadable.values()], most=_LISTED)
        if not rows:
            raise DataError(f"none of the {len(paths):,} images of {table.name!r} can be read:\n{listing}")
        raise DataError(
            f"{lost:,} of the {len(paths):,} images of {table.name!r} cannot be read; fewer than {tolerance:.2%} would "
            f"be left out:\n{listing}\nRepair or remove these files, or raise data.unreadable_tolerance (from Python "
            "tolerance)."
        )
    return rows


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


FileState = tuple[int, int]
"""Size and time of change: while both are the same, a file counts as unchanged without being read."""


def file_state(path: Path) -> FileState | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns


class FileDigests:
    """Digests of files seen before, by path, valid while size and time of change are the same."""

    def __init__(self, cache_dir: Path) -> None:
        self._path = cache_dir / "files.json"
        self._entries = self._read()

    def _read(self) -> dict[str, list[object]]:
        try:
            entries = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return entries if isinstance(entries, dict) else {}

    def get(self, path: Path) -> str | None:
        match self._entries.get(os.path.abspath(path)):
            case [int(size), int(time_of_change), str(digest)] if file_state(path) == (size, time_of_change):
                return digest
        return None

    def remember(self, digests: Mapping[Path, tuple[FileState, str]]) -> None:
        """Add entries and write the file again, with what other processes have added meanwhile.

        A file changed a moment ago could change again within the resolution of its time stamp, so it is not
        remembered until it has settled. Where nothing can be written, the files will be read again the next time.
        """
        settled = time.time_ns() - _SETTLED_NS
        new: dict[str, list[object]] = {
            os.path.abspath(path): [*state, digest] for path, (state, digest) in digests.items() if state[1] < settled
        }
        if not new:
            return
        self._entries = self._read() | new
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._path) as file:
                file.write(json.dumps(self._entries).encode())


@contextlib.contextmanager
def writer_lock(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Held by the one process that writes packs to ``folder`` or removes them.

    Packs are safe without it, so a file system that has no locks does not stop a run.

    Raises:
        filelock.Timeout: without ``wait``, when another process holds it.
    """
    lock = filelock.FileLock(folder / "writer.lock", timeout=-1 if wait else 0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except filelock.Timeout:
        raise
    except (OSError, NotImplementedError):
        pass
    try:
        yield
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

    Safe to read from many threads. Pickling carries the entries, not the pixels: the receiver maps the same files.
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


def read_packs(folder: Path) -> dict[str, PackEntry]:
    """Every image in the whole packs of ``folder``, by the digest of the file it was decoded from."""
    entries: dict[str, PackEntry] = {}
    for index in sorted(folder.glob("*.npz")):
        entries.update(_read_pack(index) or {})
    return entries


def _read_pack(index: Path) -> dict[str, PackEntry] | None:
    """The images of one pack, or ``None`` where its two files do not fit together."""
    pack = index.with_suffix(".bin")
    try:
        with np.load(index, allow_pickle=False) as arrays:
            digests, rows = arrays["digests"].astype(np.str_), arrays["rows"]
        if rows.shape != (len(digests), 3) or pack.stat().st_size != 3 * int(rows[:, 1] @ rows[:, 2]):
            return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return {digest: PackEntry(pack, *row) for digest, row in zip(digests.tolist(), rows.tolist(), strict=True)}


class PackWriter:
    """Writes images into new packs of about ``pack_bytes`` each; leaving the ``with`` block keeps the last one too."""

    def __init__(self, folder: Path, *, pack_bytes: int = PACK_BYTES) -> None:
        self._folder = folder
        self._pack_bytes = pack_bytes
        self._open = contextlib.ExitStack()
        self._file: IO[bytes] | None = None
        self._pack = folder
        self._unfinished: dict[str, PackEntry] = {}
        self.entries: dict[str, PackEntry] = {}
        self._bytes = 0

    def __enter__(self) -> PackWriter:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: Any) -> None:
        # After a failed write (a full disk) the open pack is not worth saving; after Ctrl-C it is.
        if error_type is None or issubclass(error_type, KeyboardInterrupt):
            self._finish_pack()
        else:
            self._open.__exit__(error_type, *error)

    def add(self, digest: str, image: NDArray[np.uint8]) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._pack = self._folder / f"{secrets.token_hex(8)}.bin"
            self._file = self._open.enter_context(replacing(self._pack))
        self._file.write(np.ascontiguousarray(image).data)
        self._unfinished[digest] = PackEntry(self._pack, self._bytes, *image.shape[:2])
        self._bytes += image.nbytes
        if self._bytes >= self._pack_bytes:
            self._finish_pack()

    def _finish_pack(self) -> None:
        if not self._unfinished:
            return
        self._open.close()
        try:
            with replacing(self._pack.with_suffix(".npz")) as index:
                rows = np.array([entry[1:] for entry in self._unfinished.values()], dtype=np.int64)
                np.savez(index, digests=np.array(list(self._unfinished), dtype=np.bytes_), rows=rows)
        except OSError:
            _remove(self._pack)
            raise
        self.entries |= self._unfinished
        self._file, self._unfinished, self._bytes = None, {}, 0


def remove_damaged_packs(folder: Path) -> None:
    """Remove packs that do not fit their index, and what killed processes left behind more than a day ago."""
    for index in folder.glob("*.npz"):
        if _read_pack(index) is None:
            _remove(index)
            _remove(index.with_suffix(".bin"))
    for leftover in (*folder.glob("*.tmp"), *folder.glob("*.bin")):
        with contextlib.suppress(OSError):
            old = time.time() - leftover.stat().st_mtime > _STALE_SECONDS
            if old and not leftover.with_suffix(".npz").exists():
                _remove(leftover)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def threaded_map(function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """``map`` over a pool of threads that runs only a few items ahead, so that few results wait in memory.

    >>> list(threaded_map(abs, [-1, 2, -3], workers=2))
    [1, 2, 3]
    """
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
    """The files that nearkin keeps below a cache folder, and their bytes; other files there do not count."""
    patterns = [f"{DECODED}/pixels[0-9]*-side[0-9]*/*.{ending}" for ending in ("bin", "npz", "tmp", "lock")]
    sizes = {}
    for pattern in (*patterns, f"{DECODED}/files.json", f"{DECODED}/.files.json.*.tmp", f"{GLYPHS}/glyphs-*.npz"):
        for file in sorted(root.glob(pattern)):
            with contextlib.suppress(FileNotFoundError):  # a temporary file that was renamed meanwhile
                sizes[file] = file.stat().st_size
    return sizes


def clear_cache(root: Path) -> None:
    """Remove the :func:`cached_files`, and nothing else.

    Runs that read the cache keep what they have opened. While another process writes to it, nothing is removed.
    """
    folders = [folder for folder in (root / DECODED).glob("pixels[0-9]*-side[0-9]*") if folder.is_dir()]
    with contextlib.ExitStack() as locks:
        for folder in folders:
            try:
                locks.enter_context(writer_lock(folder, wait=False))
            except filelock.Timeout as error:
                raise DataError(
                    f"another process is decoding images into {str(folder)!r}: wait until it is done, then clear again"
                ) from error
        for file in cached_files(root):
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                raise DataError(f"cannot remove {str(file)!r} ({error.strerror or error})") from error
    for folder in (*folders, root / DECODED, root / GLYPHS):
        with contextlib.suppress(OSError):
            folder.rmdir()
