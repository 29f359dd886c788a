"""Export a run's encoder to one file, ONNX or safetensors, which is checked on real images before it gets its name."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from nearkin.data.image_inputs import ImageInput, ImageInputs
from nearkin.data.source import read_source
from nearkin.data.transforms import Transform
from nearkin.disk import check_writable, make_folder, write_atomically, writing
from nearkin.encoders import Encoder
from nearkin.encoders.preprocessing import gain_and_shift
from nearkin.errors import DataError, RecipeError, did_you_mean, require
from nearkin.numerics import normalise
from nearkin.recipe import EncoderSection
from nearkin.runs.data import with_root_found
from nearkin.runs.model import METADATA_KEY, PREFIX, ExportedModel, Settings, load_exported
from nearkin.runs.model_card import model_card
from nearkin.runs.scores import Conditions, Scores
from nearkin.runs.trained_run import TrainedRun, identity_of, images_trained_on, load_run
from nearkin.training.build import data_of, encoder_from
from nearkin.training.recipe_check import load_recipe

Format = Literal["onnx", "safetensors"]

TO_TORCH = 1e-5
"""The largest difference allowed between a number of an embedding and the same computation in torch."""
TO_PILLOW = 1.25  # Pillow rounds twice
"""The largest difference allowed between pixels of the file's crop and Pillow's, in levels of 256."""

_CHECKED_IMAGES = 6
MOST_TRAINED = 250_000
"""Up to this number of training images, a file lists their hashes."""
_ENCODER_KEY, _FLIP_KEY = "nearkin.encoder", "nearkin.flip"


@dataclass(frozen=True)
class Check:
    """The largest differences between the file and the run on real images."""

    images: str
    """Number and origin of the images."""
    to_torch: float
    """Between numbers of an embedding, with the same crops."""
    to_pillow: float
    """Between pixels of the crop, in levels of 256."""
    distance: float
    """Between embeddings, if the file resizes instead of Pillow."""


@dataclass(frozen=True)
class ExportResult:
    """What :func:`export` wrote."""

    file: Path
    card: Path
    settings: Settings
    check: Check


def export(
    run: str | Path,
    format: Format = "onnx",
    output: str | Path | None = None,
    *,
    which: str = "best",
    images: ImageInput | Iterable[ImageInput] | None = None,
    data_root: str | Path | None = None,
) -> ExportResult:
    """Write the encoder of a run to one file that takes raw uint8 pixels ``[N, H, W, 3]`` of any size.

    The file is checked before it gets its name: on ``images``, by default some of the run's own, its embeddings must
    match the run's to ``TO_TORCH``, and its crops Pillow's to ``TO_PILLOW``. A model card is written next to it.

    Args:
        run: a run folder.
        format: ``onnx``, or ``safetensors`` (the weights, for nearkin to load).
        output: the file; default: the run's name with the format's suffix, in the working directory.
        which: ``best`` or ``last`` checkpoint.
        images: real images to check the file on.
        data_root: the folder that holds the benchmarks.
    """
    if format not in get_args(Format):
        raise RecipeError(f"unknown format {format!r}; {did_you_mean(str(format), get_args(Format))}")
    if format == "onnx":
        for module in ("onnxruntime", "onnx", "onnxscript"):
            require(module, "onnx")
    target = _target(run, output, f".{format}")
    trained = load_run(run, which=which, device="cpu")
    graph = PixelsToEmbeddings(trained.encoder, trained.transform, flip=trained.recipe.protocol.flip)
    settings = Settings(
        identity=identity_of(trained),
        dim=trained.encoder.dim,
        normalisation=trained.encoder.normalisation,
        size=graph.size,
        resize=graph.resize,
        squash=graph.squash,
        shorter_side=data_of(trained.recipe).shorter_side,
        trained=_prefixes(images_trained_on(trained)),
    )
    photos, origin = _photos(trained, images, data_root)
    temporary = target.with_name(f".{target.stem}.{os.getpid()}{target.suffix}")
    with writing(target):
        try:
            if format == "onnx":
                write_onnx(graph, settings, temporary)
            else:
                write_weights(graph, trained.recipe.encoder, settings, temporary)
            check = _check(load_exported(temporary), graph, trained, photos, origin)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    card = target.with_name(f"{target.name}.md")
    write_atomically(card, _card(trained, target, check).encode())
    return ExportResult(target, card, settings, check)


class PixelsToEmbeddings(nn.Module):
    """uint8 ``[N, H, W, 3]`` in RGB with any N, H and W → float32 ``[N, dim]``, as one module that exporters can trace.

    The evaluation crop is made as :meth:`~nearkin.data.transforms.Transform.evaluate` makes it with Pillow, without its
    rounding. No branch depends on a size, since a traced graph would keep only the branch that was taken.

    >>> from nearkin.encoders import build_encoder
    >>> module = PixelsToEmbeddings(build_encoder("small", dim=8), Transform(name="tiny", size=32, resize=40))
    >>> module(torch.zeros(2, 50, 70, 3, dtype=torch.uint8)).shape
    torch.Size([2, 8])
    """

    gain: Tensor
    shift: Tensor

    def __init__(self, encoder: Encoder, transform: Transform, *, flip: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        self.size, self.resize, self.squash, self.flip = transform.size, transform.resize, transform.squash, flip
        gain, shift = gain_and_shift(encoder.preprocessing, torch.device("cpu"))
        self.register_buffer("gain", gain.clone())
        self.register_buffer("shift", shift.clone())
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        crops = self.crops(images)
        embeddings = self._embed(crops)
        if self.flip:
            embeddings = normalise((embeddings + self._embed(crops.flip(3))) / 2, self.encoder.normalisation)
        return embeddings

    def crops(self, images: Tensor) -> Tensor:
        """The evaluation crops, float32 ``[N, 3, size, size]`` of 0 … 255."""
        height, width = images.shape[1], images.shape[2]
        shorter = torch.sym_min(height, width)  # type: ignore[no-untyped-call]
        frame = (self.resize * height // shorter, self.resize * width // shorter)
        if self.squash:
            frame = (self.resize, self.resize)
        x = images.permute(0, 3, 1, 2).to(torch.float32)
        x = F.interpolate(x, size=frame, mode="bilinear", antialias=True, align_corners=False)
        offsets = torch.arange(self.size, device=x.device)
        for dim, side in zip((2, 3), frame, strict=True):
            x = x.index_select(dim, offsets + _half(side - self.size))
        return x

    def _embed(self, crops: Tensor) -> Tensor:
        x = crops.flip(1) if self.encoder.preprocessing.bgr else crops
        embeddings: Tensor = self.encoder(x * self.gain + self.shift)
        return embeddings


def _half(number: int) -> int:
    """``round(number / 2)``, which rounds half to even, in whole numbers.

    >>> [_half(number) for number in range(8)] == [round(number / 2) for number in range(8)]
    True
    """
    return (number + number % 4 // 3) // 2


def write_onnx(graph: PixelsToEmbeddings, settings: Settings, path: Path) -> None:
    """Write ONNX, for onnxruntime and others: one file with its weights inside."""
    # Two images, since a size of one would be taken for a constant.
    example = torch.zeros(2, graph.resize + 5, graph.resize + 14, 3, dtype=torch.uint8)
    any_size = dict.fromkeys(range(3), torch.export.Dim.DYNAMIC)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # remarks on optional packages
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        program = torch.export.export(graph, (example,), dynamic_shapes={"images": any_size})
        written = torch.onnx.export(
            program, dynamo=True, verbose=False, input_names=["images"], output_names=["embeddings"]
        )
    assert written is not None
    model = written.model_proto
    for axis, name in enumerate(("count", "height", "width")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    require("onnx", "onnx").helper.set_model_props(model, {METADATA_KEY: settings.to_json()})
    path.write_bytes(model.SerializeToString())


def write_weights(graph: PixelsToEmbeddings, section: EncoderSection, settings: Settings, path: Path) -> None:
    """Write the weights as safetensors, with the recipe's section on the encoder."""
    from safetensors.torch import save_file

    tensors = {name: value.detach().cpu().contiguous() for name, value in graph.encoder.state_dict().items()}
    described = json.dumps(dataclasses.asdict(dataclasses.replace(section, weights=None)))
    flip = json.dumps(graph.flip)
    save_file(tensors, path, {METADATA_KEY: settings.to_json(), _ENCODER_KEY: described, _FLIP_KEY: flip})


def read_weights(path: Path) -> ExportedModel:
    """The encoder in a ``.safetensors`` file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}): export the run again") from error
    settings = Settings.from_metadata(metadata, path)
    section = load_recipe({"encoder": json.loads(metadata[_ENCODER_KEY])}).encoder
    encoder = encoder_from(section, pretrained=False)
    encoder.load_state_dict(tensors)
    transform = Transform(name="exported", size=settings.size, resize=settings.resize, squash=settings.squash)
    graph = PixelsToEmbeddings(encoder, transform, flip=json.loads(metadata[_FLIP_KEY]))

    def compute(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        with torch.inference_mode():
            embeddings: NDArray[np.float32] = graph(torch.from_numpy(images)).numpy()
        return embeddings

    return ExportedModel(settings, compute)


def _prefixes(trained: frozenset[str] | None) -> str | None:
    """The hashes of the training images for a file's metadata; None where they would take megabytes."""
    if trained is None or len(trained) > MOST_TRAINED:
        return None
    return "".join(sorted(content_hash[:PREFIX] for content_hash in trained))


def _target(run: str | Path, output: str | Path | None, suffix: str) -> Path:
    target = Path(f"{Path(run).resolve().name}{suffix}" if output is None else output).expanduser()
    if target.suffix != suffix:
        raise RecipeError(f"the output file must end in {suffix} for this format, got {str(target)!r}")
    if target.is_dir():
        raise RecipeError(f"cannot write {str(target)!r}: it is a folder; give a file name in it")
    make_folder(target.parent)
    check_writable(target.parent)
    return target


def _photos(
    trained: TrainedRun, given: ImageInput | Iterable[ImageInput] | None, data_root: str | Path | None
) -> tuple[list[NDArray[np.uint8]], str]:
    if given is not None:
        inputs = ImageInputs(given, shorter_side=None)
        return [inputs[row] for row in range(min(len(inputs), _CHECKED_IMAGES))], "images that were given"
    section = with_root_found(trained.recipe.data)
    section = section if data_root is None else dataclasses.replace(section, root=str(data_root))
    try:
        table = read_source(section.source, root=section.root, class_folders=section.class_folders)
        rows = np.unique(np.linspace(0, len(table) - 1, _CHECKED_IMAGES).astype(int)).tolist()
        inputs = ImageInputs([table.images[row] for row in rows], shorter_side=None)
        return [inputs[row] for row in range(len(inputs))], "images of the run"
    except DataError as error:
        raise DataError(
            f"the run's images, to check the file on, are missing ({error}): give others with --images"
        ) from error


def _check(
    model: ExportedModel,
    graph: PixelsToEmbeddings,
    trained: TrainedRun,
    photos: Sequence[NDArray[np.uint8]],
    origin: str,
) -> Check:
    if not photos:
        raise RecipeError("there is no image to check the file on: give at least one")
    photos = [variant for photo in photos for variant in _at_three_sizes(photo)]
    by_run = trained.embed(photos).numpy()
    to_torch = float(np.abs(model.embed(ImageInputs(photos, shorter_side=model.settings.shorter_side)) - by_run).max())
    to_pillow = distance = 0.0
    for photo, expected in zip(photos, by_run, strict=True):
        pixels = np.array(photo)[None]
        with torch.inference_mode():
            in_torch, crop = (part(torch.from_numpy(pixels)) for part in (graph, graph.crops))
        by_file = model.compute(pixels)
        to_torch = max(to_torch, float(np.abs(by_file - in_torch.numpy()).max()))
        by_pillow = trained.transform.evaluate(photo).transpose(2, 0, 1)
        to_pillow = max(to_pillow, float(np.abs(crop[0].numpy() - by_pillow).max()))
        distance = max(distance, float(np.linalg.norm(by_file - expected)))
    if not (to_torch <= TO_TORCH and to_pillow <= TO_PILLOW):
        raise DataError(
            f"nothing was written: embeddings of {len(photos)} {origin} are {to_torch:.1e} from the run's in torch "
            f"({TO_TORCH:.0e} is allowed), and pixels {to_pillow:.2f} levels from Pillow's ({TO_PILLOW:g})"
        )
    return Check(f"{len(photos)} {origin}", to_torch, to_pillow, distance)


def _at_three_sizes(photo: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    """The photo, most of it, and the photo enlarged: an image of the crop's size would not be resized."""
    height, width = photo.shape[:2]
    most = np.ascontiguousarray(photo[: -(-height * 3 // 4), : -(-width * 4 // 5)])
    larger = Image.fromarray(photo).resize((width * 3 // 2, height * 7 // 4), Image.Resampling.BICUBIC)
    return [photo, most, np.array(larger)]


def _card(trained: TrainedRun, file: Path, check: Check) -> str:
    folder = trained.folder
    environment = folder.environment()
    begun = Scores(Conditions(data=environment.data.name, objective=trained.recipe.objective.name))
    scores = folder.scores() if folder.is_finished else begun
    use = [
        f"`{file.name}` takes raw pixels, uint8 `[N, H, W, 3]` in RGB of any size, and crops inside. On {check.images} "
        f"its embeddings were at most {check.to_torch:.0e} from torch's in any number. Its crops were at most "
        f"{check.to_pillow:.2f} levels of 256 from Pillow's, as used in training and by `encode` below, and the "
        f"embeddings of these {check.distance:.3f}.",
        "",
        "```python",
        "import nearkin",
        f"vectors = nearkin.load({file.name!r}).encode(images)  # paths, Pillow's images, arrays; float32 [N, dim]",
        "```",
    ]
    return model_card(folder, trained.recipe, scores, environment, exported=use)
