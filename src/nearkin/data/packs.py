"""Decoded images on disk: immutable packs of raw pixels, found again by the content of the files they came from.

A cache folder holds ``files.json``, which remembers the content of each file by its path, size and time of change, and
one folder for each way of decoding with its packs. A pack is ``<name>.bin``, the pixels of many images one after
another, and ``<name>.npz``, which says where each image lies. The index is moved into place last, so a pack without
one is the remains of a process that was killed; it is never read, and is swept away when it is old.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nearkin.disk import replacing
from nearkin.errors import DataError

try:
    import fcntl
except ImportError:  # not on Windows; packs are safe without the lock, which only spares two processes the same work
    fcntl = None  # type: ignore[assignment]

PACK_BYTES = 1 << 30  # a killed run loses at most this much decoded work

# Held by every process that writes packs, shared, and alone by one that removes them.
_WRITERS = "writers.lock"

_STALE_SECONDS = 24 * 3600
_SETTLED_NS = 2_000_000_000


class Place(NamedTuple):
    """Where an image lies: in which pack, from which byte on, and its shape."""

    pack: Path
    offset: int
    height: int
    width: int


class PackedImages:
    """Rows of a table, each a read-only view ``[H, W, 3]`` into a memory-mapped pack.

    Safe to read from many threads. Pickling carries the places, not the pixels: the receiver maps the same files.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self._packs = list(dict.fromkeys(place.pack for place in places))
        number = {pack: index for index, pack in enumerate(self._packs)}
        rows = [(number[place.pack], *place[1:]) for place in places]
        self._places = np.array(rows, dtype=np.int64).reshape(-1, 4)
        self._maps = [_map(pack) for pack in self._packs]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        pack, offset, height, width = self._places[row].tolist()
        pixels: NDArray[np.uint8] = self._maps[pack][offset : offset + height * width * 3]
        return pixels.reshape(height, width, 3)

    def __getstate__(self) -> dict[str, object]:
        return {"_packs": self._packs, "_places": self._places}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._maps = [_map(pack) for pack in self._packs]


def _map(pack: Path) -> NDArray[np.uint8]:
    try:
        with open(pack, "rb") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
    except (OSError, ValueError) as error:
        raise DataError(f"the decoded images in {pack} are gone ({error}); run again to decode them anew") from error


def read_packs(folder: Path) -> dict[str, Place]:
    """Every image in the whole packs of ``folder``, by the digest of the file it was decoded from."""
    places: dict[str, Place] = {}
    for index in sorted(folder.glob("*.npz")):
        places.update(_read_pack(index) or {})
    return places


def _read_pack(index: Path) -> dict[str, Place] | None:
    """The images of one pack, or ``None`` where its two files do not fit together."""
    pack = index.with_suffix(".bin")
    try:
        with np.load(index, allow_pickle=False) as arrays:
            digests, rows = arrays["digests"], arrays["rows"]
        if rows.shape != (len(digests), 3) or pack.stat().st_size != 3 * int(rows[:, 1] @ rows[:, 2]):
            return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return {
        digest: Place(pack, *row) for digest, row in zip(digests.astype(np.str_).tolist(), rows.tolist(), strict=True)
    }


class PackWriter:
    """Writes images into new packs of about ``pack_bytes`` each; leaving the ``with`` block keeps the last one too."""

    def __init__(self, folder: Path, *, pack_bytes: int = PACK_BYTES) -> None:
        self._folder = folder
        self._pack_bytes = pack_bytes
        self._open = contextlib.ExitStack()
        self._file: IO[bytes] | None = None
        self._pack = folder
        self._begun: dict[str, Place] = {}
        self.places: dict[str, Place] = {}
        self.bytes_written = 0
        self.bytes_kept = 0

    def __enter__(self) -> PackWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        # After a failed write (a full disk) the open pack is not worth saving; after Ctrl-C it is.
        if kind is None or issubclass(kind, KeyboardInterrupt):
            self._finish_pack()
        else:
            self._open.__exit__(kind, *error)

    def add(self, digest: str, image: NDArray[np.uint8]) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._pack = self._folder / f"{secrets.token_hex(8)}.bin"
            self._file = self._open.enter_context(replacing(self._pack))
        self._file.write(np.ascontiguousarray(image).data)
        self._begun[digest] = Place(self._pack, self.bytes_written - self.bytes_kept, *image.shape[:2])
        self.bytes_written += image.nbytes
        if self.bytes_written - self.bytes_kept >= self._pack_bytes:
            self._finish_pack()

    def _finish_pack(self) -> None:
        if not self._begun:
            return
        self._open.close()
        try:
            with replacing(self._pack.with_suffix(".npz")) as index:
                np.savez(
                    index,
                    digests=np.array(list(self._begun), dtype=np.bytes_),
                    rows=np.array([place[1:] for place in self._begun.values()], dtype=np.int64),
                )
        except OSError:
            _remove(self._pack)
            raise
        self.places |= self._begun
        self.bytes_kept = self.bytes_written
        self._file, self._begun = None, {}


FileState = tuple[int, int]
"""Size and time of change, which tell without reading a file that it has not changed."""


def file_state(path: Path) -> FileState | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns


class KnownFiles:
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

    def digest(self, path: Path) -> str | None:
        match self._entries.get(os.path.abspath(path)):
            case [int(size), int(time_of_change), str(digest)] if file_state(path) == (size, time_of_change):
                return digest
        return None

    def remember(self, digests: Mapping[Path, tuple[FileState, str]]) -> None:
        """Add entries and write the file anew, with what other processes have added meanwhile.

        A file changed a moment ago could change again within the resolution of its time stamp, so it is not
        remembered until it has settled; until then it is known by its content only. Where nothing can be written
        nothing is lost but time: the files will be read again.
        """
        settled = time.time_ns() - _SETTLED_NS
        fresh: dict[str, list[object]] = {
            os.path.abspath(path): [*state, digest] for path, (state, digest) in digests.items() if state[1] < settled
        }
        if not fresh:
            return
        self._entries = self._read() | fresh
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._path) as file:
                file.write(json.dumps(self._entries).encode())


@contextlib.contextmanager
def sole_writer(folder: Path, work: str) -> Iterator[None]:
    """Wait for other processes that do the same ``work`` on ``folder``, so that runs started together decode each
    image once between them. Packs are safe without it: a file system that has no locks does not stop a run."""
    with contextlib.ExitStack() as stack:
        if fcntl is not None:
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                fcntl.flock(stack.enter_context(open(folder / _WRITERS, "wb")), fcntl.LOCK_SH)
                fcntl.flock(stack.enter_context(open(folder / f"{work}.lock", "wb")), fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def no_writer(folder: Path) -> Iterator[bool]:
    """Whether no process writes packs to ``folder``; if so, none begins to until the block is left."""
    with contextlib.ExitStack() as stack:
        if fcntl is not None:
            try:
                fcntl.flock(stack.enter_context(open(folder / _WRITERS, "wb")), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError:  # a file system without locks, or one that cannot be written to anyway
                pass
        yield True


def sweep(folder: Path) -> None:
    """Remove packs that do not fit their index, and what killed processes left behind a day ago or earlier."""
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
