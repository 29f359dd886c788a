"""Checkpoints: everything a resumed run needs, written whole or not at all, read without running code."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from nearkin import ranks
from nearkin.disk import write_atomically
from nearkin.errors import DataError
from nearkin.proxies.bank import banks_in
from nearkin.training.folder import TrainingFolder
from nearkin.training.state import TrainingState

FORMAT = 1
_PARTS = ("encoder", "objective", "method", "optimiser", "scheduler", "scaler")
_VALUES = ("untrained", "history", "best", "ended", "recent_losses")
_UNFIT = (RuntimeError, LookupError, ValueError, TypeError, AttributeError)
_UNREADABLE = (*_UNFIT, pickle.UnpicklingError, EOFError, OSError)
"""What torch raises for files that are cut short or of another kind."""

Write = Callable[[], None]


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint file, on the host; no code in it is run."""
    again = "train again with --overwrite"
    try:
        # With several ranks the file is only mapped, as each rank takes the proxies of its own classes.
        content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=ranks.world() > 1)
    except FileNotFoundError:
        raise DataError(f"{path} is missing: the run cannot be continued; {again}") from None
    except _UNREADABLE as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise DataError(f"{path} cannot be read as a checkpoint ({reason}); {again}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f"{path} is no checkpoint of this version of nearkin; {again}")
    return content


def save_last(state: TrainingState, folder: TrainingFolder, writer: BackgroundWriter) -> None:
    """Write ``checkpoints/last.pt`` in the background, then delete superseded best weights.

    All ranks must call it; the first writes.
    """
    writer.wait()  # so that copies do not pile up
    values = {name: getattr(state, name) for name in _VALUES}
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    values["random"] = {"cpu": torch.get_rng_state(), "cuda": cuda}
    # The sampler itself is some batches ahead of the step.
    sampler = state.sampler.state_dict() if state.loader is None else state.loader.sampler_state
    values |= {"sampler": sampler, "seconds": state.time.state_dict()}
    parts = _PARTS if state.ema is None else (*_PARTS, "ema")
    write_checkpoint = _prepared(folder.last_checkpoint, state, parts, values)
    events = copy.deepcopy(state.method.events)
    best = None if state.best is None else folder.best_checkpoint(int(state.best["step"]))

    def write() -> None:
        write_checkpoint()
        folder.write_events(events)
        for file in folder.checkpoints.glob("best-*.pt"):
            if file != best:
                file.unlink()

    if ranks.is_first():
        writer.begin(write)


def save_best(state: TrainingState, folder: TrainingFolder, writer: BackgroundWriter) -> None:
    """Keep the weights of the best evaluation so far, written just before the ``last.pt`` that points at them."""
    weights = {"encoder": state.eval_encoder.state_dict()}
    writer.put_off(_prepared(folder.best_checkpoint(state.step), state, ("objective",), weights))


def load_last(state: TrainingState, folder: TrainingFolder) -> None:
    """Restore a freshly built state from ``last.pt``."""
    content = read_checkpoint(folder.last_checkpoint)
    with _fitting(folder.last_checkpoint):
        _keep_local_moments(content["optimiser"], state.optimiser)
        for name in (*_PARTS, "sampler", *([] if state.ema is None else ["ema"])):
            getattr(state, name).load_state_dict(content[name])
        for name in ("step", *_VALUES):
            setattr(state, name, content[name])
        state.time.load_state_dict(content["seconds"])
        torch.set_rng_state(content["random"]["cpu"])
        if torch.cuda.is_available() and content["random"]["cuda"]:
            torch.cuda.set_rng_state_all(content["random"]["cuda"])
    if state.best is not None and state.protocol.selects_on != "last":
        read_checkpoint(folder.best_checkpoint(int(state.best["step"])))  # the end of the run needs it


def load_best(state: TrainingState, folder: TrainingFolder) -> None:
    """Restore the encoder and objective of the best evaluation."""
    if state.best is not None:
        file = folder.best_checkpoint(int(state.best["step"]))
        content = read_checkpoint(file)
        with _fitting(file):
            state.eval_encoder.load_state_dict(content["encoder"])
            state.objective.load_state_dict(content["objective"])


def save_encoder(state: TrainingState, folder: TrainingFolder) -> None:
    """Write the encoder alone, as safetensors, for embedding and search."""
    if ranks.is_first():
        tensors = {name: value.detach().cpu().contiguous() for name, value in state.eval_encoder.state_dict().items()}
        write_atomically(folder.encoder_file, safetensors.torch.save(tensors))


def encoder_weights(folder: TrainingFolder, which: str = "best") -> dict[str, Tensor]:
    """The encoder's weights of a finished run, or of the checkpoint of one that is not finished."""
    if which == "best" and folder.encoder_file.exists():
        try:
            return safetensors.torch.load_file(folder.encoder_file)
        except (SafetensorError, OSError) as error:
            rule = "delete it, and the checkpoint is used instead"
            raise DataError(f"{folder.encoder_file} cannot be read ({error}): {rule}") from error
    if not folder.last_checkpoint.exists():
        train = f"nearkin train {folder.recipe_file} -o {folder.path} --overwrite"
        raise DataError(f"{folder.path} has no checkpoint: train it with: {train}")
    content = read_checkpoint(folder.last_checkpoint)
    if which == "best" and content["best"] is not None:
        content = read_checkpoint(folder.best_checkpoint(content["best"]["step"]))
    weights: dict[str, Tensor] = content.get("ema", content)["encoder"]
    return weights


def _prepared(path: Path, state: TrainingState, parts: Sequence[str], values: Mapping[str, Any]) -> Write:
    """A function that writes a checkpoint of the present state on the first rank, with the proxies of all ranks."""
    content = {"format": FORMAT, "step": state.step, **values}
    content |= {name: getattr(state, name).state_dict() for name in parts}
    if ranks.world() > 1:
        content = _with_all_classes(content, state)
    if not ranks.is_first():
        return lambda: None
    content, arrive = copied_to_host(content)

    def write() -> None:
        arrive()
        buffer = io.BytesIO()
        torch.save(content, buffer)
        write_atomically(path, buffer.getvalue())

    return write


def _with_all_classes(content: dict[str, Any], state: TrainingState) -> dict[str, Any]:
    """``content`` with the proxies and moments of all ranks, on the first rank in host memory."""
    classes_of = {}
    for bank in banks_in(state.objective, state.learned):
        for tensor in (*bank.parameters(), *bank.buffers()):
            moments = [value for value in state.optimiser.state.get(tensor, {}).values() if isinstance(value, Tensor)]
            for sharded in (tensor, *(moment for moment in moments if moment.shape == tensor.shape)):
                classes_of[sharded.data_ptr()] = bank.classes

    def gathered(value: Tensor) -> Tensor | None:
        if value.data_ptr() not in classes_of:
            return value
        whole = ranks.gather_rows(value.detach().cpu(), classes_of[value.data_ptr()])
        return whole if ranks.is_first() else None

    whole: dict[str, Any] = _with_tensors(content, gathered)
    return whole


def _with_tensors(content: Any, change: Callable[[Tensor], Tensor | None]) -> Any:
    """A copy of nested dictionaries, lists and tuples with their tensors changed."""
    if isinstance(content, Tensor):
        return change(content)
    if isinstance(content, tuple):
        return tuple(_with_tensors(item, change) for item in content)
    if isinstance(content, dict | list):
        content = copy.copy(content)  # copies the attribute of a state dictionary that has the versions of modules
        for key, item in list(content.items() if isinstance(content, dict) else enumerate(content)):
            content[key] = _with_tensors(item, change)
        return content
    return copy.deepcopy(content)


def _keep_local_moments(saved: dict[str, Any], optimiser: torch.optim.Optimizer) -> None:
    """Reduce the proxies' moments in an optimiser's state to this rank's classes."""
    parameters = [(group["name"], p) for group in optimiser.param_groups for p in group["params"]]
    for number, (group, parameter) in enumerate(parameters):
        for key, value in saved["state"].get(number, {}).items() if group == "proxies" else ():
            if isinstance(value, Tensor) and value.ndim == parameter.ndim and len(value) != len(parameter):
                local = ranks.share_of(len(value))
                saved["state"][number][key] = value[local.start : local.stop].clone()


@contextlib.contextmanager
def _fitting(file: Path) -> Iterator[None]:
    try:
        yield
    except _UNFIT as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{file} does not fit this run ({reason}): train again with --overwrite") from error


class BackgroundWriter:
    """Writes one file at a time in another thread. The next call raises its failure; leaving the context waits for it.

    >>> written = []
    >>> with BackgroundWriter() as writer:
    ...     writer.put_off(lambda: written.append("best weights"))
    ...     writer.begin(lambda: written.append("checkpoint that points at them"))
    ...     writer.wait()
    ...     written
    ['best weights', 'checkpoint that points at them']
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="nearkin-writer")
        self._pending: Future[None] | None = None
        self._put_off: Write = lambda: None

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown(wait=True)
        if error is None:
            self.wait()

    @property
    def is_busy(self) -> bool:
        return self._pending is not None and not self._pending.done()

    def put_off(self, write: Write) -> None:
        """Write just before the next :meth:`begin`, instead of anything put off earlier."""
        self._put_off = write

    def begin(self, write: Write) -> None:
        self.wait()
        first, self._put_off = self._put_off, lambda: None

        def write_both() -> None:
            first()
            write()

        self._pending = self._pool.submit(write_both)

    def check(self) -> None:
        if not self.is_busy:
            self.wait()

    def wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


def copied_to_host(content: Any) -> tuple[Any, Write]:
    """A copy of ``content`` in host memory, and a function that waits until it is complete.

    A tensor that occurs several times is copied once. A GPU copies to pinned memory in the order of its queue, so the
    caller need not wait: whatever it does to the tensors next comes later.
    """
    copies: dict[tuple[Any, ...], Tensor] = {}

    def copied(value: Tensor) -> Tensor:
        key = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        if key not in copies:
            copies[key] = _on_host(value.detach())
        return copies[key]

    whole = _with_tensors(content, copied)
    devices = {device for device, *_ in copies if device.type == "cuda"}
    copying = [torch.cuda.current_stream(device).record_event() for device in devices]

    def arrive() -> None:
        for event in copying:
            event.synchronize()

    return whole, arrive


def _on_host(value: Tensor) -> Tensor:
    if value.is_cuda:
        return torch.empty_like(value, device="cpu", pin_memory=True).copy_(value, non_blocking=True)
    if value.device.type == "cpu" and value.dtype != torch.bfloat16:
        # By numpy in this thread alone, as torch's threads would wait for each other at every tensor.
        return torch.from_numpy(np.array(value.numpy(), order="K"))
    return value.to("cpu", copy=True)
