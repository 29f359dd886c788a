"""A run's encoder by torch, or by onnxruntime from a file that is kept in the run's folder.

On a CPU onnxruntime embeds photos faster (``docs/export.md`` has figures). Writing the file takes seconds, so it is
made where it pays: when it is asked for, or when very many images are to come. From then on it is used unasked. Images
are cropped by the same code, the identity is the run's, and it was checked against torch before it got its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from nearkin.data.cache import Images
from nearkin.errors import DataError, MissingExtraError, RecipeError, did_you_mean, notice
from nearkin.exports.model import ExportedModel, load_exported
from nearkin.runs.trained import TrainedRun

Runtime = Literal["auto", "torch", "onnx"]
MANY = 10_000
"""From so many images on, writing the file takes less time than it saves: 13 s, and 2 ms an image or more."""
_FASTER_IN_TORCH = ("small",)
"""Where the way through onnxruntime takes longer than it saves."""


def check_runtime(runtime: str) -> None:
    """Refuse what is none."""
    if runtime not in get_args(Runtime):
        raise RecipeError(f"unknown runtime {runtime!r}: {did_you_mean(runtime, get_args(Runtime))}")


class RunEmbedding:
    """Vectors of images by a run's encoder; which runtime gives them makes a difference of rounding alone."""

    def __init__(self, run: TrainedRun, identity: str, runtime: str) -> None:
        self._run, self._identity, self._runtime = run, identity, runtime
        self._file = kept_file(run.folder.path, identity)
        self._exported: ExportedModel | None = None
        if runtime == "torch" or run.device.type != "cpu":
            return
        if runtime == "onnx":
            self._exported = self._opened_or_made()
        elif self._file.is_file():
            self._exported = self._unless_it_fails(self._opened)

    @property
    def runtime(self) -> Literal["torch", "onnx"]:
        return "torch" if self._exported is None else "onnx"

    def __call__(self, images: Images, batch_size: int | None) -> NDArray[np.float32]:
        if self._exported is not None:
            return self._exported.encode(images, batch_size or 64)
        return self._run.embed(images, batch_size=batch_size).cpu().numpy()

    def prepare(self, images: int) -> None:
        """Make the file if so many images are to come that it pays, and nobody has said what is to be used."""
        may = self._runtime == "auto" and self._exported is None and self._run.device.type == "cpu"
        if may and images >= MANY and self._run.recipe.encoder.backbone not in _FASTER_IN_TORCH:
            self._exported = self._unless_it_fails(self._opened_or_made)

    def _opened(self) -> ExportedModel | None:
        """The file that is there, if it is of this encoder."""
        if not self._file.is_file():
            return None
        exported = load_exported(self._file, threads=torch.get_num_threads())
        return exported if exported.identity == self._identity else None

    def _opened_or_made(self) -> ExportedModel | None:
        from nearkin.exports.export import keep_onnx

        with contextlib.suppress(DataError):  # what is damaged is made anew
            if (exported := self._opened()) is not None:
                return exported
        keep_onnx(self._run, self._file)
        return self._opened()

    def _unless_it_fails(self, get: Callable[[], ExportedModel | None]) -> ExportedModel | None:
        try:
            return get()
        except MissingExtraError:
            return None
        except Exception as error:  # of torch's exporter, whose errors are of many kinds, or of a file
            notice(f"torch embeds, as onnxruntime cannot: {' '.join(str(error).split())[:300]}")
            return None


def kept_file(folder: Path, identity: str) -> Path:
    """Where a run's folder keeps the encoder of this identity for onnxruntime."""
    return folder / f"encoder-{identity[:16]}.onnx"
