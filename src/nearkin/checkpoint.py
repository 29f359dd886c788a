"""Checkpoints: everything a resumed run needs, written whole or not at all, read without running code."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch

from nearkin.errors import DataError
from nearkin.run_folder import RunFolder, write_atomically

if TYPE_CHECKING:
    from nearkin.training import TrainingState

FORMAT = 1


def save_last(state: TrainingState, folder: RunFolder) -> None:
    """Write ``checkpoints/last.pt``, then drop best weights that have been superseded."""
    content = {
        "format": FORMAT,
        "step": state.step,
        "untrained": state.untrained,
        "baseline": state.baseline,
        "history": state.history,
        "best": state.best,
        "ended": state.ended,
        "seconds": state.time.state_dict(),
        "recent_losses": state.recent_losses,
        "encoder": state.encoder.state_dict(),
        "objective": state.objective.state_dict(),
        "method": state.method.state_dict(),
        "optimiser": state.optimiser.state_dict(),
        "scheduler": state.scheduler.state_dict(),
        "scaler": state.scaler.state_dict(),
        "sampler": state.loader_state(),
        "random": _random_states(),
    }
    _write(folder.last_checkpoint, content)
    folder.write_events(state.method.events)
    for file in folder.checkpoints.glob("best-*.pt"):
        if state.best is None or file != best_file(folder, state.best["step"]):
            file.unlink()


def save_best(state: TrainingState, folder: RunFolder) -> None:
    """Write the weights of the best evaluation so far, named by step so that ``last.pt`` always points at its own."""
    content = {"format": FORMAT, "step": state.step, "encoder": state.encoder.state_dict()}
    _write(best_file(folder, state.step), content | {"objective": state.objective.state_dict()})


def load_last(state: TrainingState, folder: RunFolder) -> None:
    """Put a freshly built state back to where ``last.pt`` was written."""
    content = read(folder.last_checkpoint)
    state.encoder.load_state_dict(content["encoder"])
    state.objective.load_state_dict(content["objective"])
    state.method.load_state_dict(content["method"])
    state.optimiser.load_state_dict(content["optimiser"])
    state.scheduler.load_state_dict(content["scheduler"])
    state.scaler.load_state_dict(content["scaler"])
    state.sampler.load_state_dict(content["sampler"])
    state.step = content["step"]
    state.untrained = content["untrained"]
    state.baseline = content.get("baseline", "random head")
    state.history = content["history"]
    state.best = content["best"]
    state.ended = content.get("ended", False)
    state.time.load_state_dict(_time_spent(content))
    state.recent_losses = content["recent_losses"]
    torch.set_rng_state(content["random"]["cpu"])
    if torch.cuda.is_available() and content["random"]["cuda"]:
        torch.cuda.set_rng_state_all(content["random"]["cuda"])


def load_best(state: TrainingState, folder: RunFolder) -> None:
    """Put the encoder and objective back to the best evaluation."""
    if state.best is not None:
        content = read(best_file(folder, state.best["step"]))
        state.encoder.load_state_dict(content["encoder"])
        state.objective.load_state_dict(content["objective"])


def encoder_weights(folder: RunFolder, which: str = "best") -> dict[str, torch.Tensor]:
    """The encoder's weights of a finished run, or of the checkpoint of one that is not finished."""
    if which == "best" and folder.encoder_file.exists():
        return safetensors.torch.load_file(folder.encoder_file)
    if folder.last_checkpoint.exists():
        content = read(folder.last_checkpoint)
        if which == "best" and content["best"] is not None:
            content = read(best_file(folder, content["best"]["step"]))
        weights: dict[str, torch.Tensor] = content["encoder"]
        return weights
    raise DataError(
        f"{folder.path} has no checkpoint yet: train it with: "
        f"nearkin train {folder.recipe_file} -o {folder.path} --overwrite"
    )


def save_encoder(state: TrainingState, folder: RunFolder) -> None:
    """Write the encoder alone, as safetensors: what embedding and search load."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.encoder.state_dict().items()}
    write_atomically(folder.encoder_file, safetensors.torch.save(tensors))


def best_file(folder: RunFolder, step: int) -> Path:
    """Where the weights of the best evaluation lie, which was after ``step`` steps."""
    return folder.checkpoints / f"best-{step:08d}.pt"


def _time_spent(content: dict[str, Any]) -> dict[str, float]:
    """The seconds of a checkpoint; early versions kept one sum beside the steps' share."""
    seconds = content["seconds"]
    return seconds if isinstance(seconds, dict) else {"all": seconds, "steps": content["step_seconds"]}


def _random_states() -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def _write(path: Path, content: dict[str, Any]) -> None:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_atomically(path, buffer.getvalue())


def read(path: Path) -> dict[str, Any]:
    """What a checkpoint file holds, on the host; no code in it is run."""
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise DataError(f"{path} is missing: the run cannot be continued; begin anew with --overwrite") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise DataError(f"{path} cannot be read as a checkpoint ({error}); begin anew with --overwrite") from error
    if content.get("format") != FORMAT:
        raise DataError(f"{path} was written by another version of nearkin (format {content.get('format')})")
    return content
