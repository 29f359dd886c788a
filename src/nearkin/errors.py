"""Errors whose message says what to do. The command line prints it and exits with the error's code."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any


class NearkinError(Exception):
    """An error that the user can fix; the message says how."""

    exit_code = 1


class RecipeError(NearkinError, ValueError):
    """An invalid recipe, option or command line."""

    exit_code = 2


@contextlib.contextmanager
def mistakes_in(what: str) -> Iterator[None]:
    """Prefix the message of a :class:`RecipeError` with its place: a file, a row, a key."""
    try:
        yield
    except RecipeError as error:
        raise RecipeError(f"{what}: {error}") from error


class DataError(NearkinError):
    """Files that are missing, unreadable or not in the expected layout."""

    exit_code = 3


class OutputError(DataError):
    """A full disk, or a folder that cannot be written to."""


class BusyError(NearkinError):
    """A folder that another process is writing to."""

    exit_code = 6


class LostRankError(NearkinError):
    """A process of a run that has ended or cannot be reached."""

    exit_code = 7


class OutOfMemoryError(NearkinError):
    """The memory of a GPU or of the machine is full."""

    exit_code = 8


class MissingExtraError(NearkinError, ImportError):
    """An optional dependency that is not installed."""

    exit_code = 4


class TrainingError(NearkinError):
    """A run that cannot continue, for instance because its loss is not finite."""

    exit_code = 5


class InterruptedRunError(TrainingError):
    """A run that was interrupted after saving its state."""

    exit_code = 130


def require(module: str, extra: str) -> ModuleType:
    """Import an optional ``module``, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError, OSError) as error:  # the latter two where its compiled part does not fit torch
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MissingExtraError(f"this needs {module!r}: pip install 'nearkin[{extra}]' ({reason})") from error


def require_torch(what: str) -> None:
    """Raise an error where torch is not installed, as it need not be for searching with an exported encoder."""
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise MissingExtraError(f"{what} needs torch, which is not installed here: pip install torch") from error


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    """A clause for the end of an error message: the nearest valid spelling, and the list of all unless it is long.

    >>> did_you_mean("epoch", ["epochs", "batch_size"])
    "did you mean 'epochs'? Valid: batch_size, epochs"
    >>> did_you_mean("zzz", ["epochs", "batch_size"])
    'valid: batch_size, epochs'
    >>> did_you_mean("name42", [f"name{number}" for number in range(99)])
    "did you mean 'name42'?"
    """
    names = sorted(valid)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if not near:
        return f"valid: {', '.join(names)}"
    return f"did you mean {near[0]!r}?" + (f" Valid: {', '.join(names)}" if len(names) <= 40 else "")


class Notice(UserWarning):
    """A warning that the user should see, such as images that changed since a run."""


def notice(text: str) -> None:
    """Warn with a :class:`Notice`."""
    warnings.warn(text, Notice, stacklevel=2)


@contextlib.contextmanager
def notices_to(show: Callable[[str], None]) -> Iterator[None]:
    """Pass every notice to ``show``, once for each text."""
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


_GPU_IS_FULL = re.compile("CUDA error: out of memory|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED|MPS backend out of")


@contextlib.contextmanager
def catching_out_of_memory() -> Iterator[None]:
    """Turn torch's and Python's errors about full memory into an :class:`OutOfMemoryError` that says what to do."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        text = str(error)
        machine = isinstance(error, MemoryError) or "DefaultCPUAllocator" in text
        # torch's class by name, as importing torch would slow down commands that do not need it.
        if not machine and type(error).__name__ != "OutOfMemoryError" and not _GPU_IS_FULL.search(text):
            raise
        reason = text.partition("\n")[0].rpartition("DefaultCPUAllocator: ")[2] or "no more could be allocated"
        raise OutOfMemoryError(
            f"the {'machine' if machine else 'GPU'}'s memory is full ({reason}): take fewer images at a time "
            f"(training.micro_batch, training.batch_size, training.evaluation_batch_size), smaller ones "
            f"(data.image_size), or run fewer programs. --resume continues from what was saved"
        ) from error


def load_kernels(module: str, try_out: Callable[[ModuleType], object], otherwise: str) -> ModuleType | None:
    """Import a ``module`` of kernels and run ``try_out`` with it; None without Triton.

    Where Triton cannot build them it is None too, with a warning that starts with ``otherwise``.
    """
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        kernels = importlib.import_module(module)
        try_out(kernels)
    except Exception as error:  # a missing or unfit compiler may raise anything
        warnings.warn(f"{otherwise}: {error}", stacklevel=3)
        return None
    return kernels
