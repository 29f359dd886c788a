"""A client has the same answers as the index that is served."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

import nearkin
from nearkin.client import Client, ServerError
from nearkin.errors import DataError
from nearkin.index.index import Stored
from nearkin.index.items import Item


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
    assert (status.items, status.labels["kind 1"], status.columns) == (20, 5, ("year", "place"))
    assert status.calibration == index.status().calibration
    half = client.search(pixels, k=1, crop=(0, 0, 1, 0.5))
    assert half[0].score == pytest.approx(index.search(pixels[:4], k=1)[0].score, abs=1e-6)

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
    assert Client(url, key="a long secret key").status().items == 20
    with pytest.raises(ServerError, match="needs its key"):
        Client(url).status()
    with pytest.raises(ServerError):  # 413, or the connection that is closed on whoever goes on sending
        Client(url, key="a long secret key").search(bytes(5_000_000))


def test_what_cannot_be_sent(tmp_path):
    client = Client("http://127.0.0.1:9")
    with pytest.raises(ServerError, match="is 'nearkin serve' running"):
        client.status()
    for query, said in ((tmp_path / "none.png", "none.png"), (object(), "cannot send object"), (1.5, "float")):
        with pytest.raises(DataError, match=said):
            client.search(query)
    with pytest.raises(DataError, match="pair"):
        client.search(1, where={"year": (1, 2, 3)})
