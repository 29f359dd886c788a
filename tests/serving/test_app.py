"""Every route, with what it answers and how it refuses."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image

from nearkin.data.manifest import read_manifest
from nearkin.disk import sole_writer_of
from nearkin.index import Index


def upload(client, content, **options):
    return client.post("/search", files={"image": ("a.png", content)}, data={"options": json.dumps(options)})


def ids(response):
    assert response.status_code == 200, response.text
    return [hit["id"] for hit in response.json()["hits"]]


def error(response, status):
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    text = response.json()["error"]
    assert text
    assert "\n" not in text
    return text


def test_health_and_index_say_what_is_served(client, index):
    assert client.get("/health").json() == {"status": "ok", "items": 20}
    about = client.get("/index").json()
    assert about["name"] == "birds.index"
    assert (about["items"], about["labelled"], about["failed"], about["read_only"]) == (20, 15, 0, False)
    assert about["labels"] == [{"label": f"kind {kind}", "items": 5} for kind in range(3)]
    assert about["columns"] == [
        {"name": "year", "kind": "number", "min": 2000.0, "max": 2019.0},
        {"name": "place", "kind": "text", "min": None, "max": None},
    ]
    assert (about["dim"], about["distance"], about["encoder"]) == (6, "cosine", "stand-in")
    assert about["engine"]["name"] == "exact"
    assert about["limits"] == {"bytes": 32 << 20, "pixels": 64_000_000, "k": 1000}
    assert about["confidence"]["accuracy"] == index.status().confidence.accuracy
    assert about["no_confidence"] is None


def test_an_upload_finds_what_the_index_finds(client, index, drawn):
    content = (drawn / "1-2.png").read_bytes()
    answer = upload(client, content, k=3).json()
    expected = index.search(content, k=3)
    assert [hit["id"] for hit in answer["hits"]] == [hit.id for hit in expected]
    assert answer["hits"][0]["score"] == pytest.approx(expected[0].score, abs=1e-6)
    assert answer["hits"][0]["confidence"] == pytest.approx(expected[0].confidence, abs=1e-6)
    first = answer["hits"][0]
    assert (first["label"], first["path"]) == ("kind 1", str(drawn / "1-2.png"))
    assert first["columns"] == {"year": 2007, "place": "a"}
    assert client.get(first["thumbnail"]).headers["content-type"] == "image/jpeg"
    assert (answer["k"], answer["offset"], answer["more"]) == (3, 0, True)
    assert answer["seconds"] > 0


@pytest.mark.parametrize("options", [{}, {"k": 2}, {"where": {"place": "a"}}, {"offset": 3}, {"group_by": "place"}])
def test_an_image_is_told_what_it_seems_to_be_whatever_is_asked_of_it(client, index, drawn, options):
    content = (drawn / "3-1.png").read_bytes()  # of a kind without a label, so that labelled and nearest differ
    guess = upload(client, content, **options).json()["label"]
    expected = index.classify(content)
    assert guess["label"] == expected.label
    assert guess["confidence"] == pytest.approx(expected.confidence, abs=1e-6)


def test_where_all_items_have_labels_the_guess_is_the_same(served, index, drawn):
    index.remove([15, 16, 17, 18, 19])
    client, content = served(), (drawn / "1-1.png").read_bytes()
    for options in ({}, {"k": 1}, {"where": {"label": "kind 2"}}):
        guess = upload(client, content, **options).json()["label"]
        assert guess["label"] == index.classify(content).label == "kind 1"
    index.remove(list(range(15)))
    assert upload(client, content).json() | {"seconds": 0} == {
        "hits": [],
        "offset": 0,
        "k": 20,
        "more": False,
        "seconds": 0,
        "label": None,
    }


def test_search_by_id_vector_and_examples(client, index):
    assert ids(client.post("/search", json={"id": 3, "k": 5})) == [hit.id for hit in index.search(3, k=5)]
    vector = index.vectors([7])[0].tolist()
    assert ids(client.post("/search", json={"vector": vector, "k": 1})) == [7]
    found = ids(client.post("/search", json={"like": [1, 2], "unlike": [9], "k": 4}))
    assert found == [hit.id for hit in index.search(like=[1, 2], unlike=[9], k=4)]
    assert client.post("/search", json={"id": 3}).json()["label"] is None


def test_copies_of_one_photo_are_one_hit_unless_all_are_asked_for(client, index, encode):
    rough = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    image = Image.fromarray(rough).resize((120, 120), Image.Resampling.BICUBIC)
    for size, format in ((120, "PNG"), (120, "JPEG"), (64, "PNG")):
        assert client.post("/items", files={"image": encode(image.resize((size, size)), format)}).status_code == 201
    for asked, copies in (({}, [3]), ({"collapse": False}, [1, 1, 1])):
        body = {"vector": index.vectors([20])[0].tolist(), "k": 20, **asked}
        answered = {hit["id"]: hit for hit in client.post("/search", json=body).json()["hits"]}
        shown = [answered[id] for id in (20, 21, 22) if id in answered]
        assert [hit["copies"] for hit in shown] == copies
        assert sorted(id for hit in shown for id in (hit["id"], *hit["copy_ids"])) == [20, 21, 22]


def test_an_image_that_shows_nothing_is_refused(client, make_image):
    answer = client.post("/search", files={"image": make_image(size=1)})
    assert answer.status_code == 422
    assert "1 × 1 pixels" in answer.json()["error"]
    assert client.post("/search", files={"image": make_image(size=8)}).status_code == 200


def test_paging_goes_through_everything_once(client):
    pages = [client.post("/search", json={"id": 0, "k": 8, "offset": offset}).json() for offset in (0, 8, 16)]
    assert [len(page["hits"]) for page in pages] == [8, 8, 3]
    assert [page["more"] for page in pages] == [True, True, False]
    assert {hit["id"] for page in pages for hit in page["hits"]} == set(range(1, 20))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"label": "kind 1"}, {5, 6, 7, 8, 9}),
        ({"label": ["kind 0", "kind 2"]}, {0, 1, 2, 3, 4, 10, 11, 12, 13, 14}),
        ({"label": None}, {15, 16, 17, 18, 19}),
        ({"year": {"from": 2003, "to": 2004}}, {3, 4}),
        ({"year": {"from": None, "to": 2001.5}}, {0, 1}),
        ({"year": 2010}, {10}),
        ({"year": 10**40}, set()),
        ({"place": "b", "year": {"from": 2015}}, {16, 18}),
        ({"id": [1, 2, 99]}, {1, 2}),
    ],
)
def test_filters(client, index, where, expected):
    vector = index.vectors([0])[0].tolist()
    assert set(ids(client.post("/search", json={"vector": vector, "where": where}))) == expected


def test_a_filter_without_a_query_browses_in_pages_by_id(client, served):
    def browse(**body):
        answer = client.post("/items/browse", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    first, second = (browse(where={"label": ["kind 0", "kind 2"]}, k=6, offset=offset) for offset in (0, 6))
    assert [item["id"] for item in first["items"]] == [0, 1, 2, 3, 4, 10]
    assert [item["id"] for item in second["items"]] == [11, 12, 13, 14]
    assert first["total"] == second["total"] == 10
    assert first["items"][5] == client.get("/items/10").json()
    assert [item["id"] for item in browse(where={"year": {"from": 2003}, "place": "b"}, k=2)["items"]] == [3, 6]
    assert browse()["total"] == 20
    assert browse(where={"label": "wren"}) == {"items": [], "total": 0}
    for body in (
        {"k": 1001},
        {"offset": 10**6},
        {"where": {"colour": "red"}},
        {"where": {"id": [1] * 2001}},
        {"id": 1},
    ):
        error(client.post("/items/browse", json=body), 422)
    error(served(hide_paths=True).post("/items/browse", json={"where": {"path": {"from": "a"}}}), 422)


def test_group_and_confidence(client, index):
    found = client.post("/search", json={"id": 0, "group_by": "label"}).json()["hits"]
    assert sorted(str(hit["label"]) for hit in found) == ["None", "kind 0", "kind 1", "kind 2"]
    sure = client.post("/search", json={"id": 0, "min_confidence": 0.5}).json()["hits"]
    assert [hit["id"] for hit in sure] == [hit.id for hit in index.search(0, k=20, min_confidence=0.5)]


def test_without_confidences_a_least_one_is_refused_and_that_of_a_label_is_null(client, index, drawn):
    with index._items.writing():
        index._items.set_fact("calibration", {"confidence": None, "reason": "it takes more images", "labelled": 15})
    assert client.get("/index").json()["no_confidence"] == "it takes more images"
    content = (drawn / "1-1.png").read_bytes()
    assert upload(client, content).json()["label"] == {"label": "kind 1", "confidence": None}
    by_id = client.post("/search", json={"id": 0, "min_confidence": 0.5})
    for answer in (upload(client, content, min_confidence=0.0), by_id):
        assert error(answer, 422) == "this index has no confidences: it takes more images"


def test_a_part_of_an_image_is_that_part_of_the_upright_picture(client, index, encode):
    red, blue = (250, 10, 10), (10, 10, 250)
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[:32], pixels[32:] = red, blue
    whole, half = encode(pixels), encode(pixels[32:])
    cropped = upload(client, whole, crop=[0, 0.5, 1, 0.5]).json()["hits"]
    assert [(hit["id"], hit["score"]) for hit in cropped] == [
        (hit["id"], hit["score"]) for hit in upload(client, half).json()["hits"]
    ]
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter clockwise: what is stored at the bottom is seen at the left
    turned = encode(pixels, exif=exif)
    left = upload(client, turned, crop=[0, 0, 0.5, 1]).json()["hits"]
    assert [hit["id"] for hit in left] == [hit["id"] for hit in cropped]


@pytest.mark.parametrize("crop", [[0, 0, 1], [0, 0, 1.5, 1], [-0.1, 0, 0.5, 0.5], [0, 0, 0, 0.5], ["0", 0, 1, 1]])
def test_crops_that_are_none(client, make_image, crop):
    assert "crop" in error(upload(client, make_image(), crop=crop), 422)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"id": 99}, 404, "no item 99"),
        ({"like": [1, 98]}, 404, "no item 98"),
        ({"id": 1, "unlike": [98]}, 404, "no item 98"),
        ({}, 422, "give an image, an id or a vector"),
        ({"id": 1, "vector": [0.0] * 6}, 422, "not both"),
        ({"id": 1, "crop": [0, 0, 1, 1]}, 422, "only an uploaded image"),
        ({"vector": [1.0, 2.0]}, 422, "6 finite numbers"),
        ({"vector": ["a"]}, 422, "vector"),
        ({"vector": [1e300] * 6}, 422, "vector"),
        ({"id": "1"}, 422, "id"),
        ({"id": -1}, 422, "id"),
        ({"id": 2**70}, 422, "id"),
        ({"id": True}, 422, "id"),
        ({"id": 1, "k": 0}, 422, "k"),
        ({"id": 1, "k": 1001}, 422, "k: at most 1,000"),
        ({"id": 1, "k": 1.5}, 422, "k"),
        ({"id": 1, "offset": -1}, 422, "offset"),
        ({"id": 1, "offset": 10**6}, 422, "offset: at most 100,000"),
        ({"id": 1, "where": {"colour": "red"}}, 422, "colour"),
        ({"id": 1, "where": {"label": 3}}, 422, "holds text"),
        ({"id": 1, "where": {"year": "old"}}, 422, "holds numbers"),
        ({"id": 1, "where": {"year": True}}, 422, "year"),
        ({"id": 1, "where": {"year": {"above": 3}}}, 422, "year"),
        ({"id": 1, "where": {"id": list(range(2001))}}, 422, "at most 2,000"),
        ({"id": 1, "where": []}, 422, "where"),
        ({"id": 1, "group_by": "colour"}, 422, "colour"),
        ({"id": 1, "min_confidence": 2}, 422, "min_confidence"),
        ({"id": 1, "like": list(range(2001))}, 422, "at most 2,000"),
        ({"id": 1, "kk": 3}, 422, "kk"),
        ({"image": "/etc/passwd"}, 422, "image"),
        ("/etc/passwd", 422, "object"),
        (["/etc/passwd"], 422, "object"),
    ],
)
def test_questions_that_cannot_be_answered(client, body, status, said):
    assert said in error(client.post("/search", json=body), status)


def test_an_upload_with_examples_that_are_not_there(client, make_image):
    assert "no item 98" in error(upload(client, make_image(), like=[98]), 404)
    assert ids(upload(client, make_image(), like=[1], unlike=[2]))


def test_bodies_that_cannot_be_read(client, make_image):
    json_type, form = {"content-type": "application/json"}, {"content-type": "multipart/form-data; boundary=x"}
    error(client.post("/search", content=b"{", headers=json_type), 422)
    error(client.post("/search", content=b'{"vector": [NaN]}', headers=json_type), 422)
    error(client.post("/search", content=b"[" * 100_000, headers=json_type), 422)
    error(client.post("/search", content=b"\xff\xfe", headers=json_type), 422)
    error(client.post("/search", content=b"no parts", headers=form), 400)
    error(client.post("/search", content=b"", headers={"content-type": "multipart/form-data"}), 400)
    error(client.post("/search", content=b"{}", headers={"content-type": "text/plain"}), 415)
    error(client.post("/search"), 415)
    error(client.post("/search", files={"picture": ("a.png", make_image())}), 422)
    error(client.post("/search", data={"image": "text"}, files={"options": ("a", b"{}")}), 422)
    error(client.post("/search", files=[("image", ("a", make_image())), ("image", ("b", make_image()))]), 400)
    error(client.post("/search", files={"image": ("a", make_image())}, data={"options": "{"}), 422)
    error(client.post("/search", files={"image": ("a", make_image())}, data={"options": '{"id": 1}'}), 422)
    error(client.post("/items/lookup", content=b"{", headers=json_type), 422)
    error(client.post("/items", content=b"no parts", headers=form), 400)
    assert client.get("/health").status_code == 200


def test_a_path_in_a_request_is_never_opened(client, drawn):
    path = str(drawn / "0-0.png")
    for body in ({"id": path}, {"vector": path}, {"like": [path]}, {"query": path}, {"path": path}):
        error(client.post("/search", json=body), 422)
    error(upload(client, path.encode()), 415)
    answer = client.post("/search", files={"image": (path, b"no image")})
    error(answer, 415)


def test_items_are_shown_and_looked_up(client, drawn):
    assert client.get("/items/6").json() == {
        "id": 6,
        "path": str(drawn / "1-1.png"),
        "label": "kind 1",
        "columns": {"year": 2006, "place": "b"},
        "thumbnail": "/items/6/thumbnail",
    }
    found = client.post("/items/lookup", json={"ids": [6, 2, 6]}).json()["items"]
    assert [item["id"] for item in found] == [6, 2, 6]
    assert client.post("/items/lookup", json={"ids": []}).json() == {"items": []}
    error(client.get("/items/20"), 404)
    error(client.get("/items/20/thumbnail"), 404)
    error(client.get("/items/x"), 422)
    error(client.get(f"/items/{2**64}"), 422)
    error(client.post("/items/lookup", json={"ids": [2, 20]}), 404)
    error(client.post("/items/lookup", json={"ids": [0] * 2001}), 422)
    error(client.get("/no/such/page"), 404)
    assert client.put("/items").status_code == 405


def test_an_image_is_added_once_and_removed(client, index, make_image):
    def add(content, **data):
        return client.post("/items", files={"image": ("../../etc/passwd", content)}, data=data)

    columns = json.dumps({"year": 1999, "place": "c", "note": "new"})
    added = add(make_image(), label="red", columns=columns)
    assert (added.status_code, added.json()) == (201, {"id": 20, "added": True})
    item = client.get("/items/20").json()
    assert (item["label"], item["path"], item["columns"]) == ("red", None, {"year": 1999, "place": "c", "note": "new"})
    assert add(make_image(format="BMP")).json() == {"id": 20, "added": False}  # the same pixels
    assert ids(upload(client, make_image(), k=1)) == [20]
    assert ids(client.post("/search", json={"vector": index.vectors([20])[0].tolist(), "k": 1})) == [20]
    assert add(make_image(), label="scarlet").json() == {"id": 20, "added": False}
    assert client.get("/items/20").json()["label"] == "scarlet"
    with Index.open(index.path)._items._lock:
        assert Index.open(index.path).get(20).label == "scarlet"
    assert client.delete("/items/20").status_code == 204
    error(client.get("/items/20"), 404)
    error(client.delete("/items/20"), 404)
    assert client.get("/health").json()["items"] == 20


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"columns": "{"}, "JSON"),
        ({"columns": "[1]"}, "object"),
        ({"columns": '{"year": "old"}'}, "holds numbers"),
        ({"columns": '{"label": "x"}'}, "label"),
        ({"columns": '{"a": [1]}'}, "a"),
        ({"columns": '{"": 1}'}, "character"),
        ({"columns": json.dumps({str(n): n for n in range(21)})}, "20"),
        ({"label": "a" * 201}, "label"),
        ({"label": "a\x00b"}, "label"),
        ({"label": " "}, "label"),
    ],
)
def test_what_cannot_be_said_of_an_item(client, make_image, data, said):
    assert said in error(client.post("/items", files={"image": ("a", make_image())}, data=data), 422)
    assert client.get("/health").json()["items"] == 20


def test_what_is_no_image_is_not_added(client):
    error(client.post("/items", files={"image": ("a.png", b"")}), 415)
    error(client.post("/items", files={"image": ("a.png", b"GIF89a")}), 415)
    error(client.post("/items", data={"image": "a.png"}), 422)
    error(client.post("/items", data={"label": "a"}), 422)


def test_thumbnails_say_nothing_of_place_or_camera(client, encode):
    exif = Image.Exif()
    exif[0x010F] = "Camera of mine"
    exif[0x8825] = {1: "N", 2: (52.0, 31.0, 0.0)}
    content = encode(np.random.default_rng(0).integers(0, 255, (64, 64, 3)), "JPEG", exif=exif)
    assert Image.open(io.BytesIO(content)).getexif().get_ifd(0x8825)
    id = client.post("/items", files={"image": ("a.jpg", content)}).json()["id"]
    answer = client.get(f"/items/{id}/thumbnail")
    thumbnail = Image.open(io.BytesIO(answer.content))
    assert not thumbnail.getexif()
    assert b"Camera" not in answer.content
    assert thumbnail.format == "JPEG"
    assert "max-age" in answer.headers["cache-control"]


def test_corrections_are_kept_listed_withdrawn_and_become_a_manifest(client, index, drawn, tmp_path):
    assert client.get("/corrections").json() == []
    assert client.post("/corrections", json={"ids": [0, 1], "label": "robin"}).json() == {"corrections": 2}
    assert client.post("/corrections", json={"ids": [5, 15], "label": None}).json() == {"corrections": 4}
    assert client.post("/corrections", json={"ids": [1, 16], "label": "wren, small"}).json() == {"corrections": 5}
    first, second, *_ = client.get("/corrections").json()
    assert {key: first[key] for key in ("id", "path", "was", "label")} == {
        "id": 0,
        "path": str(drawn / "0-0.png"),
        "was": "kind 0",
        "label": "robin",
    }
    assert (second["id"], second["label"]) == (1, "wren, small")
    assert client.delete("/corrections/1").status_code == 204
    error(client.delete("/corrections/1"), 404)
    error(client.post("/corrections", json={"ids": [99], "label": "robin"}), 404)
    for body in ({"ids": [], "label": "a"}, {"ids": [1]}, {"ids": [1], "label": ""}, {"ids": [1], "label": "a\nb"}):
        error(client.post("/corrections", json=body), 422)
    answer = client.get("/corrections.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    (tmp_path / "corrections.csv").write_bytes(answer.content)
    table = read_manifest(tmp_path / "corrections.csv")
    labels = {path: table.class_names[label] for path, label in zip(table.images, table.labels, strict=True)}
    expected = {drawn / f"{kind}-{n}.png": f"kind {kind}" for kind in range(3) for n in range(5)}
    del expected[drawn / "1-0.png"]  # known not to be what it was said to be
    expected |= {drawn / "0-0.png": "robin", drawn / "3-1.png": "wren, small"}
    assert labels == expected
    assert index.get(0).label == "kind 0"  # what the index was told stays


def test_a_read_only_server_changes_nothing(served, make_image):
    client = served(read_only=True)
    assert client.get("/index").json()["read_only"] is True
    for answer in (
        client.post("/items", files={"image": ("a", make_image())}),
        client.delete("/items/1"),
        client.post("/corrections", json={"ids": [1], "label": "a"}),
        client.delete("/corrections/1"),
    ):
        assert "--read-only" in error(answer, 409)
    assert ids(upload(client, make_image()))
    assert client.get("/corrections").json() == []


def test_an_index_that_another_process_writes_to_is_searched_but_not_changed(client, index, make_image):
    with sole_writer_of(index.path):
        said = error(client.delete("/items/1"), 409)
        assert "another process is writing" in said
        assert str(index.path) not in said
        error(client.post("/items", files={"image": ("a", make_image())}), 409)
        assert ids(upload(client, make_image()))
        assert client.post("/corrections", json={"ids": [1], "label": "a"}).json() == {"corrections": 1}
    assert client.delete("/items/1").status_code == 204


def test_what_another_process_adds_is_seen(client, index, make_model):
    other = Index.open(index.path, make_model())
    other.add(np.full((8, 8, 3), 255, np.uint8), labels=["white"])
    assert client.get("/health").json()["items"] == 21
    assert {"label": "white", "items": 1} in client.get("/index").json()["labels"]


def test_paths_can_be_hidden(served, make_image, drawn):
    client = served(hide_paths=True)
    client.post("/corrections", json={"ids": [1], "label": "a"})
    for path in ("/items/1", "/index", "/corrections", "/openapi.json", "/metrics"):
        assert str(drawn) not in client.get(path).text
    assert {hit["path"] for hit in upload(client, make_image()).json()["hits"]} == {None}
    error(client.get("/corrections.csv"), 403)
    for body in ({"id": 1, "group_by": "path"}, {"id": 1, "where": {"path": {"from": "a"}}}):
        assert "hidden" in error(client.post("/search", json=body), 422)


def test_what_nobody_foresaw_is_a_500_that_says_nothing(served, make_image, make_model, caplog):
    def broken(images, batch_size):
        raise RuntimeError("the secret of the encoder")

    client = served(model=make_model(broken))
    with caplog.at_level("ERROR", logger="nearkin.serving"):
        text = error(upload(client, make_image()), 500)
    assert "secret" not in text
    assert "secret" in caplog.text
    assert client.get("/health").status_code == 200
    assert 'route="/search",status="500"} 1' in client.get("/metrics").text
