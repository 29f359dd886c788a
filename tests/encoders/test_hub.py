"""Weights from a hub: a server on loopback speaks the protocol that huggingface_hub expects."""

import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from safetensors.torch import save

from nearkin.encoders import build_encoder
from nearkin.encoders.weights import weights_file
from nearkin.errors import DataError, RecipeError
from nearkin.runs.folder import own_photos_name
from nearkin.training.recipe_check import load_recipe, validate

constants = pytest.importorskip("huggingface_hub.constants")
COMMIT = "a" * 40
MODEL = "hub:timm/resnet18"


class Hub(BaseHTTPRequestHandler):
    model = "timm/resnet18"
    files: dict[str, bytes]
    requests: list[tuple[str, str, str | None]]
    broken_after: int | None = None

    def do_HEAD(self):
        self.answer(with_content=False)

    def do_GET(self):
        self.answer(with_content=True)

    def answer(self, with_content):
        wanted = self.headers.get("Range")
        self.requests.append((self.command, self.path, wanted))
        _, _, rest = self.path.partition("/resolve/")
        content = self.files.get(rest.partition("/")[2])
        if content is None or not self.path.startswith(f"/{self.model}/"):
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        digest = hashlib.sha256(content).hexdigest()
        start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted and with_content else 0
        self.send_response(206 if start else 200)
        for name, value in (("ETag", f'"{digest}"'), ("X-Repo-Commit", COMMIT), ("Accept-Ranges", "bytes")):
            self.send_header(name, value)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if with_content and self.broken_after is not None:
            self.wfile.write(content[start : start + self.broken_after])
            type(self).broken_after = None
            self.connection.close()
        elif with_content:
            self.wfile.write(content[start:])

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub that has a ResNet-18 of ones."""
    tensors = {name: torch.ones_like(value) for name, value in build_encoder("resnet18").backbone.state_dict().items()}
    settings = {"pretrained_cfg": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}
    files = {"model.safetensors": save(tensors), "config.json": json.dumps(settings).encode()}
    handler = type("Handler", (Hub,), {"files": files, "requests": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield handler
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("offline", [True, False])
def test_downloads_once_and_then_asks_nobody(offline, hub, monkeypatch):
    encoder = build_encoder("resnet18", weights=MODEL)
    assert all((p == 1).all() for p in encoder.backbone.parameters())
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    before = len(hub.requests)
    assert build_encoder("resnet18", weights=MODEL).weights_report.loaded
    assert len(hub.requests) == before


def test_offline_without_the_file_says_what_to_do(hub, monkeypatch):
    utils = pytest.importorskip("huggingface_hub.utils")
    renew_sessions = getattr(utils, "reset_sessions", lambda: None)  # before version 1 they remember being offline
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    renew_sessions()
    with pytest.raises(
        DataError, match=r"/timm/resnet18/resolve/main/model\.safetensors else.*encoder\.weights=model\.safetensors"
    ):
        weights_file(MODEL)
    assert not hub.requests
    monkeypatch.undo()
    renew_sessions()


def test_a_model_or_server_that_is_not_there_says_what_to_do(hub, monkeypatch):
    with pytest.raises(DataError, match=r"http://127\.0\.0\.1:.*/timm/resnet19/resolve/v2/model\.safetensors"):
        weights_file("hub:timm/resnet19@v2")
    assert hub.requests[-1][1] == "/timm/resnet19/resolve/v2/model.safetensors", "the address that was asked for"
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match="timm/resnet18"):
        weights_file(MODEL)
    with pytest.raises(DataError, match="timm/resnet18"):
        validate(load_recipe({"encoder": {"backbone": "resnet18", "weights": MODEL}}))


def test_an_interrupted_download_resumes(hub):
    hub.broken_after = 25_000_000  # more than the library reads at a time
    with contextlib.suppress(DataError):  # the library may try again by itself
        weights_file(MODEL)
    assert weights_file(MODEL).read_bytes() == hub.files["model.safetensors"]
    ranges = [wanted for command, path, wanted in hub.requests if command == "GET" and wanted]
    assert any(int(wanted.removeprefix("bytes=").partition("-")[0]) > 0 for wanted in ranges)


def test_a_damaged_file_is_refused(hub):
    file = weights_file(MODEL).resolve()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        weights_file(MODEL)


def test_weights_of_other_pixels_are_refused_unless_the_recipe_says_so(hub):
    hub.files["config.json"] = json.dumps({"pretrained_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}}).encode()
    with pytest.raises(RecipeError, match="preprocessing"):
        build_encoder("resnet18", weights=MODEL)
    assert build_encoder("resnet18", weights=MODEL, options={"preprocessing": "half"})


def test_a_revision_is_asked_for(hub):
    weights_file(f"{MODEL}@v1")
    assert any("/resolve/v1/" in path for _, path, _ in hub.requests)


def test_own_photos_start_from_a_transformer_where_its_weights_can_be_had(hub):
    hub.model = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    hub.files = {"model.safetensors": save(build_encoder("vit_tiny").backbone.state_dict())}
    said = []
    assert own_photos_name(say=said.append) == "own_photos/vit"
    assert "vit_tiny" in said[0]
    before = len(hub.requests)
    assert own_photos_name(say=said.append) == "own_photos/vit"
    assert not any(command == "GET" for command, *_ in hub.requests[before:])


def test_without_a_network_the_hub_is_not_asked_again_and_again(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")  # a name that never is one (RFC 2606)
    monkeypatch.setattr(hub, "hf_hub_download", lambda *_, **__: pytest.fail("the library tries for half a minute"))
    with pytest.raises(DataError, match=r"cannot download .*check the name and the connection"):
        weights_file("hub:timm/nothing-of-this-name")
