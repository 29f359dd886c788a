"""An exported encoder put to use. An ``.onnx`` file runs with onnxruntime, numpy and Pillow: torch is not imported."""

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

SUFFIXES = (".onnx", ".pt2", ".safetensors")
KEY = "nearkin"
"""Under which a file's metadata holds its :class:`Settings`."""

Compute = Callable[[NDArray[np.uint8]], NDArray[np.float32]]
"""Raw pixels ``[N, H, W, 3]`` → embeddings ``[N, dim]``."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a file says of itself, in its metadata."""

    identity: str
    """A hash of weights and preprocessing: the same whatever the format, another one where weights are int8."""
    dim: int
    normalisation: Literal["l2", "ball"]
    size: int
    resize: int
    squash: bool
    shorter_side: int
    """To which larger images are shrunk when they are decoded, as the run did."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_metadata(cls, metadata: Any, path: Path) -> Settings:
        try:
            given = json.loads(metadata[KEY])
            return cls(**{field.name: given[field.name] for field in dataclasses.fields(cls)})
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path} was not written by nearkin export, or by another version (its metadata lack {error}): export "
                f"the run again"
            ) from error


class ExportedModel:
    """An encoder from a file that ``nearkin export`` wrote.

    :meth:`encode` decodes and crops with Pillow, as the run did, so that images of all sizes go through the network
    together. ``compute`` is the file itself: raw pixels ``[N, H, W, 3]`` of one size, cropped inside.
    """

    def __init__(self, settings: Settings, compute: Compute) -> None:
        self.settings = settings
        self.compute = compute
        self._transform = Transform(name="exported", size=settings.size, resize=settings.resize, squash=settings.squash)

    @property
    def dim(self) -> int:
        return self.settings.dim

    @property
    def identity(self) -> str:
        return self.settings.identity

    @property
    def normalisation(self) -> Literal["l2", "ball"]:
        return self.settings.normalisation

    def encode(
        self,
        images: Images | ImageInput | Iterable[ImageInput],
        batch_size: int = 64,
        *,
        rows: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float32]:
        """Embeddings of images in the order given, float32 ``[N, dim]``.

        One image or many: paths, bytes of image files, Pillow's images, uint8 arrays or tensors. Or images that have
        been opened already, of which ``rows`` may choose some.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        opened = as_images(images, shorter_side=self.settings.shorter_side)
        chosen = np.arange(len(opened)) if rows is None else rows
        embeddings = np.empty((len(chosen), self.dim), dtype=np.float32)
        with ThreadPoolExecutor(usable_cores()) as threads:
            for start in range(0, len(chosen), batch_size):
                part = chosen[start : start + batch_size].tolist()
                frames = threads.map(lambda row: self.frame(opened[row]), part)
                embeddings[start : start + len(part)] = self.compute(np.stack(list(frames)))
        return embeddings

    def frame(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Pillow's crop, in a square from whose middle the file cuts it out again without scaling anything."""
        frame = np.zeros((self.settings.resize, self.settings.resize, 3), dtype=np.uint8)
        start = round((self.settings.resize - self.settings.size) / 2)
        inside = slice(start, start + self.settings.size)
        frame[inside, inside] = self._transform.evaluate(image)
        return frame


def load_exported(path: str | Path, *, threads: int | None = None) -> ExportedModel:
    """The encoder in a file of ``nearkin export``: ``.onnx``, or ``.pt2`` and ``.safetensors``, which need torch.

    ``threads`` is for onnxruntime, which takes all cores by itself; torch has a setting of its own.
    """
    path = Path(path).expanduser()
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path} is no exported encoder: {did_you_mean(path.suffix, SUFFIXES)}")
    if not path.is_file():
        raise DataError(f"there is no file {str(path)!r}: write it with nearkin export RUN -o {path}")
    if path.suffix == ".onnx":
        return _load_onnx(path, threads)
    require_torch(f"a {path.suffix} file")
    from nearkin.exports import torch_files

    return torch_files.load(path)


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
        found: NDArray[np.float32] = session.run(None, {"images": images})[0]
        return found

    return ExportedModel(settings, compute)
