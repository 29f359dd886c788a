"""Writing files: completely or not at all, one process at a time, with errors that say what the disk lacks."""

from __future__ import annotations

import contextlib
import datetime
import errno
import math
import os
import platform
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import filelock

from nearkin.errors import BusyError, OutputError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSED = (*FULL, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR)
"""The errors of a disk or folder that cannot be written to."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that at any moment it has either the old or the new content."""
    with writing(path, needed=len(content)), replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A temporary file that becomes ``path`` once its content is on the disk, and is removed after an error."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def writing(path: Path, *, needed: int | None = None, flag: str = "-o") -> Iterator[None]:
    """Turn an OSError into an :class:`OutputError` with ``path``, the disk's free space and the ``flag`` to change."""
    try:
        yield
    except OSError as error:
        raise output_error(error, path, needed=needed, flag=flag) from error


def output_error(
    error: OSError, path: Path | None = None, *, needed: int | None = None, advice: str | None = None, flag: str = "-o"
) -> OutputError:
    """One line about a file that could not be written, with ``advice`` instead of the usual one."""
    where = path or (Path(os.fsdecode(error.filename)) if error.filename else None)
    what = f"cannot write {where or 'the output'}: {error.strerror or error}"
    if error.errno in FULL:
        room = "" if needed is None else f", {_size(needed)} needed"
        with contextlib.suppress(OSError):
            room = f" ({_size(shutil.disk_usage(_existing(where or Path.cwd())).free)} free{room})"
        usual = f"Existing files are unchanged: make room, or write elsewhere with {flag}"
        return OutputError(f"{what}{room}. {advice or usual}")
    return OutputError(f"{what}. {advice or f'Give a folder that can be written to with {flag}'}")


def make_folder(folder: Path, *, flag: str = "-o") -> None:
    """Make ``folder`` and its parents."""
    with writing(folder, flag=flag):
        folder.mkdir(parents=True, exist_ok=True)


def check_writable(folder: Path) -> None:
    """Raise an error if no file can be made in ``folder``."""
    probe = _existing(folder) / f".writable.{os.getpid()}.tmp"
    with writing(folder):
        probe.touch()
        probe.unlink()


def check_room(folder: Path, needed: int, what: str) -> None:
    """Raise an error if the disk has less than ``needed`` bytes free for ``what``."""
    free = shutil.disk_usage(_existing(folder)).free
    if free < needed:
        figures = f"about {_size(needed)} are needed and {math.floor(free / 1e5) / 10:,.1f} MB are free"
        raise OutputError(f"no room for {what} in {folder}: {figures}. Make room, or give another folder with -o")


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of killed processes; the caller must be the folder's sole writer."""
    for file in folder.glob(".*.*.tmp"):
        file.unlink(missing_ok=True)


def _existing(path: Path) -> Path:
    """The path itself or the nearest folder above it that exists."""
    path = path.absolute()
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path


def _size(count: int) -> str:
    """Megabytes, rounded up, so that a need is never 0.0 MB."""
    return f"{math.ceil(count / 1e5) / 10:,.1f} MB"


LOCK, HOLDER = ".lock", ".lock.txt"
"""The operating system locks the first until the process ends in whatever way; the second names the process."""


@contextlib.contextmanager
def sole_writer_of(folder: Path, *, flag: str = "-o") -> Iterator[None]:
    """Lock ``folder`` for this process, or raise :class:`BusyError`.

    The folder is made if missing, and removed again if it stays empty.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    make_folder(folder, flag=flag)
    lock = filelock.FileLock(folder / LOCK, timeout=0)
    with writing(folder / LOCK):
        try:
            lock.acquire()
        except filelock.Timeout:
            busy = f"{folder} is being written by {_holder(folder)}"
            raise BusyError(f"{busy}: wait until it has ended, or give another folder with {flag}") from None
    try:
        with writing(folder / HOLDER, needed=1000):
            (folder / HOLDER).write_text(_this_process(), encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            (folder / HOLDER).unlink()
            # Removed while locked: a process that waits for the file notices, and makes another.
            if missing and [file.name for file in folder.iterdir()] == [LOCK]:
                (folder / LOCK).unlink()
                for path in missing:
                    path.rmdir()
        lock.release()


def _this_process() -> str:
    name = Path(sys.argv[0]).name
    command = shlex.join(["nearkin" if name == "__main__.py" else name, *sys.argv[1:]])
    since = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    return f"process {os.getpid()} since {since} on {platform.node()} ({command})"


def writer_of(folder: Path) -> str | None:
    """A description of the process that writes to ``folder`` now, or None."""
    try:
        with filelock.FileLock(folder / LOCK, timeout=0):
            return None
    except filelock.Timeout:
        return _holder(folder)
    except OSError:  # a folder that can only be read
        return None


def _holder(folder: Path) -> str:
    with contextlib.suppress(OSError):
        if text := (folder / HOLDER).read_text(encoding="utf-8"):
            return text
    return "another process"  # which has not written its name yet
