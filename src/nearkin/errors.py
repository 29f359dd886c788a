"""Errors whose message tells a person what to do.

The command line prints the message of a :class:`NearkinError` without a traceback and exits with its code, so
scripts can tell a typing mistake (2) from bad data or a full disk (3), a missing extra (4), a run that diverged (5), a
folder that another process writes to (6), one process of several that was lost (7), memory that is full (8) and a run
that was interrupted and can be resumed (130).
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from types import ModuleType


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


class LackOfMemoryError(NearkinError):
    """Memory, of a GPU or of the machine, that is full in the middle of the work."""

    exit_code = 8


class MissingExtraError(NearkinError, ImportError):
    """An optional dependency that is not installed."""

    exit_code = 4


class TrainingError(NearkinError):
    """A run that cannot go on, for instance because its loss is not finite."""

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
