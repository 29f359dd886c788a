"""The map over HTTP: made when asked, packed as the page reads it, and following the index."""

from __future__ import annotations

import time

import numpy as np
import pytest

from nearkin.index.map_layout import NAME, make_layout
from nearkin.runs.trained_run import ClassProxies


def rows_of(client):
    answer = client.get("/map")
    assert answer.status_code == 200, answer.text
    rows = np.frombuffer(answer.content, dtype="<f4").reshape(-1, 4)
    assert answer.headers["x-map-rows"] == str(len(rows))
    assert answer.headers["content-type"] == "application/octet-stream"
    return rows


def wait_for_map(client):
    for _ in range(600):
        status = client.get("/map/status").json()
        if status["state"] != "working":
            return status
        assert 0 <= status["done"] <= status["of"]
        time.sleep(0.05)
    raise AssertionError("the map does not become ready")


def test_a_map_is_made_when_asked_and_says_which_label_an_item_has(client, index):
    assert client.get("/map/status").json()["state"] == "none"
    for path in ("/map", "/map/labels"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert "POST /map" in answer.json()["error"]
    assert client.post("/map").status_code == 202
    assert wait_for_map(client)["state"] == "ready"
    rows, labels = rows_of(client), client.get("/map/labels").json()
    assert labels == ["kind 0", "kind 1", "kind 2"]
    assert rows[:, 0].tolist() == list(range(20))
    said = [None if number < 0 else labels[int(number)] for number in rows[:, 3]]
    assert said == [item.label for item in index.items(range(20))]
    assert np.isfinite(rows).all()


def test_a_map_follows_the_index(client, index, make_image):
    make_layout(index)
    before = rows_of(client)
    index.remove([4])
    assert client.post("/items", files={"image": ("a.png", make_image())}, data={"label": "wren"}).status_code == 201
    rows, labels = rows_of(client), client.get("/map/labels").json()
    assert rows[:, 0].tolist() == [*(each for each in range(20) if each != 4), 20]
    assert np.array_equal(rows[:19, 1:3], np.delete(before, 4, axis=0)[:, 1:3])
    assert labels[int(rows[-1, 3])] == "wren"


def test_proxies_come_last_without_an_id(client, index, monkeypatch):
    found = ClassProxies(index.vectors([3, 11]), ("kind 0", "another"))
    monkeypatch.setattr("nearkin.runs.trained_run.proxies_of", lambda path, dim: found)
    make_layout(index)
    rows, labels = rows_of(client), client.get("/map/labels").json()
    assert rows[-2:, 0].tolist() == [-1, -1]
    assert [labels[int(number)] for number in rows[-2:, 3]] == ["kind 0", "another"]
    assert rows[:-2, 0].tolist() == list(range(20))


def test_a_read_only_server_makes_no_map_and_shows_one(served, index):
    client = served(read_only=True)
    assert client.post("/map").status_code == 409
    assert not (index.path / NAME).exists()
    make_layout(index)
    assert len(rows_of(client)) == 20


def test_a_map_that_cannot_be_made_says_why(client, index, monkeypatch):
    index.remove(range(20))
    client.post("/map")
    status = wait_for_map(client)
    assert status["state"] == "none"
    assert "empty" in status["error"]


@pytest.mark.parametrize("asked", ["1", "7", "100"])
def test_samples_are_items(client, asked):
    items = client.get(f"/samples?n={asked}").json()["items"]
    assert len({item["id"] for item in items}) == len(items) == min(int(asked), 20)
    assert client.get("/samples?n=0").status_code == 422
