from __future__ import annotations

import numpy as np
import pytest

from nearkin.exports.model import load_exported
from nearkin.exports.torch_files import write_onnx

for module in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(module, reason="the extra onnx is not installed")

from nearkin.exports.quantise import quantise  # noqa: E402


@pytest.mark.parametrize("backbone", ["small", pytest.param("efficientnet_lite0", marks=pytest.mark.slow)])
def test_eight_bits_are_smaller_and_nearly_the_same(backbone, graph_of, photo_of, tmp_path):
    import onnx

    graph, settings = graph_of(backbone)
    whole, small = tmp_path / "a.onnx", tmp_path / "b.onnx"
    write_onnx(graph, settings, whole)
    images = np.stack([photo_of(71, 71, seed) for seed in range(12)])
    quantise(whole, small, settings, [images[:6], images[6:]])
    assert small.stat().st_size < 0.45 * whole.stat().st_size
    kinds = {node.op_type for node in onnx.load(str(small)).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    others = np.stack([photo_of(90, 100, seed) for seed in range(20, 26)])
    found, expected = load_exported(small).compute(others), load_exported(whole).compute(others)
    assert (found * expected).sum(axis=1).min() > 0.95
    assert np.abs(found - expected).max() > 1e-5
    assert load_exported(small).settings == settings
