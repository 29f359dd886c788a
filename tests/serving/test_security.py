"""Host, Origin, key and headers: what a page on the Internet could try is refused."""

from __future__ import annotations

import pytest

from nearkin.serving.security import HEADERS, name_of

KEY = "a long secret key"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost:9999", "LOCALHOST", "[::1]:8000"])
def test_the_servers_own_names(client, host):
    assert client.get("/items/1", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.1.5", ""]
)
@pytest.mark.parametrize("path", ["/items/1", "/health", "/"])
def test_a_name_that_somebody_lets_point_here(client, host, path):
    answer = client.get(path, headers={"host": host})
    assert (answer.status_code, "--allow-host" in answer.json()["error"]) == (403, True)


def test_further_names_can_be_allowed(served):
    client = served(allow_hosts=("Birds.example",))
    assert client.get("/items/1", headers={"host": "birds.example"}).status_code == 200
    assert client.get("/items/1", headers={"host": "localhost"}).status_code == 200
    assert client.get("/items/1", headers={"host": "other.example"}).status_code == 403


def test_where_all_addresses_are_served_an_address_will_do(served):
    client = served(host="0.0.0.0", key=KEY)
    with_key = {"authorization": f"Bearer {KEY}"}
    for host, status in (("192.168.1.5:8000", 200), ("[fe80::1]:8000", 200), ("localhost", 200), ("evil.example", 403)):
        assert client.get("/items/1", headers={"host": host, **with_key}).status_code == status


def test_one_address_is_one_name(served):
    client = served(host="192.168.1.5", key=KEY)
    with_key = {"authorization": f"Bearer {KEY}"}
    for host, status in (("192.168.1.5:8000", 200), ("192.168.1.6", 403), ("localhost", 403)):
        assert client.get("/items/1", headers={"host": host, **with_key}).status_code == status


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:3000", "http://127.0.0.1", "", "x"]
)
def test_pages_of_other_servers_may_neither_search_nor_write(client, make_image, origin):
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


def test_pages_of_this_server_may(client):
    own = {"origin": "http://127.0.0.1:8000"}
    assert client.post("/search", json={"id": 1}, headers=own).status_code == 200
    behind = {"origin": "https://localhost", "host": "localhost"}  # a proxy in front that encrypts
    assert client.post("/search", json={"id": 1}, headers=behind).status_code == 200
    assert "access-control-allow-origin" not in client.get("/items/1", headers=own).headers


@pytest.mark.parametrize(
    "header", [None, "", KEY, "Bearer", "Bearer ", "Bearer wrong", f"Basic {KEY}", f"Bearer {KEY}x", "Bearer \xff\xfe"]
)
def test_without_the_key_nothing_is_told(served, header):
    client = served(key=KEY)
    headers = {} if header is None else {"authorization": header.encode("latin-1")}
    for path in ("/index", "/items/1", "/items/1/thumbnail", "/metrics", "/openapi.json", "/corrections", "/map", "/x"):
        answer = client.get(path, headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert client.post("/search", json={"id": 1}, headers=headers).status_code == 401
    assert client.get("/health", headers=headers).status_code == 200


def test_with_the_key_everything_is(served):
    client = served(key=KEY)
    for kind in ("Bearer", "bearer"):
        assert client.get("/items/1", headers={"authorization": f"{kind} {KEY}"}).status_code == 200
    assert client.get("/", headers={"host": "localhost"}).status_code != 401
    assert client.get("/static/gallery.js").status_code != 401
    assert client.get("/static/../index").status_code == 401


def test_every_answer_has_the_headers(client):
    for answer in (
        client.get("/health"),
        client.get("/items/99"),
        client.get("/nothing"),
        client.get("/items/1", headers={"host": "evil.example"}),
        client.post("/search", json={}),
    ):
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
    assert "default-src 'self'" in HEADERS["Content-Security-Policy"]


def test_keys_are_not_tried_out_faster_than_the_limits_allow(served):
    client = served(key=KEY, rate=0.5)
    wrong = {"authorization": "Bearer a wrong secret key"}
    assert [client.get("/index", headers=wrong).status_code for _ in range(6)] == [401] * 5 + [429]


def test_the_document_says_that_a_key_is_needed(served):
    with_key = {"authorization": f"Bearer {KEY}"}
    document = served(key=KEY).get("/openapi.json", headers=with_key).json()
    assert document["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    assert "securitySchemes" not in served().get("/openapi.json").json()["components"]


def test_names_are_read_off_hosts():
    assert name_of("Example.org:80") == "example.org"
    assert name_of("[::1]") == "::1"
    assert name_of("") == ""
