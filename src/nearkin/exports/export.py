"""A run's encoder written to one file, which is checked on real images before it gets its name."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from nearkin.data.image_inputs import ImageInput, ImageInputs
from nearkin.data.source import read_source
from nearkin.disk import check_writable, make_folder, write_atomically, writing
from nearkin.errors import DataError, NearkinError, RecipeError, did_you_mean, notice, require
from nearkin.exports.graph import PixelsToEmbeddings
from nearkin.exports.model import ExportedModel, Settings, load_exported
from nearkin.exports.quantise import quantise
from nearkin.exports.torch_files import write_onnx, write_program, write_weights
from nearkin.runs.data import Progress, RunData, open_run_data, with_root_found
from nearkin.runs.model_card import model_card
from nearkin.runs.run_model import identity_of
from nearkin.runs.scores import Conditions, Scores
from nearkin.runs.trained import TrainedRun, load_run
from nearkin.training.build import data_of

Format = Literal["onnx", "torch-export", "safetensors"]
SUFFIX = {"onnx": ".onnx", "torch-export": ".pt2", "safetensors": ".safetensors"}

TO_TORCH = 1e-5
"""How far any number of an embedding may be from the same preprocessing and network in torch."""
TO_PILLOW = 1.25
"""How many of 256 levels a pixel of the crop may be from Pillow's: it rounds twice, by half a level each, and a quarter
is left for single precision in images of thousands of pixels. Embeddings of photos turn by a few degrees for it."""
TO_FLOAT = 0.9
"""The cosine to the embeddings in float32 that those in int8 must have on average, or nothing is written."""

_CHECKED, _CALIBRATED, _AT_A_TIME = 6, 128, 16


@dataclass(frozen=True)
class Check:
    """How far the file's embeddings of real images are from those of the run."""

    images: str
    """Which they were."""
    to_torch: float
    """The largest difference of any number to the same preprocessing in torch."""
    to_pillow: float
    """The largest difference of a pixel of the crop to Pillow's, in levels of 256."""
    distance: float
    """The largest distance that this makes between embeddings, when the file resizes and not Pillow."""


@dataclass(frozen=True)
class Int8:
    """What eight bits cost."""

    cosine: float
    """To the embeddings in float32, on average over the images that were looked at."""
    recall: float | None = None
    """R@1 on the run's test classes; None where it has none or they are not at hand."""
    float_recall: float | None = None
    """The same of the file in float32."""


@dataclass(frozen=True)
class Exported:
    """What :func:`export` wrote."""

    file: Path
    card: Path
    settings: Settings
    check: Check
    int8: Int8 | None = None


def export(
    run: str | Path,
    format: Format = "onnx",
    output: str | Path | None = None,
    *,
    int8: bool = False,
    which: str = "best",
    images: ImageInput | Iterable[ImageInput] | None = None,
    data_root: str | Path | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write the encoder of a run as one file, from raw uint8 pixels ``[N, H, W, 3]`` of any size to embeddings.

    The file is checked before it gets its name: on ``images``, by default some of the run's own, its embeddings must be
    those of the run to ``TO_TORCH``, and its crops those of Pillow to ``TO_PILLOW``. A model card goes beside.

    Args:
        run: a run folder.
        format: ``onnx``, ``torch-export`` (.pt2) or ``safetensors`` (the weights, for nearkin to load).
        output: the file; default: the run's name with the format's suffix, here.
        int8: ONNX only: eight bits, with ranges from the run's own images, whose R@1 is measured before and after.
        which: ``best`` or ``last`` checkpoint.
        images: real images to check it on, and to find the ranges for int8 where the run's own are not at hand.
        data_root: where the benchmarks are.
        progress: told how many images are decoded, and of how many.
    """
    if format not in get_args(Format):
        raise RecipeError(f"unknown format {format!r}; {did_you_mean(str(format), get_args(Format))}")
    if int8 and format != "onnx":
        raise RecipeError(f"int8 is for the format onnx, not for {format}")
    if format == "onnx":
        require("onnxruntime", "onnx")
    target = _target(run, output, SUFFIX[format])
    trained = load_run(run, which=which, device="cpu")
    graph = PixelsToEmbeddings(trained.encoder, trained.transform, flip=trained.recipe.protocol.flip)
    settings = _settings(trained, graph)
    pictures, named = _pictures(trained, images, data_root)
    with writing(target):
        temporary = target.with_name(f".{target.stem}.{os.getpid()}{target.suffix}")
        small = temporary.with_stem(f"{temporary.stem}-int8")
        try:
            if format == "onnx":
                write_onnx(graph, settings, temporary)
            elif format == "torch-export":
                write_program(graph, settings, temporary)
            else:
                write_weights(graph, trained.recipe.encoder, settings, temporary)
            model = load_exported(temporary)
            check = _checked(model, graph, trained, pictures, named)
            lost = None
            if int8:
                settings = dataclasses.replace(settings, identity=f"{settings.identity}-int8")
                data = _own_data(trained, data_root, progress)
                quantise(temporary, small, settings, _calibration(model, data, pictures if images is not None else []))
                lost = _lost(model, load_exported(small), trained, data, pictures)
            os.replace(small if int8 else temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
            small.unlink(missing_ok=True)
    card = target.with_name(f"{target.name}.md")
    write_atomically(card, _card(trained, target, check, lost).encode())
    return Exported(target, card, settings, check, lost)


def keep_onnx(trained: TrainedRun, file: Path) -> None:
    """Write the encoder of an opened run for onnxruntime to ``file``, checked as every export is."""
    for module in ("onnxruntime", "onnx", "onnxscript"):
        require(module, "onnx")
    check_writable(file.parent)
    graph = PixelsToEmbeddings(trained.encoder, trained.transform, flip=trained.recipe.protocol.flip)
    pictures, named = _pictures(trained, None, None)
    temporary = file.with_name(f".{file.stem}.{os.getpid()}{file.suffix}")
    with writing(file):
        try:
            write_onnx(graph, _settings(trained, graph), temporary)
            _checked(load_exported(temporary), graph, trained, pictures, named)
            os.replace(temporary, file)
        finally:
            temporary.unlink(missing_ok=True)


def _target(run: str | Path, output: str | Path | None, suffix: str) -> Path:
    target = Path(f"{Path(run).resolve().name}{suffix}" if output is None else output).expanduser()
    if target.suffix != suffix:
        raise RecipeError(f"the output file must end in {suffix} for this format, got {str(target)!r}")
    if target.is_dir():
        raise RecipeError(f"cannot write {str(target)!r}: it is a folder; give a file name in it")
    make_folder(target.parent)
    check_writable(target.parent)
    return target


def _settings(trained: TrainedRun, graph: PixelsToEmbeddings) -> Settings:
    transform = trained.transform
    return Settings(
        identity=identity_of(trained),
        dim=trained.encoder.dim,
        normalisation=trained.encoder.normalisation,
        size=transform.size,
        resize=transform.resize,
        squash=transform.squash,
        shorter_side=data_of(trained.recipe).shorter_side,
    )


def _pictures(
    trained: TrainedRun, given: ImageInput | Iterable[ImageInput] | None, data_root: str | Path | None
) -> tuple[list[NDArray[np.uint8]], str]:
    """A few real images as they are, and what to call them."""
    if given is not None:
        opened = ImageInputs(given, shorter_side=None)
        return [opened[row] for row in range(min(len(opened), _CHECKED))], "images that were given"
    section = with_root_found(trained.recipe.data)
    section = section if data_root is None else dataclasses.replace(section, root=str(data_root))
    try:
        table = read_source(section.source, root=section.root, class_folders=section.class_folders)
        places = np.unique(np.linspace(0, len(table) - 1, _CHECKED).astype(int)).tolist()
        opened = ImageInputs([table.images[place] for place in places], shorter_side=None)
        return [opened[row] for row in range(len(opened))], "images of the run"
    except DataError as error:
        import matplotlib

        notice(f"the run's images are not at hand ({error}): the file is checked on a photo that comes with matplotlib")
        photo = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
        picture = ImageInputs(photo, shorter_side=None)[0]
        return [picture, picture[:300], picture[200:260, 200:290]], "cuts of a photo that comes with matplotlib"


def _checked(
    model: ExportedModel,
    graph: PixelsToEmbeddings,
    trained: TrainedRun,
    pictures: Sequence[NDArray[np.uint8]],
    named: str,
) -> Check:
    if not pictures:
        raise RecipeError("there is no image to check the file on: give at least one")
    pictures = [variant for picture in pictures for variant in _at_three_sizes(picture)]
    by_run = trained.embed(pictures).numpy()
    to_torch = float(np.abs(model.encode(pictures) - by_run).max())
    to_pillow = distance = 0.0
    for picture, expected in zip(pictures, by_run, strict=True):
        pixels = np.array(picture)[None]
        with torch.inference_mode():
            same, crop = (part(torch.from_numpy(pixels)) for part in (graph, graph.crops))
        found = model.compute(pixels)
        to_torch = max(to_torch, float(np.abs(found - same.numpy()).max()))
        by_pillow = trained.transform.evaluate(picture).transpose(2, 0, 1)
        to_pillow = max(to_pillow, float(np.abs(crop[0].numpy() - by_pillow).max()))
        distance = max(distance, float(np.linalg.norm(found - expected)))
    if not (to_torch <= TO_TORCH and to_pillow <= TO_PILLOW):
        raise DataError(
            f"nothing was written: embeddings of {len(pictures)} {named} are {to_torch:.1e} from the run's in torch "
            f"({TO_TORCH:.0e} is allowed), and pixels {to_pillow:.2f} levels from Pillow's ({TO_PILLOW:g}). Take "
            f"another format, and report which backbone it was"
        )
    return Check(f"{len(pictures)} {named}", to_torch, to_pillow, distance)


def _at_three_sizes(picture: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    """As it is, most of it, and enlarged: images that are kept at the size of the crop would not be resized at all."""
    height, width = picture.shape[:2]
    most = np.ascontiguousarray(picture[: -(-height * 3 // 4), : -(-width * 4 // 5)])
    larger = Image.fromarray(picture).resize((width * 3 // 2, height * 7 // 4), Image.Resampling.BICUBIC)
    return [picture, most, np.array(larger)]


def _own_data(trained: TrainedRun, data_root: str | Path | None, progress: Progress | None) -> RunData | None:
    try:
        return open_run_data(trained.folder, trained.recipe, data_root=data_root, progress=progress)
    except NearkinError as error:
        notice(f"what int8 costs in R@1 is not measured, as the run's data are not at hand: {error}")
        return None


def _calibration(
    model: ExportedModel, data: RunData | None, given: Sequence[NDArray[np.uint8]]
) -> list[NDArray[np.uint8]]:
    """Batches of training images, or of those that were given."""
    if data is not None:
        rows = data.protocol.train_rows
        chosen = rows[np.unique(np.linspace(0, len(rows) - 1, _CALIBRATED).astype(int))].tolist()
        frames = [model.frame(data.images.images[row]) for row in chosen]
    else:
        frames = [model.frame(picture) for picture in given]
    if not frames:
        raise DataError("int8 needs real images to find the ranges of its numbers: give some with --images FOLDER")
    return [np.stack(frames[start : start + _AT_A_TIME]) for start in range(0, len(frames), _AT_A_TIME)]


def _lost(
    model: ExportedModel,
    small: ExportedModel,
    trained: TrainedRun,
    data: RunData | None,
    pictures: Sequence[NDArray[np.uint8]],
) -> Int8:
    """What int8 changes: how far embeddings turn, and where the run's test classes are at hand their R@1."""
    recalls: list[float | None] = [None, None]
    if data is None or data.protocol.test is None:
        found = [each.encode(pictures) for each in (model, small)]
    else:
        part = data.protocol.test
        rows = np.unique(part.rows)
        found = [each.encode(data.images.images, rows=rows) for each in (model, small)]
        for place, embeddings in enumerate(found):
            known = partial(_looked_up, rows, torch.from_numpy(embeddings))
            scores = data.protocol.score(part, known, distance=trained.encoder.distance)
            recalls[place] = scores.get("R@1")
    cosine = float(_cosines(*found).mean())
    if not cosine >= TO_FLOAT:
        raise DataError(
            f"nothing was written: in int8 embeddings have a cosine of {cosine:.3f} to those in float32, less than "
            f"{TO_FLOAT}. Export this encoder without int8"
        )
    return Int8(cosine, recall=recalls[1], float_recall=recalls[0])


def _looked_up(rows: NDArray[np.int64], embeddings: torch.Tensor, wanted: NDArray[np.int64]) -> torch.Tensor:
    return embeddings[np.searchsorted(rows, wanted)]


def _cosines(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines: NDArray[np.float32] = (a * b).sum(axis=1) / np.maximum(lengths, 1e-12)
    return cosines


def _card(trained: TrainedRun, file: Path, check: Check, int8: Int8 | None) -> str:
    folder = trained.folder
    environment = folder.environment()
    begun = Scores(Conditions(data=environment.data.name, objective=trained.recipe.objective.name))
    scores = folder.scores() if folder.is_finished else begun
    about = [
        f"`{file.name}` takes raw pixels, uint8 `[N, H, W, 3]` in RGB of any size, and crops inside. On {check.images} "
        f"its embeddings were at most {check.to_torch:.0e} from the same computation in torch in any number. Where the "
        f"file resizes and not Pillow, as in training, pixels were at most {check.to_pillow:.2f} levels of 256 apart, "
        f"and embeddings {check.distance:.3f}; `encode` below crops with Pillow.",
    ]
    if int8 is not None:
        measured = "R@1 was not measured"
        if int8.recall is not None and int8.float_recall is not None:
            measured = (
                f"R@1 on the run's test classes {100 * int8.recall:.2f}, {100 * int8.float_recall:.2f} in float32"
            )
        about += ["", f"Weights and feature maps are int8: cosine to float32 {int8.cosine:.4f}, {measured}."]
    about += [
        "",
        "```python",
        "from nearkin.exports.model import load_exported",
        f"vectors = load_exported({file.name!r}).encode(images)  # paths, Pillow's images, arrays; float32 [N, dim]",
        "```",
    ]
    return model_card(folder, trained.recipe, scores, environment, exported=about)
