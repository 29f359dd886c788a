"""Errors whose message tells a person what to do.

The command line prints the message of a :class:`NearkinError` without a traceback and exits with its code, so
scripts can tell a typing mistake (2) from bad data or a full disk (3), a missing extra (4), a run that diverged (5), a
folder that another process writes to (6), one process of several that was lost (7), memory that is full (8) and a run
that was interrupted and can be resumed (130).
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any


class NearkinError(Exception):
    """Something the user can put right; the message says how."""

    exit_code = 1


class RecipeError(NearkinError, ValueError):
    """A recipe, option or command line that cannot be followed."""

    exit_code = 2


@contextlib.contextmanager
def mistakes_in(what: str) -> Iterator[None]:
    """Whatever is wrong with a recipe within, the message begins with where: a file, a row, a key."""
    try:
        yield
    except RecipeError as error:
        raise RecipeError(f"{what}: {error}") from error


class DataError(NearkinError):
    """Files that are missing, unreadable or not in the layout that was expected."""

    exit_code = 3


class OutputError(DataError):
    """A disk that is full, or a folder that cannot be written to."""


class BusyError(NearkinError):
    """A folder that another process is writing to."""

    exit_code = 6


class LostRankError(NearkinError):
    """One of several processes of a run that has ended, or cannot be reached."""

    exit_code = 7


class OutOfMemoryError(NearkinError):
    """Memory, of a GPU or of the machine, that is full in the middle of the work."""

    exit_code = 8


class MissingExtraError(NearkinError, ImportError):
    """An optional dependency that is not installed."""

    exit_code = 4


class TrainingError(NearkinError):
    """A run that cannot continue, for instance because its loss is not finite."""

    exit_code = 5


class InterruptedRunError(TrainingError):
    """A run that was asked to stop and has saved itself."""

    exit_code = 130


def require(module: str, extra: str) -> ModuleType:
    """Import an optional ``module``, or say which extra brings it.

    Some packages fail with ``RuntimeError`` rather than ``ImportError`` when their compiled half does not fit the
    installed torch, so both count as missing.

    >>> require("no_such_module", "search")
    Traceback (most recent call last):
    ...
    nearkin.errors.MissingExtraError: this needs 'no_such_module': pip install 'nearkin[search]' (No module named ...)
    """
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MissingExtraError(f"this needs {module!r}: pip install 'nearkin[{extra}]' ({reason})") from error


def require_torch(what: str) -> None:
    """Refuse ``what`` where torch is not installed, which searching with an exported encoder does not need.

    >>> require_torch("a map")
    """
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise lacks_torch(what) from error


def lacks_torch(what: str) -> MissingExtraError:
    """What to say of ``what`` where torch is not installed."""
    return MissingExtraError(f"{what} needs torch, which is not installed here: pip install torch")


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    """A clause for the end of an error message: the nearest valid spelling, and the list unless it is long.

    >>> did_you_mean("epoch", ["epochs", "batch_size"])
    "did you mean 'epochs'? Valid: batch_size, epochs"
    >>> did_you_mean("zzz", ["epochs", "batch_size"])
    'valid: batch_size, epochs'
    >>> did_you_mean("name42", [f"name{number}" for number in range(99)])
    "did you mean 'name42'?"
    """
    names = sorted(valid)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if near and len(names) > 40:
        return f"did you mean {near[0]!r}?"
    listing = ", ".join(names)
    return f"did you mean {near[0]!r}? Valid: {listing}" if near else f"valid: {listing}"


class Notice(UserWarning):
    """Something a person should know though nothing is wrong enough to stop, such as images that changed since a run.

    The command line prints it as one line; from Python it can be caught or filtered like any warning.
    """


def notice(text: str) -> None:
    """Warn with a :class:`Notice`.

    >>> with warnings.catch_warnings(record=True) as caught:
    ...     notice("2 new images are left out")
    >>> str(caught[0].message)
    '2 new images are left out'
    """
    warnings.warn(text, Notice, stacklevel=2)


@contextlib.contextmanager
def notices_to(show: Callable[[str], None]) -> Iterator[None]:
    """While active, every notice is passed to ``show``, once for each text."""
    shown: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", Notice)
        show_other: Any = warnings.showwarning

        def show_warning(message: Warning | str, category: type[Warning], *args: Any, **options: Any) -> None:
            if not issubclass(category, Notice):
                show_other(message, category, *args, **options)
            elif str(message) not in shown:
                shown.add(str(message))
                show(str(message))

        warnings.showwarning = show_warning
        yield


_GPU_IS_FULL = (
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "MPS backend out of",
)


@contextlib.contextmanager
def catching_out_of_memory() -> Iterator[None]:
    """Memory that is full within becomes an :class:`OutOfMemoryError` that says what to do.

    >>> with catching_out_of_memory():
    ...     raise MemoryError("Unable to allocate 7 TiB")
    Traceback (most recent call last):
    ...
    nearkin.errors.OutOfMemoryError: the machine's memory is full (Unable to allocate 7 TiB): take fewer images ...
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        text = str(error)
        machine = isinstance(error, MemoryError) or "DefaultCPUAllocator" in text
        # torch's class by its name, as torch is too slow to import for a command that does without.
        gpu = type(error).__name__ == "OutOfMemoryError" or any(words in text for words in _GPU_IS_FULL)
        if not machine and not gpu:
            raise
        reason = text.partition("\n")[0].rpartition("DefaultCPUAllocator: ")[2] or "no more could be allocated"
        raise OutOfMemoryError(
            f"the {'machine' if machine else 'GPU'}'s memory is full ({reason}): take fewer images at a time "
            f"(training.batch_size or, for the same training in pieces, training.micro_batch; "
            f"training.evaluation_batch_size), smaller ones (data.image_size), or run fewer programs at a time. What "
            f"was saved is kept: --resume continues from there"
        ) from error


def load_kernels(module: str, try_out: Callable[[ModuleType], object], otherwise: str) -> ModuleType | None:
    """The module, once ``try_out`` has run with it; None where Triton is missing.

    Where Triton is there and cannot build them it is None too, and a warning says what that means: ``otherwise``.
    """
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        kernels = importlib.import_module(module)
        try_out(kernels)
    except Exception as error:  # whatever a compiler that is missing or does not fit may raise
        warnings.warn(f"{otherwise}: {error}", stacklevel=3)
        return None
    return kernels
