"""Bytes, requests a second, requests at once and seconds: each limit holds, and says so."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nearkin.serving.limits import Limits, Rate
from nearkin.serving.settings import Settings


def test_a_request_of_too_many_bytes_is_refused_before_it_is_read(served, make_image):
    client = served(max_bytes=10_000)
    large = client.post("/search", files={"image": ("a.png", bytes(20_000))})
    assert (large.status_code, "10,000 bytes" in large.json()["error"]) == (413, True)
    assert client.post("/search", files={"image": ("a.png", make_image())}).status_code == 200

    def stream():  # without a length that could be looked at
        yield b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
        for _ in range(20):
            yield bytes(1000)
        yield b"\r\n--x--\r\n"

    form = {"content-type": "multipart/form-data; boundary=x"}
    for path in ("/search", "/items"):
        assert client.post(path, content=stream(), headers=form).status_code == 413
    assert client.get("/health", headers={"content-length": "100000"}).status_code == 200
    for length in ("-1", "x", "1e3"):
        assert client.get("/items/1", headers={"content-length": length}).status_code == 413


def test_json_is_short(client):
    answer = client.post("/search", json={"id": 1, "like": [1] * 600_000})
    assert (answer.status_code, "1,048,576 bytes" in answer.json()["error"]) == (413, True)


def test_what_is_read_stops_at_the_limit():
    """Not a byte more than one message beyond it is taken from the connection."""
    received = []

    async def receive():
        received.append(1)
        return {"type": "http.request", "body": bytes(1000), "more_body": True}

    async def app(scope, receive, send):
        while True:
            await receive()

    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/items", "headers": [(b"content-type", b"multipart/form-data")]}
    asyncio.run(Limits(app, Settings(max_bytes=10_000))(scope, receive, send))
    assert sent[0]["status"] == 413
    assert len(received) == 11


def test_rate_is_for_each_client():
    now = [0.0]
    rate = Rate(2.0, clock=lambda: now[0])
    assert [rate.wait("a") for _ in range(21)] == [0.0] * 20 + [0.5]
    assert rate.wait("b") == 0.0
    now[0] = 0.5
    assert (rate.wait("a"), rate.wait("a")) == (0.0, 0.5)
    now[0] = 1000.0
    assert [rate.wait("a") for _ in range(21)].count(0.0) == 20


def test_rate_does_not_remember_clients_for_ever():
    now = [0.0]
    rate = Rate(1.0, clock=lambda: now[0])
    for number in range(25_000):
        now[0] += 0.01
        assert rate.wait(str(number)) == 0.0
    assert len(rate._left) <= 10_000


def test_too_many_requests_are_told_when_to_come_again(served):
    client = served(rate=0.5)
    statuses = [client.get("/items/1").status_code for _ in range(8)]
    assert statuses == [200] * 5 + [429] * 3
    answer = client.get("/items/1")
    assert 1 <= int(answer.headers["retry-after"]) <= 2
    assert "try again" in answer.json()["error"]
    assert client.get("/health").status_code == 200


@pytest.fixture
def held(served, make_model, colours):
    """A client whose encoder waits until it is let go on."""
    go, begun = threading.Event(), threading.Event()

    def embed(images, batch_size):
        begun.set()
        assert go.wait(30)
        return colours(images, batch_size)

    def start(**settings):
        return served(model=make_model(embed), **settings), begun, go

    yield start
    go.set()


def search(client, content):
    return client.post("/search", files={"image": ("a.png", content)})


def test_more_requests_than_can_be_worked_on_are_sent_away_for_a_moment(held, make_image):
    client, begun, go = held(concurrency=2)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(search, client, make_image()) for _ in range(2)]
        assert begun.wait(30)
        until = time.monotonic() + 30
        while (refused := client.get("/items/1")).status_code == 200:  # the second has not come so far yet
            assert time.monotonic() < until
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert client.get("/health").status_code == 200
        go.set()
        assert [each.result().status_code for each in waiting] == [200, 200]
    assert client.get("/items/1").status_code == 200


def test_searching_by_id_goes_on_while_an_image_is_embedded(held, make_image):
    client, begun, go = held()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(search, client, make_image())
        assert begun.wait(30)
        assert client.post("/search", json={"id": 1}).status_code == 200
        go.set()
        assert waiting.result().status_code == 200


def test_searching_goes_on_while_an_image_is_added(held, make_image):
    client, begun, go = held()
    with ThreadPoolExecutor(1) as threads:
        adding = threads.submit(client.post, "/items", files={"image": ("a.png", make_image())})
        assert begun.wait(30)
        assert client.post("/search", json={"id": 1}).status_code == 200
        assert client.get("/health").json()["items"] == 20
        go.set()
        assert adding.result().json() == {"id": 20, "added": True}
    assert client.get("/health").json()["items"] == 21


def test_a_request_that_takes_too_long_is_given_up(held, make_image):
    client, _, go = held(timeout=2.0)
    answer = search(client, make_image())
    assert (answer.status_code, "longer than 2 s" in answer.json()["error"]) == (503, True)
    go.set()
    assert client.get("/items/1").status_code == 200


def test_pixels_are_limited_by_the_header(served, make_image):
    client = served(max_pixels=1000)
    answer = search(client, make_image(size=64))
    assert (answer.status_code, "64 x 64 pixels, at most 1,000" in answer.json()["error"]) == (413, True)
    assert json.loads(client.get("/index").text)["limits"]["pixels"] == 1000


def test_k_and_ids_are_limited_by_the_settings(served):
    client = served(max_k=5, max_offset=10, max_ids=3)
    for body in ({"k": 6}, {"offset": 11}, {"like": [1, 2, 3, 4]}, {"where": {"id": [1, 2, 3, 4]}}):
        assert client.post("/search", json={"id": 1, **body}).status_code == 422
    assert client.post("/items/lookup", json={"ids": [1, 2, 3, 4]}).status_code == 422
    assert client.post("/corrections", json={"ids": [1, 2, 3, 4], "label": "a"}).status_code == 422
    assert len(client.post("/search", json={"id": 1, "k": 5}).json()["hits"]) == 5
