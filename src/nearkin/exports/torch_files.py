"""Writing and reading the formats: ONNX, torch's own exported program, and the weights alone with what they need."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from nearkin.data.transforms import Transform
from nearkin.errors import DataError, require
from nearkin.exports.graph import PixelsToEmbeddings
from nearkin.exports.model import KEY, ExportedModel, Settings
from nearkin.recipe import EncoderSection
from nearkin.training.build import encoder_from
from nearkin.training.recipes import load_recipe

_ENCODER, _FLIP = "nearkin.encoder", "nearkin.flip"


def write_program(graph: PixelsToEmbeddings, settings: Settings, path: Path) -> None:
    """As ``torch.export`` writes it: run by any program with torch, without nearkin."""
    program = _program(graph)
    with _hushed():
        torch.export.save(program, path, extra_files={KEY: settings.to_json()})


def write_onnx(graph: PixelsToEmbeddings, settings: Settings, path: Path) -> None:
    """As ONNX, for onnxruntime and others; one file with its weights inside."""
    for module in ("onnx", "onnxscript"):
        require(module, "onnx")
    with _hushed():
        written = torch.onnx.export(
            _program(graph),
            dynamo=True,
            verbose=False,
            input_names=["images"],
            output_names=["embeddings"],
        )
    assert written is not None
    model = written.model_proto
    for place, name in enumerate(("count", "height", "width")):
        model.graph.input[0].type.tensor_type.shape.dim[place].dim_param = name
    write_settings(model, settings)
    path.write_bytes(model.SerializeToString())


def write_settings(model: object, settings: Settings) -> None:
    """Put ``settings`` into the metadata of an ONNX model, in place of others."""
    require("onnx", "onnx").helper.set_model_props(model, {KEY: settings.to_json()})


def write_weights(graph: PixelsToEmbeddings, section: EncoderSection, settings: Settings, path: Path) -> None:
    """The weights as safetensors, with the encoder's section of the recipe; read by nearkin, or by anybody by name."""
    from safetensors.torch import save_file

    tensors = {name: value.detach().cpu().contiguous() for name, value in graph.encoder.state_dict().items()}
    described = dataclasses.asdict(dataclasses.replace(section, weights=None))
    metadata = {KEY: settings.to_json(), _ENCODER: json.dumps(described), _FLIP: json.dumps(graph.flip)}
    save_file(tensors, path, metadata=metadata)


def load(path: Path) -> ExportedModel:
    """The encoder in a ``.pt2`` or ``.safetensors`` file."""
    settings, module = _read_program(path) if path.suffix == ".pt2" else _read_weights(path)

    def compute(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        with torch.inference_mode():
            found: NDArray[np.float32] = module(torch.from_numpy(images)).numpy()
        return found

    return ExportedModel(settings, compute)


def _read_program(path: Path) -> tuple[Settings, torch.nn.Module]:
    extra = {KEY: ""}
    try:
        program = torch.export.load(path, extra_files=extra)
    except Exception as error:  # a damaged archive can make it raise nearly anything
        raise DataError(
            f"{path} cannot be read ({' '.join(str(error).split())[:200]}): export the run again"
        ) from error
    return Settings.from_metadata(extra, path), program.module()


def _read_weights(path: Path) -> tuple[Settings, torch.nn.Module]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} cannot be read ({error}): export the run again") from error
    settings = Settings.from_metadata(metadata, path)
    section = load_recipe({"encoder": json.loads(metadata[_ENCODER])}).encoder
    encoder = encoder_from(section, pretrained=False)
    encoder.load_state_dict(tensors)
    transform = Transform(name="exported", size=settings.size, resize=settings.resize, squash=settings.squash)
    return settings, PixelsToEmbeddings(encoder, transform, flip=json.loads(metadata[_FLIP]))


def _program(graph: PixelsToEmbeddings) -> torch.export.ExportedProgram:
    # An example with two of each, as a size of one would be taken for a constant.
    example = torch.zeros(2, graph.resize + 5, graph.resize + 14, 3, dtype=torch.uint8)
    any_size = dict.fromkeys(range(3), torch.export.Dim.DYNAMIC)
    with torch.no_grad(), _hushed():
        return torch.export.export(graph, (example,), dynamic_shapes={"images": any_size})


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Without the exporters' remarks on packages that they do without and on their own use of torch."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
