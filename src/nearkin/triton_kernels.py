"""Kernels written in Triton, loaded when they are first needed: where Triton is missing everything works without."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from types import ModuleType


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
