"""What tests of the server share: an index with a stand-in encoder, a client in this process, a server in another."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from nearkin.index import Index
from nearkin.serving.app import create_app
from nearkin.serving.settings import Settings

STAND_IN = '''
from pathlib import Path
import numpy as np
from nearkin.runs.model import Model

def colours_of(images, batch_size):
    """An image's mean colour above and below, as a vector of length 1."""
    rows = [np.concatenate([half.mean(axis=(0, 1)) for half in np.array_split(image, 2)]) for image in images]
    vectors = np.nan_to_num(np.array(rows, dtype=np.float32)).reshape(-1, 6) - 127.3
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

def stand_in(embed=colours_of):
    return Model(Path("nowhere"), "stand-in", 6, "cosine", 32, embed, was_trained_on=lambda _: False)
'''
_NAMES = {}
exec(STAND_IN, _NAMES)
stand_in, colours_of = _NAMES["stand_in"], _NAMES["colours_of"]


def encoded(pixels, format="PNG", **options):
    content = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(content, format, **options)
    return content.getvalue()


def plain_image(colour=(200, 30, 30), size=16, format="PNG", **options):
    return encoded(np.full((size, size, 3), colour), format, **options)


def draw(root):
    """Five images of each of four kinds, and a manifest with a year and a place; the last five have no label."""
    rng = np.random.default_rng(0)
    lines = ["path,label,year,place"]
    root.mkdir(parents=True)
    for kind in range(4):
        centre = rng.uniform(0, 255, (2, 1, 3))
        for number in range(5):
            pixels = np.broadcast_to(centre + rng.normal(0, 25, (2, 1, 3)), (2, 8, 3)).repeat(4, axis=0)
            name = f"{kind}-{number}.png"
            (root / name).write_bytes(encoded(pixels.clip(0, 255)))
            lines.append(f"{name},{f'kind {kind}' if kind < 3 else ''},{2000 + 5 * kind + number},{'ab'[number % 2]}")
    (root / "list.csv").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture(scope="session")
def drawn(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("drawn") / "images")


@pytest.fixture(scope="session")
def made_index(drawn, tmp_path_factory):
    made = Index.create(tmp_path_factory.mktemp("made") / "birds.index", stand_in())
    made.add(drawn / "list.csv")
    made.close()
    return made.path


@pytest.fixture
def index(made_index, tmp_path):
    shutil.copytree(made_index, tmp_path / "birds.index")
    opened = Index.open(tmp_path / "birds.index", stand_in())
    yield opened
    opened.close()


@pytest.fixture
def served(index):
    """A client of the application with these settings, in this process."""
    with contextlib.ExitStack() as stack:

        def start(model=None, **settings):
            opened = index if model is None else Index.open(index.path, model)
            app = create_app(opened, Settings(**{"decoders": 1, **settings}))
            return stack.enter_context(TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False))

        yield start


@pytest.fixture
def client(served):
    return served()


@pytest.fixture
def make_image():
    return plain_image


@pytest.fixture
def encode():
    return encoded


@pytest.fixture
def make_model():
    return stand_in


@pytest.fixture
def colours():
    return colours_of


class Server:
    """``nearkin serve`` in a process of its own, with the stand-in encoder."""

    def __init__(self, process, url):
        self.process, self.url = process, url

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(30)


@pytest.fixture
def server(index, tmp_path):
    """Starts a server for the index; ``before`` is code that can change ``model`` and ``settings``."""
    with contextlib.ExitStack() as stack:

        def start(before=""):
            after = """
from nearkin.index import Index
from nearkin.serving.middleware import log_to_stderr
from nearkin.serving.app import serve
from nearkin.serving.settings import Settings
log_to_stderr("info")
settings = Settings(**{"port": 0, "decoders": 1, **settings})
serve(Index.open(folder, model), settings, ready=lambda url: print(url, flush=True))
print("ended", flush=True)
"""
            begin = f"folder, model, settings = {str(index.path)!r}, stand_in(), {{}}"
            text = "\n".join([STAND_IN, begin, before, after])
            process = subprocess.Popen(
                [sys.executable, "-c", text],
                stdout=subprocess.PIPE,
                stderr=open(tmp_path / "log", "w"),  # noqa: SIM115 - the process has it
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            url = process.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url), (tmp_path / "log").read_text()
            return Server(process, url)

        yield start
