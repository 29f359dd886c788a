"""Index, search, server and client beside an exported encoder, where torch cannot be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nearkin
from nearkin.errors import MissingExtraError
from nearkin.runs.model import METADATA_KEY, Settings

for package in ("onnx", "onnxruntime", "fastapi", "python_multipart", "httpx"):
    pytest.importorskip(package)

CODE = """
import json, sys
import nearkin, nearkin.cli
from fastapi.testclient import TestClient
from nearkin.cli import app
from nearkin.serving.app import create_app
from nearkin.serving.settings import Settings
from typer.testing import CliRunner

def told(hits):
    return [(hit.id, hit.score, hit.confidence, hit.label) for hit in hits]

def used(folder):
    index = nearkin.Index.create(folder, nearkin.load("model.onnx"))
    added = index.add("images")
    index.remove([2])
    index = nearkin.Index.open(folder)
    said = {"added": added.added, "classified": index.classify("query.png").label}
    said["hits"] = told(index.search("query.png", k=30))
    where = {"label": ["kind 1", "kind 2"]}
    said["more"] = told(index.search(7, k=4, like=[8], unlike=[1], group_by="label", where=where))
    status = index.status()
    said["brier"], said["engine"] = status.confidence.hit.brier, status.engine["rows"]
    with TestClient(create_app(index, Settings()), base_url="http://127.0.0.1:8000") as client:
        with open("query.png", "rb") as image:
            answer = client.post("/search", files={"image": image}, data={"options": json.dumps({"k": 3})})
        assert answer.status_code == 200, answer.text
        said["served"] = [(hit["id"], hit["score"], hit["confidence"]) for hit in answer.json()["hits"]]
        assert client.get("/").status_code == client.get("/index").status_code == 200
        assert client.get("/map").status_code == 404
        with open("query.png", "rb") as image:
            said["stored"] = client.post("/items", files={"image": image}, data={"label": "kind 0"}).json()
    for command in (["index", "model.onnx", "images", "-o", folder], ["search", folder, "query.png", "--json"]):
        answer = CliRunner().invoke(app, command)
        assert answer.exit_code == 0, answer.output
    assert nearkin.Client("http://127.0.0.1:1")
    return said
"""

REFUSED = """
try:
    import torch
except ImportError:
    pass
else:
    raise AssertionError("torch can be imported, and this shows nothing")
print(json.dumps(used("without")))
from nearkin.index.map_layout import make_layout
index = nearkin.Index.open("without")
assert len(make_layout(index).points) == index.status().items
for asked in (
    lambda: nearkin.load("images"),
    lambda: nearkin.load("model.safetensors"),
):
    try:
        asked()
    except nearkin.NearkinError as error:
        print(error)
sys.argv = ["nearkin", "cluster", "without", "-o", "clusters"]
sys.stderr = sys.stdout
nearkin.cli.main()
"""


def write_tiny_onnx(path):
    """An encoder that takes the mean colours of the upper and the lower half."""
    from onnx import TensorProto, helper, numpy_helper, save

    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["numbers"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("AveragePool", ["planes"], ["halves"], kernel_shape=[8, 16], strides=[8, 16]),
        helper.make_node("Flatten", ["halves"], ["colours"]),
        helper.make_node("Sub", ["colours", "middle"], ["centred"]),
        helper.make_node("LpNormalization", ["centred"], ["embeddings"], axis=1, p=2),
    ]
    graph = helper.make_graph(
        nodes,
        "colours",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", 16, 16, 3])],
        [helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["N", 6])],
        [numpy_helper.from_array(np.array(127.3, dtype=np.float32), "middle")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    size = {"size": 16, "resize": 16, "squash": True, "shorter_side": 16}
    settings = Settings(identity="colours", dim=6, normalisation="l2", trained="", **size)
    helper.set_model_props(model, {METADATA_KEY: settings.to_json()})
    save(model, path)


def test_an_index_of_an_exported_encoder_is_the_same_without_torch(tmp_path, monkeypatch):
    write_tiny_onnx(tmp_path / "model.onnx")
    rng = np.random.default_rng(0)
    for kind in range(4):
        (tmp_path / "images" / f"kind {kind}").mkdir(parents=True)
        centre = rng.uniform(30, 225, (2, 1, 3))
        for number in range(6):
            pixels = np.broadcast_to(centre + rng.normal(0, 25, (2, 1, 3)), (2, 16, 3)).repeat(8, axis=0)
            image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            image.save(tmp_path / "images" / f"kind {kind}" / f"{number}.png")
    image.rotate(90).save(tmp_path / "query.png")
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "blocked").mkdir()
    for package in ("torch", "yaml", "safetensors", "matplotlib", "onnx"):  # docs/export.md does not ask for them
        (tmp_path / "blocked" / f"{package}.py").write_text(
            f"raise ModuleNotFoundError('there is no {package}', name='{package}')"
        )
    paths = [tmp_path / "blocked", Path(nearkin.__file__).parents[1]]
    ended = subprocess.run(
        [sys.executable, "-c", CODE + REFUSED],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == MissingExtraError.exit_code, ended.stderr
    without, *refused = ended.stdout.splitlines()
    assert len(refused) == 3
    assert all("needs torch, which is not installed here: pip install torch" in line for line in refused)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(CODE, names)
    assert_same(json.loads(without), json.loads(json.dumps(names["used"]("with"))))


def assert_same(one, other):
    """Ids and labels alike, numbers to the rounding of the curve that confidences are from."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list):
        assert len(one) == len(other)
        for each in zip(one, other, strict=True):
            assert_same(*each)
    else:
        assert one == (pytest.approx(other, abs=1e-6) if isinstance(other, float) else other)
