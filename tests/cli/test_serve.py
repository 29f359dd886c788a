"""The command serve: what it passes on, what it says, what it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from nearkin.index import Index
from nearkin.runs.model import Model, load
from nearkin.serving import app as running
from nearkin.serving.client import Client


@pytest.fixture
def index(tmp_path):
    def embed(images, batch_size):
        return np.array([image.mean(axis=(0, 1)) for image in images], dtype=np.float32) + 1

    model = Model(tmp_path / "gone", "mean colour", 3, "euclidean", 32, embed)
    made = Index.create(tmp_path / "birds.index", model)
    made.add(np.random.default_rng(0).integers(0, 255, (6, 4, 4, 3), dtype=np.uint8), labels=["a", "b"] * 3)
    return tmp_path / "birds.index"


@pytest.fixture
def served(monkeypatch):
    """What the server would have been started with."""
    calls = []

    def serve(index, settings, *, ready):
        calls.append(settings)
        ready(f"http://{settings.host}:{settings.port}")

    monkeypatch.setattr(running, "serve", serve)
    monkeypatch.delenv("NEARKIN_API_KEY", raising=False)
    return calls


def test_help_has_the_rule_for_a_key(nearkin):
    assert "at least 12 characters" in " ".join(nearkin("serve", "--help")[1].replace("│", " ").split())


def test_by_default_only_this_machine_is_served(nearkin, served, index):
    code, out, err = nearkin("serve", index)
    assert code == 0, err
    assert "with 6 images is at http://127.0.0.1:8000" in out
    (settings,) = served
    assert (settings.host, settings.key, settings.read_only) == ("127.0.0.1", None, False)


def test_options_arrive(nearkin, served, index, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    words = ["--port", 8123, "--read-only", "--hide-paths", "--allow-host", "a.example", "--allow-host", "b.example"]
    words += ["--max-megabytes", 2, "--max-megapixels", 1, "--open"]
    code, _, err = nearkin("serve", index, *words)
    assert code == 0, err
    (settings,) = served
    assert (settings.port, settings.read_only, settings.hide_paths) == (8123, True, True)
    assert settings.allow_hosts == ("a.example", "b.example")
    assert (settings.max_bytes, settings.max_pixels) == (2 << 20, 1_000_000)
    assert opened == ["http://127.0.0.1:8123"]


def test_beyond_this_machine_there_is_a_key(nearkin, served, index, monkeypatch):
    code, out, _ = nearkin("serve", index, "--host", "0.0.0.0")
    assert code == 0
    made_up = served[0].key
    assert len(made_up) >= 32
    assert f"/#key={made_up}" in out
    monkeypatch.setenv("NEARKIN_API_KEY", "a key from the environment")
    code, out, _ = nearkin("serve", index, "--host", "0.0.0.0")
    assert served[1].key == "a key from the environment"
    assert "a key from" not in out
    monkeypatch.setenv("NEARKIN_API_KEY", "short")
    code, _, err = nearkin("serve", index)
    assert (code, "12 characters" in err) == (2, True)


def test_what_cannot_be_served(nearkin, served, index, tmp_path):
    code, _, err = nearkin("serve", tmp_path / "bird.index")
    assert (code, "nearkin index RUN FOLDER" in err) == (3, True)
    code, _, err = nearkin("serve", index, "--port", 99999)
    assert (code, "port" in err) == (2, True)
    code, _, err = nearkin("serve", index, "--run", tmp_path / "none")
    assert (code, "no run folder" in err) == (3, True)
    assert not served


def test_from_a_run_to_a_server(trained, photos, tmp_path):
    """The command itself, with an encoder that was trained."""
    folder = tmp_path / "birds.index"
    Index.create(folder, load(trained)).add(photos)
    command = [sys.executable, "-m", "nearkin", "serve", str(folder), "--port", "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        line = process.stdout.readline()
        client = Client(next(word for word in line.split() if word.startswith("http://")))
        query = next(photos.rglob("*.png"))
        (hit,) = client.search(query, k=1)
        assert hit.path == str(query)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
