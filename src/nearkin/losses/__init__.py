"""Losses, one file each. The catalogue is read off the files: adding a loss is adding a file.

A loss derives from :class:`ProxyLoss` (proxy_loss.py) or :class:`PairLoss` (pair_loss.py).
``nearkin.losses.ProxyAnchor``, ``nearkin.losses.Contrastive``, … are exported flat. :func:`catalogue` maps the file
name, which is also the name in recipes and on the command line, to the class.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Literal

from torch import nn

from nearkin.catalogue import keyword_options as options
from nearkin.catalogue import parts_of
from nearkin.losses.informative_samples import InformativeSampleWeights
from nearkin.losses.pair_loss import PairLoss, Pairs
from nearkin.losses.proxy_loss import ProxyLoss

__all__ = ["InformativeSampleWeights", "PairLoss", "Pairs", "ProxyLoss", "catalogue", "kind", "options"]

Kind = Literal["proxy", "pair", "wrapper"]


@functools.cache
def catalogue() -> dict[str, type[nn.Module]]:
    """Every loss by its file name.

    >>> catalogue()["proxy_anchor"].__name__
    'ProxyAnchor'
    """
    return parts_of(__name__, __path__)


def weightings() -> dict[str, type[nn.Module]]:
    """What can weigh the pairs of a loss that takes a ``weighting``, by its name in recipes."""
    return {"isa": InformativeSampleWeights}


def kind(loss: type[nn.Module]) -> Kind:
    """``"proxy"`` (needs classes and dimension), ``"pair"`` (needs neither) or ``"wrapper"`` (needs a pair loss).

    >>> kind(catalogue()["contrastive"])
    'pair'
    """
    parameters = inspect.signature(loss).parameters
    if "num_classes" in parameters:
        return "proxy"
    return "wrapper" if "pair_loss" in parameters else "pair"


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    for loss in catalogue().values():
        if loss.__name__ == name:
            return loss
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *(loss.__name__ for loss in catalogue().values())])
