"""An ONNX file with weights and feature maps in eight bits."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearkin.errors import require
from nearkin.exports.model import Settings
from nearkin.exports.torch_files import write_settings

_LAYERS = ("Conv", "Gemm", "Add", "Clip", "Relu", "MaxPool", "AveragePool", "Concat")


def quantise(source: Path, target: Path, settings: Settings, calibration: Sequence[NDArray[np.uint8]]) -> None:
    """Write ``source`` to ``target`` with the network from its first convolution on in int8, one scale per channel.

    The range of every feature map is what it takes on the batches of ``calibration``, raw pixels ``[N, H, W, 3]``.
    What comes before, the crop, stays as it is, and so does the normalisation at the end.
    """
    onnx, quantization = require("onnx", "onnx"), require("onnxruntime.quantization", "onnx")
    model = onnx.load(str(source))
    kinds = [node.op_type for node in model.graph.node]
    first = kinds.index("Conv")
    last = max(place for place, kind in enumerate(kinds) if kind in ("Conv", "Gemm"))
    kept = [node.name for place, node in enumerate(model.graph.node) if not first <= place <= last]
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.onnx"
        quantization.shape_inference.quant_pre_process(str(source), str(ready), skip_symbolic_shape=True)
        quantization.quantize_static(
            str(ready),
            str(target),
            _Batches(calibration),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            op_types_to_quantize=list(_LAYERS),
            nodes_to_exclude=kept,
        )
    written = onnx.load(str(target))
    write_settings(written, settings)
    target.write_bytes(written.SerializeToString())


class _Batches:
    """Batches as onnxruntime asks for them: one after another, then None."""

    def __init__(self, batches: Sequence[NDArray[np.uint8]]) -> None:
        self._batches: Iterator[NDArray[np.uint8]] = iter(batches)

    def get_next(self) -> dict[str, NDArray[np.uint8]] | None:
        batch = next(self._batches, None)
        return None if batch is None else {"images": batch}
