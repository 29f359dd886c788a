"""``environment.json`` in types: files of other versions are read, and what is written has the keys it always had."""

from __future__ import annotations

import json
from pathlib import Path

from nearkin.recipe import EncoderSection
from nearkin.runs.environment import DataRecord, Environment, weights_hash
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.recipes import load_recipe
from nearkin.training.state import NullObserver

BEFORE = json.loads((Path(__file__).parents[1] / "assets" / "records" / "environment.json").read_text())
"""Written before it had types."""


def test_a_file_is_written_as_it_was_read():
    environment = Environment.from_record(BEFORE)
    assert environment.as_record() == BEFORE
    assert list(environment) == list(BEFORE), "in its order"
    assert environment.data.training_classes == BEFORE["data"]["training_classes"]
    assert environment["data"]["name"] == "photos"


def test_a_run_writes_the_keys_of_before(photos, tmp_path):
    changes = ["encoder.backbone=small", "training.max_steps=1", "training.device=cpu", "data.image_size=8"]
    run(load_recipe({}, [*changes, f"data.source={json.dumps(str(photos))}"]), RunFolder(tmp_path), NullObserver())
    written = json.loads((tmp_path / "environment.json").read_text())
    assert list(written) == list(BEFORE)
    assert list(written["data"]) == list(BEFORE["data"])
    assert (written["data"]["images"], written["data"]["source"]) == (48, str(photos))
    assert RunFolder(tmp_path).environment() == written


def test_files_of_other_versions_are_read():
    early = Environment.from_record({"hardware": "CPU", "data": {"name": "photos", "images": 3}})
    assert (early.hardware, early.data) == ("CPU", DataRecord(name="photos", images=3))
    assert Environment.from_record({"data": None}).data == DataRecord()
    later = json.loads(json.dumps(BEFORE)) | {"carbon": 3}
    later["data"]["carbon"] = 3
    assert Environment.from_record(later) == BEFORE


def test_weights_are_known_by_their_content(tmp_path):
    for name, content in (("a", b"weights"), ("moved", b"weights"), ("other", b"others")):
        (tmp_path / name).write_bytes(content)
    a, moved, other = (weights_hash(EncoderSection(weights=str(tmp_path / name))) for name in ("a", "moved", "other"))
    assert a == moved != other
    assert weights_hash(EncoderSection(weights="imagenet")) is None
