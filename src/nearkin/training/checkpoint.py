"""Checkpoints: everything a resumed run needs, written whole or not at all, read without running code."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, cast

import safetensors.torch
import torch
from safetensors import SafetensorError

from nearkin import ranks
from nearkin.disk import write_atomically
from nearkin.encoders import Encoder
from nearkin.errors import DataError, NearkinError, notice
from nearkin.proxies.bank import banks_in
from nearkin.recipe import Recipe
from nearkin.recipe.identity import LOCATIONS, deciding, differences
from nearkin.training import slices
from nearkin.training.background import BackgroundWriter, copied_to_host
from nearkin.training.folder import TrainingFolder
from nearkin.training.recipes import load_recipe
from nearkin.training.state import Evaluation, TrainingState

FORMAT = 1
_PARTS = ("encoder", "objective", "method", "optimiser", "scheduler", "scaler")
_VALUES = ("untrained", "baseline", "history", "best", "ended", "recent_losses")
_UNREADABLE = (
    *(pickle.UnpicklingError, RuntimeError, EOFError, OSError),
    *(ValueError, KeyError, TypeError, AttributeError, IndexError),
)
"""What torch says of files that are cut short or something else altogether."""


class Checkpoint(TypedDict):
    """What those look at who do not go on with the run."""

    step: int
    objective: dict[str, torch.Tensor]
    method: dict[str, Any]
    """What the method keeps; it alone knows the keys. Best weights have none."""
    best: Evaluation | None


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint to be looked at."""
    content = _read(path)
    slices.put_back(content, path)
    return cast(Checkpoint, content)


def save_last(state: TrainingState, folder: TrainingFolder, writer: BackgroundWriter | None = None) -> None:
    """Write ``checkpoints/last.pt``, then drop best weights, and slices of classes, that have been superseded.

    Of several ranks all must call it; a checkpoint counts from the moment that the first has written ``last.pt``. With
    a ``writer`` that is written while the caller goes on.
    """
    values = {name: getattr(state, name) for name in _VALUES}
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    values["random"] = {"cpu": torch.get_rng_state(), "cuda": cuda}
    sampler, seconds = state.loader_state(), state.time.state_dict()
    events = copy.deepcopy(state.method.events)
    best = None if state.best is None else folder.best_checkpoint(int(state.best["step"]))

    def afterwards(needed: Collection[str]) -> None:
        folder.write_events(events)
        for pattern in ("best-*.pt", "*-classes-*.safetensors"):
            for file in folder.checkpoints.glob(pattern):
                of_best = best is not None and file.name.startswith(best.stem)
                if not of_best and file.name not in needed:
                    file.unlink()

    others = {"sampler": sampler, "seconds": seconds, **values}
    parts = _PARTS if state.ema is None else (*_PARTS, "ema")
    _write(folder.last_checkpoint, state, folder, parts, others, writer, afterwards)


def save_best(state: TrainingState, folder: TrainingFolder, writer: BackgroundWriter | None = None) -> None:
    """Keep the weights of the best evaluation so far, named by step so that ``last.pt`` always points at its own.

    A ``writer`` writes them with the next ``last.pt``: before it nothing would look for them.
    """
    weights = {"encoder": state.eval_encoder.state_dict()}
    _write(folder.best_checkpoint(state.step), state, folder, ("objective",), weights, writer, put_off=True)


def load_last(state: TrainingState, folder: TrainingFolder) -> None:
    """Put a freshly built state back to where ``last.pt`` was written."""
    # Early versions did not write all of it: a run is not ended, its baseline had a random head, and there was one sum
    # of seconds beside the steps' share.
    content: dict[str, Any] = {"ended": False, "baseline": "random head"} | _read_own(folder.last_checkpoint, folder)
    slices.put_back(content, folder.last_checkpoint)
    with _fitting(folder.last_checkpoint):
        slices.own_moments(content["optimiser"], state.optimiser)
        for name in (*_PARTS, "sampler", *([] if state.ema is None else ["ema"])):
            getattr(state, name).load_state_dict(content[name])
        for name in ("step", *_VALUES):
            setattr(state, name, content[name])
        seconds = content["seconds"]
        spent = seconds if isinstance(seconds, dict) else {"all": seconds, "steps": content["step_seconds"]}
        state.time.load_state_dict(spent)
        torch.set_rng_state(content["random"]["cpu"])
        if torch.cuda.is_available() and content["random"]["cuda"]:
            torch.cuda.set_rng_state_all(content["random"]["cuda"])


def load_best(state: TrainingState, folder: TrainingFolder) -> None:
    """Put the encoder and objective back to the best evaluation."""
    if state.best is not None:
        file = folder.best_checkpoint(int(state.best["step"]))
        content = _read_own(file, folder)
        slices.put_back(content, file)
        with _fitting(file):
            state.eval_encoder.load_state_dict(content["encoder"])
            state.objective.load_state_dict(content["objective"])


def check_best(state: TrainingState, folder: TrainingFolder) -> None:
    """Find out before training goes on, not at its end, that the best weights so far are gone."""
    if state.best is None or state.protocol.selects_on == "last":
        return
    try:
        file = folder.best_checkpoint(int(state.best["step"]))
        slices.put_back(_read_own(file, folder), file)
    except DataError as error:
        raise DataError(
            f"{error}. These are the best weights so far; {folder.last_checkpoint.name} is whole, and can be used with "
            f"--checkpoint last (nearkin evaluate, nearkin embed)"
        ) from error


def encoder_weights(folder: TrainingFolder, which: str = "best") -> dict[str, torch.Tensor]:
    """The encoder's weights of a finished run, or of the checkpoint of one that is not finished.

    An exported encoder that is damaged, or another run's, gives way to the checkpoint beside it.
    """
    if which == "best" and folder.encoder_file.exists():
        try:
            return _exported(folder)
        except DataError as error:
            try:
                weights = _from_checkpoint(folder, which)
            except NearkinError as other:
                raise DataError(f"{error}, and no checkpoint can stand in for it: {other}") from error
            notice(f"{error}; the {which} weights are taken from the checkpoint")
            return weights
    return _from_checkpoint(folder, which)


def is_encoder_whole(folder: TrainingFolder) -> bool:
    """Whether the exported encoder can be read; one that is not there yet counts as whole."""
    try:
        return not folder.encoder_file.exists() or bool(_exported(folder))
    except DataError:
        return False


def save_encoder(state: TrainingState, folder: TrainingFolder) -> None:
    """Write the encoder alone, as safetensors: what embedding and search load."""
    if ranks.is_first():
        write_encoder(state.eval_encoder, state.recipe, folder)


def write_encoder(encoder: Encoder, recipe: Recipe, folder: TrainingFolder) -> None:
    """Write an encoder as that of the run of ``recipe`` in ``folder``, which has its split already."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in encoder.state_dict().items()}
    known = json.dumps(_run_of(recipe, folder))
    write_atomically(folder.encoder_file, safetensors.torch.save(tensors, {"run": known}))


def _exported(folder: TrainingFolder) -> dict[str, torch.Tensor]:
    file = folder.encoder_file
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            known = json.loads((opened.metadata() or {}).get("run", "null"))
        weights = safetensors.torch.load_file(file)
    except (SafetensorError, *_UNREADABLE) as error:
        raise DataError(f"{file} cannot be read: it is not whole ({error})") from error
    if differing := _otherwise(known, folder):
        raise DataError(f"{file} is not of this run ({', '.join(differing)})")
    return weights


def _from_checkpoint(folder: TrainingFolder, which: str) -> dict[str, torch.Tensor]:
    if not folder.last_checkpoint.exists():
        raise DataError(
            f"{folder.path} has no checkpoint yet: train it with: "
            f"nearkin train {folder.recipe_file} -o {folder.path} --overwrite"
        )
    content = _read_own(folder.last_checkpoint, folder)
    if which == "best" and content["best"] is not None:
        content = _read_own(folder.best_checkpoint(content["best"]["step"]), folder)
    weights: dict[str, torch.Tensor] = content.get("ema", content)["encoder"]
    return weights


def _write(
    path: Path,
    state: TrainingState,
    folder: TrainingFolder,
    parts: Sequence[str],
    others: Mapping[str, Any],
    writer: BackgroundWriter | None,
    afterwards: Callable[[Collection[str]], None] = lambda needed: None,
    *,
    put_off: bool = False,
) -> None:
    """Write a checkpoint, and slices of classes before it; then do ``afterwards``, which is told what slices it needs.

    The first rank writes the checkpoint, by the ``writer`` if there is one; slices are written by all ranks at once,
    which wait for each other.
    """
    if writer is not None and (ranks.world() > 1 or not put_off):
        writer.make_way(state.step)
        ranks.wait_for_all()  # the first may be dropping what the checkpoint before has superseded
    content = {"format": FORMAT, "run": _run_of(state.recipe, folder), "step": state.step, **others}
    content |= {name: getattr(state, name).state_dict() for name in parts}
    needed: list[str] = []
    banks = banks_in(state.objective, state.learned)
    if ranks.world() > 1 and banks:
        content, taken = slices.take_out(content, banks, state.optimiser)
        content["slices"] = needed = slices.write_slice(path, state.step, taken, banks[0].classes)
    if ranks.is_first():
        content, arrive = copied_to_host(content)

        def write() -> None:
            arrive()
            buffer = io.BytesIO()
            torch.save(content, buffer)
            write_atomically(path, buffer.getvalue())
            afterwards(needed)

        if writer is None:
            write()
        elif put_off:
            writer.put_off(write)
        else:
            writer.begin(write)
    if writer is None:
        ranks.wait_for_all()


def _read(path: Path) -> dict[str, Any]:
    """What a checkpoint file holds, on the host; no code in it is run."""
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise DataError(f"{path} is missing: the run cannot be continued; {_advice(path)}") from None
    except _UNREADABLE as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise DataError(f"{path} cannot be read as a checkpoint ({reason}); {_advice(path)}") from error
    if not isinstance(content, Mapping) or "encoder" not in content:
        raise DataError(f"{path} is no checkpoint of nearkin; {_advice(path)}")
    if content.get("format") != FORMAT:
        raise DataError(f"{path} was written by another version of nearkin (format {content.get('format')})")
    return dict(content)


def _advice(path: Path) -> str:
    """What can be done without a checkpoint; the exported encoder only helps where it is whole and of this run."""
    folder = TrainingFolder(path.parent.parent)
    anew = "begin anew with --overwrite"
    if not folder.encoder_file.exists() or not is_encoder_whole(folder):
        return anew
    return f"{folder.encoder_file.name} can still be used, with nearkin evaluate and nearkin embed; or {anew}"


def _run_of(recipe: Recipe, folder: TrainingFolder) -> dict[str, Any]:
    """What tells a run's checkpoints from those of another, wherever its data lie."""
    known = recipe.as_mapping()
    for key in (*LOCATIONS, "data.root"):
        section, name = key.split(".")
        del known[section][name]
    split = folder.split if folder.split_file.exists() else None
    return {"recipe": known, "split": None if split is None else split.content_hash}


def _otherwise(known: Mapping[str, Any] | None, folder: TrainingFolder) -> list[str]:
    """What a checkpoint has otherwise than its folder; nothing for those of earlier versions, which do not say."""
    if known is None:
        return []
    saved, here = load_recipe(known["recipe"]), folder.recipe()
    found = differences(deciding(saved, besides=LOCATIONS), deciding(here, besides=LOCATIONS))
    split = folder.split if folder.split_file.exists() else None
    if split is not None and known["split"] not in (None, split.content_hash):
        found["split"] = "its images, classes or split are others"
    return list(found.values())


def _read_own(file: Path, folder: TrainingFolder) -> dict[str, Any]:
    """What a checkpoint of the run holds; one that was copied from another run is refused."""
    content = _read(file)
    if differing := _otherwise(content.get("run"), folder):
        raise DataError(f"{file} is not of this run ({', '.join(differing)}): put back the run's own; {_advice(file)}")
    return content


@contextlib.contextmanager
def _fitting(file: Path) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{file} does not fit this run ({reason}): {_advice(file)}") from error
