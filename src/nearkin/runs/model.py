"""A trained encoder for use: images in, float32 vectors out. An ``.onnx`` file needs no torch, so none is imported."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nearkin.data.cache import Images, usable_cores
from nearkin.data.folder import ClassFolders, suggest_path
from nearkin.data.image_inputs import ImageInput, as_images, is_one_image
from nearkin.data.transforms import Transform
from nearkin.errors import DataError, RecipeError, did_you_mean, require, require_torch

SUFFIXES = (".onnx", ".safetensors")
PREFIX = 16
"""Hexadecimal digits of a content hash that tell images apart in a file's metadata."""
METADATA_KEY = "nearkin"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The encoder's settings in the metadata of an exported file."""

    identity: str
    """A hash of weights and preprocessing, the same for both formats."""
    dim: int
    normalisation: Literal["l2", "ball"]
    size: int
    resize: int
    squash: bool
    shorter_side: int
    """Larger images are shrunk to this when they are decoded, as in the run."""
    trained: str | None = None
    """The first :data:`PREFIX` digits of the content hash of each training image, concatenated."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_metadata(cls, metadata: Any, path: Path) -> Settings:
        try:
            return cls(**json.loads(metadata[METADATA_KEY]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path} is not of this version of nearkin export ({error!r}): export it again") from error


class ExportedModel:
    """An encoder from a file that ``nearkin export`` wrote.

    :meth:`embed` crops with Pillow, as the run did, so a batch may hold images of different sizes. ``compute`` calls
    the file itself, which crops inside: uint8 ``[N, H, W, 3]`` of one size → float32 ``[N, dim]``.
    """

    def __init__(self, settings: Settings, compute: Callable[[NDArray[np.uint8]], NDArray[np.float32]]) -> None:
        self.settings = settings
        self.compute = compute
        self._transform = Transform(name="exported", size=settings.size, resize=settings.resize, squash=settings.squash)

    def embed(self, images: Images, batch_size: int | None = None) -> NDArray[np.float32]:
        """Embeddings of decoded images in their order, float32 ``[N, dim]``; 64 at a time by default."""
        batch_size = batch_size or 64
        embeddings = np.empty((len(images), self.settings.dim), dtype=np.float32)
        with ThreadPoolExecutor(usable_cores()) as threads:
            for start in range(0, len(images), batch_size):
                rows = range(start, min(start + batch_size, len(images)))
                frames = threads.map(lambda row: self._frame(images[row]), rows)
                embeddings[rows.start : rows.stop] = self.compute(np.stack(list(frames)))
        return embeddings

    def _frame(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Pillow's crop, centred in a frame from which the file crops it again without scaling."""
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
        raise DataError(f"{path} is not an exported encoder: {did_you_mean(path.suffix, SUFFIXES)}")
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


Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Model:
    """An encoder with everything between an image file and its vector, from a run folder or an exported file."""

    path: Path
    """What :func:`load` was given, absolute."""
    identity: str
    """A hash of weights, architecture and preprocessing: the same for models that give an image the same vector."""
    dim: int
    distance: Literal["cosine", "euclidean"]
    """How its vectors are compared: by angle if they have length 1, else by distance."""
    shorter_side: int | None
    """Decoded images are first shrunk to this, as in training."""
    embed: Callable[[Images, int | None], Vectors]
    """Vectors of decoded images in their order; the second argument is the batch size."""
    was_trained_on: Callable[[str], bool] | None = None
    """Whether an image, given by its content hash, was trained on; None where unknown."""
    classes: Callable[[], frozenset[str]] = frozenset
    """The classes of the run, trained on or not; none of an exported file."""
    class_folders: ClassFolders | None = None
    """Which folders are the classes, as the run read them (:func:`~nearkin.data.folder.read_folder`)."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of :func:`load` besides the path that change vectors, as JSON values."""

    def encode(self, images: Images | ImageInput | Iterable[ImageInput], batch_size: int | None = 64) -> Vectors:
        """Vectors of images, float32: ``[dim]`` of one image, ``[N, dim]`` of a list or a batch, in the order given.

        An image is a path, the bytes of an image file, a Pillow image, or a uint8 array or tensor; all are treated
        alike (:class:`~nearkin.data.image_inputs.ImageInputs`).
        """
        if batch_size is not None and batch_size < 1:
            raise DataError(f"batch_size must be at least 1, got {batch_size}")
        opened = as_images(images, shorter_side=self.shorter_side)
        if not len(opened):
            return np.empty((0, self.dim), dtype=np.float32)
        vectors = self.embed(opened, batch_size)
        return vectors[0] if is_one_image(images) else vectors


def load(
    path: str | Path | Sequence[str | Path],
    *,
    which: str = "best",
    device: str | None = None,
    flip: bool | None = None,
    eval_size: int | None = None,
) -> Model:
    """The model at ``path``: a run folder, or a file that ``nearkin export`` wrote; or several as one.

    Args:
        path: a run folder, a ``.onnx`` or a ``.safetensors`` file; the vectors of a list are concatenated, with equal
            weights.
        which: of a run the ``best`` or ``last`` checkpoint.
        device: where a run computes.
        flip: whether an embedding is averaged with the mirror image's; default: as the run was scored.
        eval_size: side of the crops in pixels; default: as the run was scored.
    """
    if not isinstance(path, (str, Path)):
        paths = list(path)
        if not paths:
            raise RecipeError("give at least one run to load")
        models = [load(one, which=which, device=device, flip=flip, eval_size=eval_size) for one in paths]
        return models[0] if len(models) == 1 else concatenated(models)
    source = Path(path).expanduser()
    asked: dict[str, Any] = {k: v for k, v in {"flip": flip, "eval_size": eval_size}.items() if v is not None}
    if source.suffix in SUFFIXES and not source.is_dir():
        if asked:
            raise RecipeError(f"{' and '.join(asked)} cannot be changed in {source}: give the run it was made from")
        return _model_of_file(source)
    if not source.exists():
        near = suggest_path(source) or "; 'nearkin train --data FOLDER -o RUN' makes one"
        raise DataError(f"there is no run folder {str(source)!r}{near}")
    if source.is_file():
        raise DataError(f"{str(source)!r} is a file: give the folder of a run, or a file that 'nearkin export' wrote")
    require_torch(f"{source}, a run,")
    from nearkin.runs.trained_run import load_run, model_of_run

    model = model_of_run(load_run(source, which=which, device=device, **asked))
    return replace(model, options=asked if which == "best" else {**asked, "which": which})


def reload(path: str | Path, options: Mapping[str, Any], *, device: str | None = None) -> Model:
    """The model again, from the ``path`` and ``options`` that it was loaded with (:attr:`Model.options`)."""
    given = {key: value for key, value in options.items() if key != "also"}
    return load([path, *options.get("also", ())], device=device, **given)


def _model_of_file(path: Path) -> Model:
    exported = load_exported(path)
    settings = exported.settings
    digits = settings.trained or ""
    trained = {digits[start : start + PREFIX] for start in range(0, len(digits), PREFIX)}
    return Model(
        path=path.absolute(),
        identity=settings.identity,
        dim=settings.dim,
        distance="cosine" if settings.normalisation == "l2" else "euclidean",
        shorter_side=settings.shorter_side,
        embed=exported.embed,
        was_trained_on=None if settings.trained is None else lambda content_hash: content_hash[:PREFIX] in trained,
    )


def concatenated(models: Sequence[Model]) -> Model:
    """Several models as one: the cosine of two images, or their squared distance, is the mean of the models'."""
    first, identities = models[0], " ".join(model.identity for model in models)
    check_compatible([model.distance for model in models], [model.shorter_side for model in models])

    def embed(images: Images, batch_size: int | None) -> Vectors:
        vectors = np.concatenate([model.embed(images, batch_size) for model in models], axis=1)
        return np.asarray(vectors / np.sqrt(len(models)), dtype=np.float32)

    trained = [model.was_trained_on for model in models if model.was_trained_on is not None]
    return Model(
        path=first.path,
        identity=hashlib.sha256(f"concatenated {identities}".encode()).hexdigest()[:32],
        dim=sum(model.dim for model in models),
        distance=first.distance,
        shorter_side=first.shorter_side,
        embed=embed,
        was_trained_on=(lambda image: any(was(image) for was in trained)) if len(trained) == len(models) else None,
        classes=first.classes,
        class_folders=first.class_folders,
        options={**first.options, "also": [str(model.path) for model in models[1:]]},
    )


def check_compatible(distances: Sequence[str], sizes: Sequence[int | None]) -> None:
    """Refuse models that differ in how vectors are compared, or in the size of decoded images."""
    if len(set(distances)) > 1:
        raise RecipeError("models to be concatenated must have the same encoder.normalisation, l2 or ball")
    if len(set(sizes)) > 1:
        raise RecipeError(
            f"the runs decode images to different sizes ({', '.join(map(str, sizes))} pixels): take runs with the same "
            f"data.shorter_side and crops, or give one --eval-size"
        )
