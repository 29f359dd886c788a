"""Checkpoints of several ranks: what belongs to classes lies in files of class ranges, each written by the rank that
has them, and is read by any number of ranks."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from nearkin import ranks
from nearkin.disk import write_atomically
from nearkin.errors import DataError
from nearkin.proxies import ProxyBank

_SLICED = "in slices, as"


def take_out(
    content: Any, banks: Sequence[ProxyBank], optimiser: torch.optim.Optimizer
) -> tuple[Any, dict[str, Tensor]]:
    """``content`` with names in the place of proxies and of what the optimiser keeps of them, and these by name."""
    own = {}
    for bank in banks:
        for tensor in (*bank.parameters(), *bank.buffers()):
            moments = [each for each in optimiser.state.get(tensor, {}).values() if isinstance(each, Tensor)]
            for each in (tensor, *(moment for moment in moments if moment.shape == tensor.shape)):
                own[each.data_ptr()] = bank.classes
    taken: dict[str, Tensor] = {}

    def without(value: Any, name: str) -> Any:
        if isinstance(value, Tensor) and value.data_ptr() in own:
            taken[name] = value.detach().cpu().contiguous()
            return {_SLICED: name, "rows": own[value.data_ptr()]}
        if isinstance(value, dict | list):
            value = copy.copy(value)  # an optimiser gives out the very dictionaries that it works with
            for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
                value[key] = without(each, f"{name}/{key}" if name else str(key))
        return value

    return without(content, ""), taken


def slice_file(checkpoint: Path, step: int, own: range) -> Path:
    """Where the classes ``own`` of a checkpoint lie; the step is in the name, so that none is ever written over.

    >>> slice_file(Path("last.pt"), 40, range(0, 512)).name
    'last-00000040-classes-00000000-00000512.safetensors'
    """
    stem = checkpoint.stem.partition("-")[0]
    return checkpoint.with_name(f"{stem}-{step:08d}-classes-{own.start:08d}-{own.stop:08d}.safetensors")


def write_slice(checkpoint: Path, step: int, taken: dict[str, Tensor], classes: int) -> list[str]:
    """Write this rank's classes; returns the names of the files of all ranks, once all of them are written."""
    shares = [ranks.share_of(classes, of=number) for number in range(ranks.world())]
    write_atomically(slice_file(checkpoint, step, shares[ranks.rank()]), safetensors.torch.save(taken))
    ranks.wait_for_all()
    return [slice_file(checkpoint, step, share).name for share in shares]


def put_back(content: dict[str, Any], checkpoint: Path) -> None:
    """Put this rank's classes, alone all of them, where :func:`take_out` has left their names."""

    def fill(holder: Any) -> None:
        for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            if isinstance(value, dict) and _SLICED in value:
                own = ranks.share_of(value["rows"])
                holder[key] = torch.cat(list(_rows(value[_SLICED], own, content["slices"], checkpoint)))
            elif isinstance(value, dict | list):
                fill(value)

    if content.get("slices"):
        fill(content)


def own_moments(saved: dict[str, Any], optimiser: torch.optim.Optimizer) -> None:
    """Keep this rank's classes of an optimiser's state that one process has written whole."""
    parameters = [(group["name"], p) for group in optimiser.param_groups for p in group["params"]]
    for number, (group, parameter) in enumerate(parameters):
        for key, value in saved["state"].get(number, {}).items() if group == "proxies" else ():
            if isinstance(value, Tensor) and value.ndim == parameter.ndim and len(value) != len(parameter):
                own = ranks.share_of(len(value))
                saved["state"][number][key] = value[own.start : own.stop].clone()


def _rows(name: str, own: range, files: Sequence[str], checkpoint: Path) -> Iterator[Tensor]:
    for file in files:
        start, stop = (int(part) for part in Path(file).stem.split("-")[-2:])
        first, last = max(own.start, start), min(own.stop, stop)
        if first >= last:
            continue
        try:
            with safetensors.safe_open(checkpoint.with_name(file), framework="pt") as opened:
                yield opened.get_slice(name)[first - start : last - start]
        except FileNotFoundError:
            raise DataError(f"{checkpoint.with_name(file)} is missing, a part of {checkpoint.name}") from None
        except (SafetensorError, OSError) as error:
            raise DataError(f"{checkpoint.with_name(file)} cannot be read: it is not whole ({error})") from error
