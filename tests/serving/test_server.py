"""A server in a separate process and its client: the same answers as the index, and an orderly end."""

from __future__ import annotations

import io
import json
import signal
import socket
import threading
import time
import urllib.request

import numpy as np
import pytest
from PIL import Image

import nearkin
from nearkin.errors import DataError, OutputError
from nearkin.index import Index
from nearkin.index.index import Stored
from nearkin.index.items import Item
from nearkin.serving.app import serve
from nearkin.serving.client import Client, ServerError
from nearkin.serving.settings import Settings


def test_sigterm_finishes_the_request_that_was_taken(server, make_image, tmp_path):
    slow = f"""
import time
def embed(images, batch_size):
    Path({str(tmp_path / "begun")!r}).touch()
    time.sleep(1.0)
    return colours_of(images, batch_size)
model = stand_in(embed)"""
    started = server(slow)
    found = []
    asking = threading.Thread(target=lambda: found.append(Client(started.url).search(make_image(), k=3)))
    asking.start()
    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    assert started.stop() == 0
    asking.join(30)
    assert len(found[0]) == 3
    assert "ended" in started.process.stdout.read()
    with pytest.raises(ServerError, match="cannot be reached"):
        Client(started.url).status()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["status"] for line in lines if line["event"] == "request"] == [200]


def test_ctrl_c_ends_it_quietly(server):
    started = server()
    assert urllib.request.urlopen(f"{started.url}/health").status == 200
    assert started.stop(signal.SIGINT) == 0


def test_a_port_that_is_taken_is_said(index):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OutputError, match="--port 0"):
            serve(index, Settings(port=taken.getsockname()[1]))


def test_an_encoder_that_has_gone_is_said_at_once(index):
    with pytest.raises(DataError, match="--run RUN"):
        serve(Index.open(index.path), Settings(port=0))


def near(found, expected):
    assert [hit.id for hit in found] == [hit.id for hit in expected]
    for one, other in zip(found, expected, strict=True):
        assert (one.label, one.path, one.columns) == (other.label, other.path, other.columns)
        assert one.score == pytest.approx(other.score, abs=1e-6)
        assert one.confidence == pytest.approx(other.confidence, abs=1e-6)


def test_a_client_has_the_answers_of_the_index(server, index, drawn, make_image):
    client = nearkin.Client(server().url)
    path = drawn / "1-2.png"
    pixels = np.array(Image.open(path))
    expected = index.search(path, k=4)
    for query in (path, str(path), path.read_bytes(), pixels, Image.open(path)):
        near(client.search(query, k=4), expected)
    near(client.search(3), index.search(3))
    near(client.search(np.int64(3)), index.search(3))
    vector = index.vectors([5])[0]
    near(client.search(vector, k=2), index.search(vector, k=2))
    options = {"where": {"label": ["kind 0", "kind 1"], "year": (2002, None)}, "like": [1], "unlike": [9], "offset": 1}
    near(client.search(path, k=3, **options), index.search(path, k=3, **options))
    near(client.search(like=[1, 2], group_by="label"), index.search(like=[1, 2], group_by="label"))
    near(client.search(path, min_confidence=0.5), index.search(path, min_confidence=0.5))
    assert client.get(6) == index.get(6)
    assert client.thumbnail(6) == index.thumbnail(6)
    status = client.status()
    assert (status["items"], [column["name"] for column in status["columns"]]) == (20, ["year", "place"])
    assert status["confidence"]["hit"]["intercept"] == index.status().confidence.hit.intercept
    larger = pixels.repeat(2, axis=0)
    half = client.search(larger, k=1, crop=(0, 0, 1, 0.5))
    assert half[0].score == pytest.approx(index.search(larger[:8], k=1)[0].score, abs=1e-6)

    assert client.add(make_image(), "red", {"year": 1999}) == Stored(20, True)
    assert client.add(make_image()) == Stored(20, False)
    assert client.get(20) == Item(20, None, "red", {"year": 1999, "place": None})
    assert Image.open(io.BytesIO(client.thumbnail(20))).size == (16, 16)
    client.remove([20, 0])
    assert len(index) == 19
    for wrong, said, status in (
        (lambda: client.get(20), "no item 20", 404),
        (lambda: client.remove([20]), "no item 20", 404),
        (lambda: client.search(b"no image"), "no image", 415),
        (lambda: client.search(1, k=10**6), "at most", 422),
        (lambda: client.search(1, where={"colour": "red"}), "colour", 422),
        (lambda: client.search(), "give an image", 422),
    ):
        with pytest.raises(ServerError, match=said) as caught:
            wrong()
        assert caught.value.status == status


def test_a_client_with_a_key(server):
    url = server("settings.update(key='a long secret key', max_bytes=100_000)").url
    assert Client(url, key="a long secret key").status()["items"] == 20
    with pytest.raises(ServerError, match="needs its key"):
        Client(url).status()
    with pytest.raises(ServerError):  # 413, or the connection that is closed on whoever goes on sending
        Client(url, key="a long secret key").search(bytes(5_000_000))


def test_what_cannot_be_sent(tmp_path):
    client = Client("http://127.0.0.1:9")
    with pytest.raises(ServerError, match="is 'nearkin serve' running"):
        client.status()
    for query, said in ((tmp_path / "none.png", "none.png"), (object(), "object"), (1.5, "float")):
        with pytest.raises(DataError, match=said):
            client.search(query)
    with pytest.raises(DataError, match="pair"):
        client.search(1, where={"year": (1, 2, 3)})
