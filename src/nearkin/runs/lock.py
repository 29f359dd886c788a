"""One writer at a time in a folder. The second is told which process the first is; reading needs no lock."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import filelock

from nearkin.disk import make_folder, output_error, writing
from nearkin.errors import BusyError

LOCK = ".lock"
"""Locked by the operating system, which releases it however the process ends. The file itself stays."""
HOLDER = ".lock.json"
"""Describes the process that holds the lock."""


@contextlib.contextmanager
def sole_writer_of(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for this process. The folder is made if missing, and removed again if it stays empty.

    Raises:
        BusyError: where another process holds it.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "run"
    >>> with sole_writer_of(folder):
    ...     with sole_writer_of(folder):
    ...         pass
    Traceback (most recent call last):
    ...
    nearkin.errors.BusyError: ... is being written by process ... since ...: wait until it has ended, or ...
    >>> folder.exists()
    False
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    make_folder(folder)
    lock = filelock.FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise BusyError(
            f"{folder} is being written by {_holder(folder)}: wait until it has ended, or give another folder with -o"
        ) from None
    except OSError as error:
        raise output_error(error, folder / LOCK) from error
    try:
        with writing(folder / HOLDER, needed=1000):
            (folder / HOLDER).write_text(json.dumps(_this_process()), encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            (folder / HOLDER).unlink()
            # While the lock is held: a process that waits for the file sees that it is gone, and makes another.
            if missing and [file.name for file in folder.iterdir()] == [LOCK]:
                (folder / LOCK).unlink()
                for path in missing:
                    path.rmdir()
        lock.release()


def _this_process() -> dict[str, str]:
    name = Path(sys.argv[0]).name
    return {
        "process": str(os.getpid()),
        "machine": platform.node(),
        "since": datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
        "command": shlex.join(["nearkin" if name == "__main__.py" else name, *sys.argv[1:]]),
    }


def _holder(folder: Path) -> str:
    try:
        holder = json.loads((folder / HOLDER).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the other process has not written it yet
        return "another process"
    elsewhere = f" on {holder['machine']}" if holder["machine"] != platform.node() else ""
    return f"process {holder['process']}{elsewhere} since {holder['since']} ({holder['command']})"
