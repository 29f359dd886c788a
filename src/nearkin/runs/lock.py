"""One writer at a time in a folder: the second is told who the first is and since when."""

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
from typing import IO

from nearkin.disk import is_alive, make_folder, output_error, writing
from nearkin.errors import BusyError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"
"""Held by the kernel for the process, and so free again however the process ends; the file itself may stay."""
PROCESS_NAME = ".lock.process"
"""Stands in for it where a system or a file system has no locks: who is named there is looked for."""


@contextlib.contextmanager
def sole_writer_of(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for this process, or say who holds it.

    The folder is made where there is none, and if nothing else has come into it by the end it is taken away again.

    Raises:
        BusyError: where another process holds it.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "run"
    >>> with sole_writer_of(place):
    ...     with sole_writer_of(place):
    ...         pass
    Traceback (most recent call last):
    ...
    nearkin.errors.BusyError: ... is being written by process ... since ...: wait until it has ended, or ...
    >>> place.exists()
    False
    """
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    with contextlib.ExitStack() as stack:
        file, by_kernel = _opened(folder)
        stack.enter_context(file)
        # While the lock is held: whoever opened the file before sees that it is gone and makes another.
        stack.callback(_remove_if_empty, folder, made)
        if by_kernel:
            with writing(folder / NAME, needed=1000):
                file.truncate(0)
                file.write(_who_i_am())
                file.flush()
        else:
            stack.enter_context(_named(folder))
        yield


def _opened(folder: Path) -> tuple[IO[str], bool]:
    """The lock's file, and whether the kernel has given it to this process."""
    while True:
        make_folder(folder)
        with writing(folder / NAME):
            file = open(folder / NAME, "a+", encoding="utf-8")  # noqa: SIM115 - closed by whoever asked for it
        try:
            by_kernel = _locked(file, folder)
        except BusyError:
            file.close()
            raise
        if not by_kernel or _is_still(file, folder / NAME):
            return file, by_kernel
        file.close()


def _locked(file: IO[str], folder: Path) -> bool:
    """Whether the kernel has given this process the lock; False where there are no locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _busy(folder, folder / NAME) from None
    except OSError:
        return False
    return True


def _is_still(file: IO[str], path: Path) -> bool:
    """Whether the file that was locked is the one under that name: the process before may just have taken it away."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _named(folder: Path) -> Iterator[None]:
    path = folder / PROCESS_NAME
    while True:
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(_who_i_am())
            break
        except FileExistsError:
            if is_alive(int(_read(path).get("process", os.getpid()))):
                raise _busy(folder, path) from None
            path.unlink(missing_ok=True)
        except OSError as error:
            raise output_error(error, path) from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _who_i_am() -> str:
    name = Path(sys.argv[0]).name
    known = {
        "process": os.getpid(),
        "machine": platform.node(),
        "since": datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
        "command": shlex.join(["nearkin" if name == "__main__.py" else name, *sys.argv[1:]]),
    }
    return json.dumps(known, ensure_ascii=False)


def _read(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # it was opened this moment and is not written yet
        return {}
    return {key: str(value) for key, value in content.items()} if isinstance(content, dict) else {}


def _busy(folder: Path, path: Path) -> BusyError:
    known = _read(path)
    who = f"process {known['process']}" if "process" in known else "another process"
    if known.get("machine", platform.node()) != platform.node():
        who += f" on {known['machine']}"
    since = f" since {known['since']}" if "since" in known else ""
    command = f" ({known['command']})" if known.get("command") else ""
    return BusyError(
        f"{folder} is being written by {who}{since}{command}: wait until it has ended, or give another folder with -o"
    )


def _remove_if_empty(folder: Path, made: list[Path]) -> None:
    with contextlib.suppress(OSError):
        if made and [entry.name for entry in folder.iterdir()] == [NAME]:
            (folder / NAME).unlink()
            for each in made:
                each.rmdir()
