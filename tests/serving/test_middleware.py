"""Limits of a request, host, origin, key and headers, metrics and logs, and settings that are refused."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nearkin.errors import RecipeError
from nearkin.serving.errors import RequestError
from nearkin.serving.middleware import HEADERS, BodyLimit, JsonLines, host_name
from nearkin.serving.settings import Settings, is_loopback

KEY = "a long secret key"
WITH_KEY = {"authorization": f"Bearer {KEY}"}


def test_a_request_of_too_many_bytes_is_refused_before_it_is_read(served, make_image):
    client = served(max_bytes=10_000)
    large = client.post("/search", files={"image": ("a.png", bytes(20_000))})
    assert (large.status_code, "10,000 bytes" in large.json()["error"]) == (413, True)
    assert client.post("/search", files={"image": ("a.png", make_image())}).status_code == 200

    def stream():  # without a length in its header
        yield b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
        for _ in range(20):
            yield bytes(1000)
        yield b"\r\n--x--\r\n"

    form = {"content-type": "multipart/form-data; boundary=x"}
    for path in ("/search", "/items"):
        assert client.post(path, content=stream(), headers=form).status_code == 413
    for length in ("-1", "x", "1e3"):
        assert client.get("/items/1", headers={"content-length": length}).status_code == 413
    answer = served().post("/search", json={"id": 1, "like": [1] * 600_000})
    assert (answer.status_code, "1,048,576 bytes" in answer.json()["error"]) == (413, True)


def test_what_is_read_stops_at_the_limit():
    """Not a byte more than one message beyond it is taken from the connection."""
    received = []

    async def receive():
        received.append(1)
        return {"type": "http.request", "body": bytes(1000), "more_body": True}

    async def app(scope, receive, send):
        for _ in range(100):
            await receive()

    scope = {"type": "http", "method": "POST", "path": "/items", "headers": [(b"content-type", b"multipart/form-data")]}
    with pytest.raises(RequestError, match="10,000 bytes"):
        asyncio.run(BodyLimit(app, Settings(max_bytes=10_000))(scope, receive, None))
    assert len(received) == 11


def test_pixels_k_and_ids_are_limited_by_the_settings(served, make_image):
    client = served(max_pixels=1000, max_k=5, max_offset=10, max_ids=3)
    large = {"image": ("a.png", make_image(size=64))}
    answer = client.post("/search", files=large, data={"options": '{"k": 5}'})
    assert (answer.status_code, "64 x 64 pixels, at most 1,000" in answer.json()["error"]) == (413, True)
    assert client.get("/index").json()["limits"]["pixels"] == 1000
    for body in ({"k": 6}, {"offset": 11}, {"like": [1, 2, 3, 4]}, {"where": {"id": [1, 2, 3, 4]}}):
        assert client.post("/search", json={"id": 1, **body}).status_code == 422
    assert client.post("/items/lookup", json={"ids": [1, 2, 3, 4]}).status_code == 422
    assert client.post("/corrections", json={"ids": [1, 2, 3, 4], "label": "a"}).status_code == 422
    assert len(client.post("/search", json={"id": 1, "k": 5}).json()["hits"]) == 5


def test_names_of_the_server(served):
    """A page can let its own name point here (DNS rebinding); only the server's names are answered."""
    loopback = {
        200: ["127.0.0.1", "127.0.0.1:8000", "localhost:9999", "LOCALHOST", "[::1]:8000"],
        403: ["evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.1.5", ""],
    }
    for settings, hosts in (
        ({}, loopback),
        ({"allow_hosts": ("Birds.example",)}, {200: ["birds.example", "localhost"], 403: ["other.example"]}),
        (
            {"host": "0.0.0.0", "key": KEY},
            {200: ["192.168.1.5:8000", "[fe80::1]:8000", "localhost"], 403: ["evil.example"]},
        ),
        ({"host": "192.168.1.5", "key": KEY}, {200: ["192.168.1.5:8000"], 403: ["192.168.1.6", "localhost"]}),
    ):
        client = served(**settings)
        for status, names in hosts.items():
            for name in names:
                assert client.get("/items/1", headers={"host": name, **WITH_KEY}).status_code == status, name
    for path in ("/health", "/"):
        assert "--allow-host" in client.get(path, headers={"host": "evil.example"}).json()["error"]
    assert host_name("") == ""


def test_pages_of_other_servers_may_neither_search_nor_write(client, make_image):
    for origin in ("http://evil.example", "null", "http://127.0.0.1:3000", "http://127.0.0.1", "", "x"):
        headers = {"origin": origin}
        for answer in (
            client.post("/search", json={"id": 1}, headers=headers),
            client.post("/items", files={"image": ("a", make_image())}, headers=headers),
            client.delete("/items/1", headers=headers),
            client.post("/corrections", json={"ids": [1], "label": "a"}, headers=headers),
        ):
            assert answer.status_code == 403
    assert client.get("/health").json()["items"] == 20
    assert client.get("/corrections").json() == []
    same = {"origin": "http://127.0.0.1:8000"}
    assert client.post("/search", json={"id": 1}, headers=same).status_code == 200
    behind_proxy = {"origin": "https://localhost", "host": "localhost"}
    assert client.post("/search", json={"id": 1}, headers=behind_proxy).status_code == 200
    assert "access-control-allow-origin" not in client.get("/items/1", headers=same).headers


def test_without_the_key_nothing_is_answered_and_with_it_everything(served):
    client = served(key=KEY)
    for header in (None, "", KEY, "Bearer", "Bearer ", "Bearer wrong", f"Basic {KEY}", f"Bearer {KEY}x", "Bearer \xff"):
        headers = {} if header is None else {"authorization": header.encode("latin-1")}
        for path in ("/index", "/items/1", "/items/1/thumbnail", "/metrics", "/openapi.json", "/corrections", "/map"):
            answer = client.get(path, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert client.post("/search", json={"id": 1}, headers=headers).status_code == 401
        assert client.get("/health", headers=headers).status_code == 200
    for scheme in ("Bearer", "bearer"):
        assert client.get("/items/1", headers={"authorization": f"{scheme} {KEY}"}).status_code == 200
    assert client.get("/", headers={"host": "localhost"}).status_code == 200
    assert client.get("/static/app.js").status_code == 200
    assert client.get("/static/../index").status_code == 401
    document = client.get("/openapi.json", headers=WITH_KEY).json()
    assert document["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    assert "securitySchemes" not in served().get("/openapi.json").json()["components"]


def test_every_answer_has_the_headers(client):
    for answer in (
        client.get("/health"),
        client.get("/items/99"),
        client.get("/nothing"),
        client.get("/items/1", headers={"host": "evil.example"}),
        client.get("/items/1", headers={"content-length": "x"}),
        client.post("/search", json={}),
    ):
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
    assert "default-src 'self'" in HEADERS["Content-Security-Policy"]


def test_metrics_are_those_of_prometheus(client, make_image):
    client.post("/search", files={"image": ("a", make_image())})
    client.post("/search", files={"image": ("a", b"none")})
    for number in range(5):
        client.get(f"/items/{number}")
    client.get('/no"such%0A')
    client.request("BREW", "/items")
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["nearkin_requests_total", "GET", "/items/{id}", "200"] == 5
    assert samples["nearkin_requests_total", "POST", "/search", "415"] == 1
    assert samples["nearkin_requests_total", "GET", "other", "404"] == 1
    assert samples["nearkin_request_seconds_count", "/items/{id}"] == 5
    assert samples[("nearkin_items",)] == 20
    assert samples[("nearkin_images_embedded_total",)] == samples[("nearkin_images_refused_total",)] == 1


def test_logs_are_json_and_do_not_hold_what_was_sent(served, caplog):
    client = served(key=KEY)
    with caplog.at_level(logging.DEBUG, logger="nearkin.serving"):
        client.get("/items/1?token=secret", headers=WITH_KEY)
        client.get("/items/1/thumbnail", headers=WITH_KEY)
        client.get("/static/app.js")
        client.get("/items/1", headers={"authorization": "Bearer wrong"})
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    assert [line["status"] for line in lines] == [200, 200, 200, 401]
    assert [line["level"] for line in lines] == ["info", "debug", "debug", "info"]
    assert lines[0]["path"] == "/items/1"
    assert {"time", "event", "method", "seconds", "client"} <= set(lines[0])
    assert "secret" not in json.dumps(lines)


def test_a_traceback_is_one_line():
    try:
        raise RuntimeError("on\ntwo lines")
    except RuntimeError as error:
        record = logging.LogRecord("a", logging.ERROR, "", 0, "failed", (), (type(error), error, error.__traceback__))
    text = JsonLines().format(record)
    assert "\n" not in text
    assert "two lines" in json.loads(text)["traceback"]


def test_settings_that_are_refused():
    for settings, named in (
        ({"host": "0.0.0.0"}, "NEARKIN_API_KEY"),
        ({"host": "birds.example"}, "NEARKIN_API_KEY"),
        ({"key": "short"}, "12 characters"),
        ({"key": "a key that is no ASCII: ä"}, "ASCII"),
        ({"key": "two lines are not\none"}, "ASCII"),
        ({"port": -1}, "port"),
        ({"port": 70_000}, "port"),
        ({"max_bytes": 0}, "max_bytes"),
    ):
        with pytest.raises(RecipeError, match=named):
            Settings(**settings)
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.5", "birds.example", "")))
