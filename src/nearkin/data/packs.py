"""The files of the cache: immutable packs of raw pixels, looked up by the content of the files they came from.

A pack is ``<name>.bin``, the pixels of many images one after another, and ``<name>.npz``, its index. The index is
moved into place last, so a ``.bin`` without one was left by a process that was killed: it is never read.
"""

from __future__ import annotations

import contextlib
import mmap
import secrets
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nearkin.disk import replacing
from nearkin.errors import DataError

PACK_BYTES = 1 << 30  # a run that is killed loses at most this much decoded work

_STALE_SECONDS = 24 * 3600


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
        self.bytes_written = 0
        self.bytes_kept = 0

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
        self._unfinished[digest] = PackEntry(self._pack, self.bytes_written - self.bytes_kept, *image.shape[:2])
        self.bytes_written += image.nbytes
        if self.bytes_written - self.bytes_kept >= self._pack_bytes:
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
        self.bytes_kept = self.bytes_written
        self._file, self._unfinished = None, {}


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
