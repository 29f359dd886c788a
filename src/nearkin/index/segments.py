"""Rows of numbers on disk: appended, cleared when removed, and read as memory-mapped files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nearkin.disk import make_folder, writing
from nearkin.errors import DataError

ROWS_PER_SEGMENT = 1 << 16  # some systems refuse a writable map of a file that is larger than their memory


class Segments:
    """An array ``[rows, width]`` in the files of a folder.

    The number of valid rows is stored elsewhere: a killed writer may leave more rows than it has recorded.

    >>> import tempfile
    >>> rows = Segments(Path(tempfile.mkdtemp()) / "vectors", 2, np.float32, rows_per_segment=2)
    >>> rows.append(0, np.arange(6).reshape(3, 2))
    >>> rows.show(3)
    >>> rows.available(), rows.take(np.array([2, 0])).tolist()
    (3, [[4.0, 5.0], [0.0, 1.0]])
    """

    def __init__(self, folder: Path, width: int, dtype: DTypeLike, *, rows_per_segment: int = ROWS_PER_SEGMENT) -> None:
        self.folder, self.width, self.dtype = folder, width, np.dtype(dtype)
        self.rows_per_segment = rows_per_segment
        self._row_bytes = width * self.dtype.itemsize
        self.rows = 0
        """Rows that are mapped."""
        self.maps: list[NDArray[Any]] = []
        """The mapped rows, segment by segment."""

    def append(self, first: int, values: NDArray[Any]) -> None:
        """Write ``values`` durably from row ``first`` on, replacing everything there and behind."""
        values = np.ascontiguousarray(values, dtype=self.dtype)
        make_folder(self.folder)
        for segment, start, stop in self._parts(first, first + len(values)):
            path, row = self._path(segment), segment * self.rows_per_segment + start - first
            with writing(path, needed=values.nbytes):
                new = not path.exists()
                with open(path, "wb" if new else "r+b") as file:
                    file.truncate(start * self._row_bytes)
                    file.seek(start * self._row_bytes)
                    file.write(values[row : row + stop - start].tobytes())
                    file.flush()
                    os.fsync(file.fileno())
                if new and os.name != "nt":  # make the file's name durable, too
                    handle = os.open(self.folder, os.O_RDONLY)
                    try:
                        os.fsync(handle)
                    finally:
                        os.close(handle)

    def truncate(self, rows: int) -> None:
        """Delete all but the first ``rows``."""
        segment, start = divmod(rows, self.rows_per_segment)
        while (path := self._path(segment)).exists():
            with writing(path):
                if start:
                    os.truncate(path, min(start * self._row_bytes, path.stat().st_size))
                else:
                    path.unlink()
            segment, start = segment + 1, 0

    def clear(self, rows: NDArray[np.int64]) -> None:
        """Overwrite single rows by zeros, durably; rows that do not exist are ignored."""
        segments, offsets = np.divmod(rows[rows < self.available()], self.rows_per_segment)
        for segment in np.unique(segments).tolist():
            path = self._path(segment)
            with writing(path), open(path, "r+b") as file:
                for offset in offsets[segments == segment].tolist():
                    file.seek(offset * self._row_bytes)
                    file.write(bytes(self._row_bytes))
                file.flush()
                os.fsync(file.fileno())

    def available(self) -> int:
        """The number of whole rows on the disk."""
        rows = segment = 0
        while (path := self._path(segment)).exists():
            count = min(path.stat().st_size // self._row_bytes, self.rows_per_segment)
            rows, segment = rows + count, segment + 1
            if count < self.rows_per_segment:
                break
        return rows

    def show(self, rows: int) -> None:
        """Map the first ``rows``, for :attr:`maps` and :meth:`take`."""
        maps = []
        for segment, _, stop in self._parts(0, rows):
            path = self._path(segment)
            if not path.exists() or path.stat().st_size < stop * self._row_bytes:
                raise DataError(f"{path} is missing or too short, so the index is damaged: make it again")
            kept = self.maps[segment] if segment < len(self.maps) else None
            if kept is None or len(kept) != stop:
                # Copy on write, as PyTorch warns of read-only arrays; nothing is ever written.
                kept = np.memmap(path, self.dtype, mode="c", shape=(stop, self.width))
            maps.append(kept)
        self.maps, self.rows = maps, rows

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """A copy of ``rows``, in their order."""
        taken = np.empty((len(rows), self.width), dtype=self.dtype)
        segments, offsets = np.divmod(rows, self.rows_per_segment)
        for segment in np.unique(segments).tolist():
            inside = segments == segment
            taken[inside] = self.maps[segment][offsets[inside]]
        return taken

    def _path(self, segment: int) -> Path:
        return self.folder / f"{segment:06d}.{self.dtype.name}"

    def _parts(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """The segments with rows ``first`` up to ``last``, and the first and last row within each."""
        while first < last:
            segment, start = divmod(first, self.rows_per_segment)
            stop = min(self.rows_per_segment, start + last - first)
            yield segment, start, stop
            first += stop - start
