"""An encoder from a file that ``nearkin export`` wrote. An ``.onnx`` file runs without torch, which is not imported."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nearkin.data.cache import Images
from nearkin.data.image_inputs import ImageInput, as_images
from nearkin.data.threads import usable_cores
from nearkin.data.transforms import Transform
from nearkin.errors import DataError, did_you_mean, require, require_torch

SUFFIXES = (".onnx", ".safetensors")
METADATA_KEY = "nearkin"
"""The key under which a file's metadata holds its :class:`Settings`."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a file's metadata say about its encoder."""

    identity: str
    """A hash of weights and preprocessing, the same for both formats."""
    dim: int
    normalisation: Literal["l2", "ball"]
    size: int
    resize: int
    squash: bool
    shorter_side: int
    """Larger images are shrunk to this when they are decoded, as in the run."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_metadata(cls, metadata: Any, path: Path) -> Settings:
        try:
            return cls(**json.loads(metadata[METADATA_KEY]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path} was not written by this version of nearkin export ({error!r}): export the run again"
            ) from error


class ExportedModel:
    """An encoder from a file that ``nearkin export`` wrote.

    :meth:`encode` decodes and crops with Pillow, as the run did, so that images of different sizes share a batch.
    ``compute`` is the file itself, which crops inside: uint8 ``[N, H, W, 3]`` of one size → float32 ``[N, dim]``.
    """

    def __init__(self, settings: Settings, compute: Callable[[NDArray[np.uint8]], NDArray[np.float32]]) -> None:
        self.settings = settings
        self.compute = compute
        self._transform = Transform(name="exported", size=settings.size, resize=settings.resize, squash=settings.squash)

    def encode(self, images: Images | ImageInput | Iterable[ImageInput], batch_size: int = 64) -> NDArray[np.float32]:
        """Embeddings of images in the order given, float32 ``[N, dim]``.

        One image or many: paths, bytes of image files, Pillow's images, uint8 arrays or tensors.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        opened = as_images(images, shorter_side=self.settings.shorter_side)
        embeddings = np.empty((len(opened), self.settings.dim), dtype=np.float32)
        with ThreadPoolExecutor(usable_cores()) as threads:
            for start in range(0, len(opened), batch_size):
                rows = range(start, min(start + batch_size, len(opened)))
                frames = threads.map(lambda row: self._frame(opened[row]), rows)
                embeddings[rows.start : rows.stop] = self.compute(np.stack(list(frames)))
        return embeddings

    def _frame(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Pillow's crop, in the middle of a square from which the file cuts it out again without scaling."""
        resize, size = self.settings.resize, self.settings.size
        frame = np.zeros((resize, resize, 3), dtype=np.uint8)
        start = round((resize - size) / 2)
        frame[start : start + size, start : start + size] = self._transform.evaluate(image)
        return frame


def load_exported(path: str | Path, *, threads: int | None = None) -> ExportedModel:
    """The encoder in a file that ``nearkin export`` wrote: ``.onnx``, or ``.safetensors``, which needs torch.

    ``threads`` limits onnxruntime, which otherwise uses all cores; torch has its own setting.
    """
    path = Path(path).expanduser()
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path} is no exported encoder: {did_you_mean(path.suffix, SUFFIXES)}")
    if not path.is_file():
        raise DataError(f"there is no file {str(path)!r}: write it with nearkin export RUN -o {path}")
    if path.suffix == ".onnx":
        return _load_onnx(path, threads)
    require_torch(f"a {path.suffix} file")
    from nearkin.runs.export import read_weights

    return read_weights(path)


def _load_onnx(path: Path, threads: int | None) -> ExportedModel:
    runtime = require("onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    try:
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no class of their own
        raise DataError(f"{path} cannot be read by onnxruntime ({' '.join(str(error).split())[:200]})") from error
    settings = Settings.from_metadata(session.get_modelmeta().custom_metadata_map, path)

    def compute(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        embeddings: NDArray[np.float32] = session.run(None, {"images": images})[0]
        return embeddings

    return ExportedModel(settings, compute)
