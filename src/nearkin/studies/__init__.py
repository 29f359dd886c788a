"""Studies: planners that say which runs answer a question and what they come to, and one way to carry them out."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil

from nearkin.studies.study import Study

__all__ = ["catalogue"]


@functools.cache
def catalogue() -> dict[str, type[Study]]:
    """Every planner by its file name: adding one is adding a file with a :class:`~nearkin.studies.study.Study`.

    >>> sorted(catalogue())
    ['ablate', 'compare', 'mlrc', 'reproduce', 'tune', 'vary']
    """
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for name in getattr(module, "__all__", ()):
            part = getattr(module, name)
            if inspect.isclass(part) and issubclass(part, Study) and not inspect.isabstract(part):
                found[info.name] = part
    return found
