"""An index: images added, searched, removed; labels, filters, examples; and who may write."""

from __future__ import annotations

import csv
import io
import os
import re
import sys
import threading
import types
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nearkin
from nearkin.data.table import ImageTable
from nearkin.disk import sole_writer_of
from nearkin.errors import BusyError, DataError, RecipeError
from nearkin.evaluation.confidence import confidence_among
from nearkin.index import Index, calibration, engine, search
from nearkin.index.faiss_engine import FaissEngine
from nearkin.index.index import Stored
from nearkin.index.search import Classified
from nearkin.runs.folder import RunFolder
from nearkin.runs.model import load
from nearkin.runs.run import run
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer


@pytest.fixture
def index(tmp_path, images, model):
    made = Index.create(tmp_path / "index", model)
    made.add(images)
    return made


def paths_of(root):
    return sorted(root.rglob("*.png"))


def expected(query, root, k, embed):
    """The paths of the nearest images, by products in float64."""
    paths = paths_of(root)
    vectors = embed([np.asarray(Image.open(path)) for path in paths], None).astype(np.float64)
    own = embed([np.asarray(Image.open(query))], None)[0].astype(np.float64)
    scores = vectors @ (own / np.linalg.norm(own))
    order = np.argsort(-scores, kind="stable")[:k]
    return [str(paths[place]) for place in order], scores[order]


def test_an_image_finds_its_nearest(index, images, mean_colours):
    query = images / "kind 1" / "2.png"
    hits = index.search(query, k=7)
    paths, scores = expected(query, images, 7, mean_colours)
    assert [hit.path for hit in hits] == paths
    np.testing.assert_allclose([hit.score for hit in hits], scores, atol=1e-12)
    assert hits[0].path == str(query)
    assert hits[0].label == "kind 1"
    assert [hit.id for hit in index.search(str(query), k=7)] == [hit.id for hit in hits]
    for given in (Image.open(query), np.asarray(Image.open(query)), query.read_bytes()):
        assert [hit.id for hit in index.search(given, k=7)] == [hit.id for hit in hits]


def test_ids_vectors_and_several_at_once(index, images):
    hits = index.search(images / "kind 1" / "2.png", k=7)
    own = hits[0].id
    assert [hit.id for hit in index.search(own, k=6)] == [hit.id for hit in hits[1:]], "an item does not find itself"
    vector = index.model.encode(images / "kind 1" / "2.png")
    assert [hit.id for hit in index.search(3 * vector, k=7)] == [hit.id for hit in hits]
    many = index.search([own, vector, images / "kind 1" / "2.png"], k=3)
    assert [[hit.id for hit in each] for each in many] == [[h.id for h in hits[1:4]], *2 * [[h.id for h in hits[:3]]]]
    assert len(index.search(np.stack([vector, vector]), k=3)) == 2
    assert len(index.search([own], k=3)) == 1
    assert index.search([], k=3) == []
    assert len(index.search(own, k=1000)) == 19
    pages = [hit.id for offset in range(0, 20, 6) for hit in index.search(vector, 6, offset=offset)]
    assert pages == [hit.id for hit in index.search(vector, 20)]


def test_mistakes_say_what_to_do(index, tmp_path, model):
    for arguments, said in (
        ({"query": 0, "k": 0}, "k must be a whole number of at least 1"),
        ({"query": 0, "offset": -1}, "offset must be"),
        ({"query": 0, "where": {"lable": "x"}}, "did you mean 'label'"),
        ({"query": 0, "group_by": "lable"}, "did you mean 'label'"),
        ({}, "give an image, an id or a vector"),
        ({"query": np.zeros(5)}, "must have 6 finite numbers"),
        ({"query": np.full(6, np.nan)}, "must have 6 finite numbers"),
    ):
        with pytest.raises(RecipeError, match=said):
            index.search(**arguments)
    for call in (lambda: index.search(99), lambda: index.search(0, like=[99]), lambda: index.remove([0, 99])):
        with pytest.raises(DataError, match="no item 99"):
            call()
    assert len(index) == 20
    with pytest.raises(
        DataError, match=r"no index .*indx'; did you mean '.*index'\? 'nearkin index RUN FOLDER -o INDEX' m"
    ):
        Index.open(tmp_path / "indx")
    with pytest.raises(DataError, match=r"no index '.*zzz': 'nearkin index"):
        Index.open(tmp_path / "zzz")
    with pytest.raises(DataError, match="is no index: 'nearkin index"):
        Index.open(tmp_path)
    with pytest.raises(RecipeError, match="exists already: give a new folder"):
        Index.create(tmp_path / "index", model)
    with pytest.raises(RecipeError, match="exists already: give a new folder"):
        Index.create(tmp_path / "images", model)
    with pytest.raises(RecipeError, match="unknown engine 'exat'; did you mean 'exact'"):
        Index.create(tmp_path / "new", model, engine="exat")
    with pytest.raises(RecipeError, match="20 images were given, and 1 labels"):
        index.add([np.zeros((8, 8, 3), np.uint8)] * 20, labels=["x"])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "items.sqlite").write_bytes(b"no database, " * 100)
    with pytest.raises(DataError, match="cannot be read as an index"):
        Index.open(tmp_path / "broken")


def test_removed_items_never_appear(index, images, tmp_path):
    hits = index.search(images / "kind 1" / "2.png", k=20)
    reader = Index.open(tmp_path / "index")
    assert len(reader.search(hits[5].id, k=20)) == 19
    gone = [hit.id for hit in hits[:4]]
    index.remove(gone)
    for each in (index, reader, Index.open(tmp_path / "index", index.model)):
        left = each.search(hits[5].id, k=20)
        assert len(left) == 15
        assert not {hit.id for hit in left} & set(gone)
        assert len(each.search(hits[5].id, k=20, where={"label": "kind 1"})) < 5
    with pytest.raises(DataError, match="no item"):
        index.thumbnail(gone[0])
    assert index.add(images).added == 4, "what is asked for again comes back, as something new"
    assert {hit.id for hit in index.search(hits[5].id, 20)} & {20, 21, 22, 23} == {20, 21, 22, 23}
    assert not {hit.id for hit in reader.search(hits[5].id, 20)} & set(gone)


def test_removed_items_take_no_places_from_others(index, monkeypatch):
    """Their vectors are zeros, which are nearer to a query than what points away from it."""
    monkeypatch.setattr(search, "VOTERS", 1)
    kept = index.ids({"label": "kind 1"})
    index.remove(np.setdiff1d(index.ids(), kept))
    hits = index.search(-index.vectors(kept).mean(axis=0), k=3)
    assert len(hits) == 3
    assert {hit.id for hit in hits} <= set(kept.tolist())


def test_removed_vectors_and_thumbnails_are_gone_from_the_disk(index, model, tmp_path):
    gone = [0, 5, 6, 7, 19]
    vectors, thumbnail = index.vectors(gone), index.thumbnail(6)
    kept = np.delete(np.arange(20), gone)
    stored = index.vectors(kept)

    def stored_bytes():
        return b"".join(path.read_bytes() for path in (tmp_path / "index").rglob("*") if path.is_file())

    assert all(vector.tobytes() in stored_bytes() for vector in vectors)
    index.remove(gone)
    assert np.array_equal(index.vectors(kept), stored)
    index.close()
    assert not any(vector.tobytes() in stored_bytes() for vector in vectors)
    assert thumbnail not in stored_bytes()


def test_filters_ranges_and_groups(tmp_path, images, model):
    rows = ["path,label,year,colour,code"]
    for number, path in enumerate(paths_of(images)):
        year = "" if number == 3 else 2015 + number % 10
        rows.append(
            f"{path.relative_to(tmp_path)},{path.parent.name},{year},{'red' if number % 2 else 'blue'},00{number}"
        )
    (tmp_path / "list.csv").write_text("\n".join(rows))
    index = Index.create(tmp_path / "index", model)
    index.add(tmp_path / "list.csv")

    def found(**where):
        return {hit.id for hit in index.search(np.ones(6), k=99, where=where)}

    assert index.status().columns == ("year", "colour", "code")
    every = set(range(20))
    years = {id: 2015 + id % 10 for id in every - {3}}
    assert found(year=2018) == {13}
    assert found(year=(2020, None)) == {id for id, year in years.items() if year >= 2020}
    assert found(year=(2016, "2018")) == {id for id, year in years.items() if 2016 <= year <= 2018}
    assert found(year=None) == {3}
    assert found(year=[2015, 2016.0]) == {0, 10, 1, 11}
    assert found(colour="red", label=["kind 0", "kind 3"]) == {1, 3, 15, 17, 19}
    assert found(code="007") == {7}, "a number with zeros before it is a name"
    assert found(label="none such") == set()
    assert found(id=[4, 5]) == {4, 5}
    assert found(label="'; DROP TABLE items; --") == set()
    assert found() == every
    groups = index.search(np.ones(6), k=99, group_by="label")
    assert sorted(hit.label for hit in groups) == [f"kind {kind}" for kind in range(4)]
    everything = index.search(np.ones(6), k=99)
    assert groups == [next(hit for hit in everything if hit.label == each.label) for each in groups]
    assert groups[:2] == index.search(np.ones(6), k=2, group_by="label")
    assert len(index.search(np.ones(6), k=99, group_by="colour", where={"year": (2015, 2016)})) == 2
    assert everything[0].columns["colour"] in ("red", "blue")
    for where, said in (
        ({"year": "new"}, "holds numbers"),
        ({"colour": 3}, "holds text"),
        ({"year": (1, 2, 3)}, "pair"),
    ):
        with pytest.raises(RecipeError, match=said):
            index.search(0, where=where)
    (tmp_path / "list.csv").write_text("\n".join(rows).replace(",2016,", ",soon,"))
    with pytest.raises(DataError, match="'year' holds numbers in this index, and 'soon' is none"):
        index.add(tmp_path / "list.csv")
    relabelled = [row.replace(",kind 0,", ",kind zero,") for row in rows]
    (tmp_path / "list.csv").write_text("\n".join(relabelled))
    assert index.add(tmp_path / "list.csv").added == 0
    assert found(label="kind zero") == {0, 1, 2, 3, 4}


def test_labels_are_those_of_the_items_that_have_one(index):
    index.add([np.full((8, 8, 3), 9, np.uint8)])
    index.remove([3])
    ids, labels = index.labels()
    assert ids.tolist() == [each for each in range(20) if each != 3], "the image without a label is not among them"
    assert labels.tolist() == [index.get(each).label for each in ids]


def test_more_like_these_and_less_like_those(index):
    vectors = index.vectors(range(20)).astype(np.float64)

    def ranked(direction, without):
        scores = vectors @ (direction / np.linalg.norm(direction))
        return [id for id in np.argsort(-scores, kind="stable").tolist() if id not in without]

    both = vectors[[2, 7, 9]].mean(axis=0)
    assert [hit.id for hit in index.search(2, 20, like=[7, 9])] == ranked(both, {2, 7, 9})
    assert [hit.id for hit in index.search(like=[7, 9], k=20)] == ranked(vectors[[7, 9]].mean(axis=0), {7, 9})
    less = both - 0.5 * vectors[[11, 12]].mean(axis=0)
    assert [hit.id for hit in index.search(2, 20, like=[7, 9], unlike=[11, 12])] == ranked(less, {2, 7, 9, 11, 12})


def test_confidence_and_classification(index, images):
    query = images / "kind 1" / "2.png"
    hits = index.search(query, k=20)
    sure = [hit.confidence for hit in hits]
    assert all(0 <= each <= 1 for each in sure)
    assert sure == sorted(sure, reverse=True)
    cut = (sure[4] + sure[5]) / 2
    assert index.search(query, k=20, min_confidence=cut) == hits[:5]
    assert index.classify(query).label == "kind 1"
    assert index.classify(query, min_confidence=1.1).label is None
    assert [each.label for each in index.classify([query, images / "kind 2" / "0.png"])] == ["kind 1", "kind 2"]
    assert index.classify([]) == []
    assert {hit.label for hit in index.classify(query, where={"label": ["kind 3"]}).hits} == {"kind 3"}
    learned = index.status().confidence
    assert (learned.images, learned.classes) == (20, 4)
    assert 0 <= learned.hit.brier <= 1
    assert sum(bin.answers for bin in learned.label.bins) == 40, "each image twice"
    assert len(index.classify(query).hits) == 10


def test_without_labels_there_is_no_confidence(tmp_path, images, model):
    index = Index.create(tmp_path / "index", model)
    index.add(images, labels=None)
    assert index.search(0)[0].confidence is None
    assert index.search(0)[0].label is None
    with pytest.raises(RecipeError, match="no image has a label"):
        index.search(0, min_confidence=0.5)
    with pytest.raises(RecipeError, match=r"no item of .* has a label"):
        index.classify(0)
    index.add(images)
    assert index.status().labelled == 20, "labels that are given later count"


def test_confidence_is_learned_only_from_images_that_did_not_train(tmp_path, write_images, stand_in):
    images = write_images(tmp_path / "images", kinds=5, per_kind=12)
    files = sorted(images.rglob("*.png"))
    trained = {blake2b(file.read_bytes(), digest_size=16).hexdigest() for file in files if file.stem not in "0123"}
    index = Index.create(tmp_path / "index", stand_in(was_trained_on=trained.__contains__))
    index.add(images)
    learned = index.status().confidence
    ids, names = index.labels()
    stems = [Path(item.path).stem for item in index.items(ids)]
    unseen = np.flatnonzero([stem in "0123" for stem in stems])
    vectors, labels = index.vectors(ids).astype(np.float64), np.unique(names, return_inverse=True)[1]
    expected = confidence_among(vectors, labels, unseen, "cosine")
    assert (learned.images, learned.classes) == (20, 5)
    assert learned.accuracy == expected.accuracy
    assert learned.hit.slopes == pytest.approx(expected.hit.slopes)
    scores = vectors @ vectors[0]
    order = [row for row in np.argsort(-scores, kind="stable") if row != 0][:50]
    sure = expected.of_hits(scores[order], labels[order], scores[order])
    assert [hit.confidence for hit in index.search(0, k=50)] == pytest.approx(sure.tolist())

    all_trained = Index.create(tmp_path / "trained", stand_in(was_trained_on=lambda _: True))
    all_trained.add(images)
    assert all_trained.status().confidence is None
    why = all_trained.status().no_confidence
    assert "got 0: add new images with their labels, or train again with a larger protocol.holdout_share" in why
    assert "for a final model train the first run so, then --final" in why
    assert all_trained.classify(files[0]).label == "kind 0", "a label needs no confidence"
    for least in (0.0, 0.9):
        for ask in (all_trained.classify, all_trained.search):
            with pytest.raises(RecipeError, match="has no confidences: it takes 15 images"):
                ask(files[0], min_confidence=least)
    assert all_trained.classify(files[0]).confidence is None
    assert all_trained.search(0)[0].confidence is None
    not_known = Index.create(tmp_path / "not known", stand_in(was_trained_on=None))
    not_known.add(images)
    assert "does not tell which images" in not_known.status().no_confidence
    all_trained.add([np.full((8, 8, 3), 9 * i, np.uint8) for i in range(3)], labels=["new"] * 3)
    assert all_trained.status().confidence is None


def test_confidences_are_the_same_when_vectors_are_read_in_blocks(tmp_path, write_images, model, monkeypatch):
    images = write_images(tmp_path / "images", kinds=4, per_kind=9)
    whole = Index.create(tmp_path / "whole", model)
    whole.add(images)
    monkeypatch.setattr(calibration, "_BLOCK", 7)
    blocks = Index.create(tmp_path / "blocks", model)
    blocks.add(images)
    assert blocks.status().confidence == whole.status().confidence is not None


def test_a_class_that_another_process_removes_meanwhile_is_not_voted_for(index, images, monkeypatch):
    monkeypatch.setattr(search, "MOST_MEMBERS", 0)  # no item of the class is found
    assert index.classify(images / "kind 1" / "2.png") == Classified(None, None, ())


def test_a_class_is_labelled_by_its_nearest_image_and_its_mean(index, images):
    """Against the classes one by one, in float64."""
    ids, labels = index.labels()
    vectors = index.vectors(ids).astype(np.float64)
    rng = np.random.default_rng(0)
    for query in rng.normal(size=(20, vectors.shape[1])):
        query /= np.linalg.norm(query)
        best = {}
        for label in set(labels.tolist()):
            members = vectors[labels == label]
            mean = members.mean(axis=0)
            best[label] = (members @ query).max() + mean @ query / np.linalg.norm(mean)
        assert index.classify(query, min_confidence=0).label == max(best, key=best.get)


def test_means_follow_what_is_added_and_removed(tmp_path, write_images, model):
    index = Index.create(tmp_path / "index", model)
    index.add(write_images(tmp_path / "images", kinds=3, per_kind=8))
    query = index.vectors([0])[0].astype(np.float64)
    first = index.classify(query, min_confidence=0)
    assert first.label == "kind 0"
    index.remove([id for id in index.ids().tolist() if index.get(id).label == "kind 0"])
    assert index.classify(query, min_confidence=0).label != "kind 0"


def test_status_says_what_is_missing_and_why(tmp_path, images, model):
    (images / "kind 0" / "broken.png").write_bytes(b"no image")
    (images / "kind 0" / "copy.png").write_bytes((images / "kind 1" / "0.png").read_bytes())
    (images / "notes.txt").write_text("x")
    index = Index.create(tmp_path / "index", model)
    seen = []
    added = index.add(images, batch_size=6, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(6, 22), (12, 22), (18, 22), (22, 22)]
    assert (added.added, added.known, len(added.failed)) == (20, 1, 1)
    assert "notes.txt" in str(added.left_out)
    for each in (index, Index.open(tmp_path / "index")):
        status = each.status()
        assert (status.items, status.found, status.embedded, status.duplicates) == (20, 22, 21, 1)
        assert (status.labels, status.labelled, status.dim, status.engine["name"]) == (4, 20, 6, "exact")
        ((path, reason),) = status.failed
        assert path.endswith("broken.png")
        assert "not an image" in reason
    Image.new("RGB", (8, 8)).save(images / "kind 0" / "broken.png")
    assert index.add(images).added == 1
    assert index.status().failed == ()


def test_a_file_that_changed_takes_the_place_of_what_it_was(index, images):
    path = images / "kind 1" / "2.png"
    before = index.search(path, k=1)[0].id
    Image.new("RGB", (8, 8), "orange").save(path)
    assert index.add(images).added == 1
    assert len(index) == 20
    assert index.search(path, k=1)[0].path == str(path)
    assert before not in {hit.id for hit in index.search(0, k=50)}
    os.rename(path, images / "kind 1" / "moved.png")
    assert index.add(images).added == 0
    assert index.search(images / "kind 1" / "moved.png", k=1)[0].path.endswith("moved.png")
    kept = index.search(images / "kind 1" / "3.png", k=1)[0].id
    (images / "kind 1" / "3.png").write_bytes(b"broken now")
    assert len(index.add(images).failed) == 1
    assert index.get(kept).label == "kind 1", "what cannot be read now stays what it was"


def test_images_that_are_no_files(tmp_path, model, images):
    index = Index.create(tmp_path / "index", model)
    pictures = [Image.open(path) for path in paths_of(images)]
    assert index.add(pictures[:3], labels=["a", "b", "a"]).added == 3
    assert index.add([np.asarray(picture) for picture in pictures[:4]]).known == 3
    assert [index.get(id).label for id in range(4)] == ["a", "b", "a", None]
    assert index.add([str(path) for path in paths_of(images)[5:7]], labels=["c", "d"]).added == 2
    assert index.get(5).label == "d"
    assert index.add(pictures[9]).added == 1
    assert index.search(pictures[9], k=1)[0].id == 6


def test_an_empty_index_and_one_image(tmp_path, model):
    index = Index.create(tmp_path / "index", model)
    assert index.search(np.ones(6)) == []
    assert index.search([np.ones(6)] * 2) == [[], []]
    assert index.status().items == 0
    index.add(np.full((8, 8, 3), 9, np.uint8))
    assert [hit.id for hit in index.search(np.ones(6))] == [0]
    index.remove([0])
    assert index.search(np.ones(6)) == []
    assert index.add(np.full((8, 8, 3), 9, np.uint8)).added == 1
    assert [hit.id for hit in index.search(np.ones(6))] == [1], "a number is never used twice"


def test_thumbnails_say_nothing_of_place_or_camera(tmp_path, model):
    exif = Image.Exif()
    exif[0x0110] = "A camera"
    exif.get_ifd(0x8825)[1] = "N"
    noise = np.random.default_rng(0).integers(0, 256, (400, 300, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "photo.jpg", exif=exif)
    index = Index.create(tmp_path / "index", model)
    index.add(tmp_path / "photo.jpg")
    content = index.thumbnail(0)
    assert b"A camera" not in content
    with Image.open(io.BytesIO(content)) as small:
        assert not small.getexif()
        assert max(small.size) <= 192


def test_a_second_writer_is_refused_and_readers_are_not(index, images, tmp_path):
    with sole_writer_of(tmp_path / "index"):
        for write in (lambda: index.add(images), lambda: index.remove([0])):
            with pytest.raises(BusyError, match="is being written by process"):
                write()
        assert len(Index.open(tmp_path / "index").search(0, k=5)) == 5
    assert index.add(images).added == 0


def test_readers_see_what_a_writer_adds_while_it_adds(tmp_path, images, model):
    index = Index.create(tmp_path / "index", model)
    reader, seen = Index.open(tmp_path / "index", model), []
    index.add(images, batch_size=3, progress=lambda done, of: seen.append(len(reader.search(np.ones(6), k=50))))
    assert seen == [3, 6, 9, 12, 15, 18, 20]


def test_many_threads_search_while_one_adds(tmp_path, model, write_images):
    index = Index.create(tmp_path / "index", model)
    images, wrong = write_images(tmp_path / "many", kinds=6, per_kind=20), []

    def look():
        least = 0
        while least < 120 and not wrong:
            found = index.search(np.ones(6), k=200)
            if len(found) < least or sorted({hit.id for hit in found}) != list(range(len(found))):
                wrong.append(found)
            least = len(found)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    index.add(images, batch_size=7)
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_an_engine_at_an_address_and_its_password(tmp_path, images, model, monkeypatch):
    opened, discarded = [], []

    class Server:
        """A table that loses all it is given, so that the engine scans."""

        server, most, exact_below = "db", 100, 10**9

        def __init__(self, address, identity, dim, distance):
            opened.append((address, identity))

        def create(self):
            pass

        def count(self, first=0):
            return 0

        def rows(self, first, last):
            return np.empty(0, dtype=np.int64)

        def put(self, rows, vectors):
            pass

        def delete_from(self, first):
            pass

        def about(self):
            return {}

        def drop(self):
            discarded.append(self)

    monkeypatch.setitem(sys.modules, "server_engine", types.SimpleNamespace(Server=Server))
    monkeypatch.setitem(engine.ADDRESSES, "db", engine.EngineEntry("db", "server_engine:Server"))
    secret, shown = "db://me:sesame@host/birds?token=sesame&a=1", "db://me@host/birds?a=1"
    index = Index.create(tmp_path / "index", model, engine=secret)
    index.add(images)
    identity = opened[0][1]
    assert re.fullmatch(r"nearkin_[0-9a-f]{16}", identity)
    assert opened[-1] == (secret, identity)
    assert index.status().engine["name"] == shown
    reader = Index.open(tmp_path / "index")
    assert opened[-1] == (shown, identity)
    reader.use_engine(secret)
    assert opened[-1] == (secret, identity)
    assert not discarded, "it is the same one"
    assert len(reader.search(0, k=30)) == 19
    index.search(0)
    assert opened.count((shown, identity)) == 2, "the one that made it goes on with the password"
    index.use_engine("exact")
    assert len(discarded) == 1
    assert len(reader.search(0, k=30)) == 19
    assert reader.status().engine["name"] == "exact"
    for path in (tmp_path / "index").rglob("*"):
        assert path.is_dir() or b"sesame" not in path.read_bytes(), path
    other = Index.create(tmp_path / "other", model, engine=secret)
    assert opened[-1][1] != identity
    assert other.search(np.ones(6)) == []
    for address, said in (
        ("mysql://me:sesame@host", "unknown engine 'mysql://me@host'"),
        ("db://[x", "cannot be read"),
    ):
        with pytest.raises(RecipeError, match=said) as told:
            index.use_engine(address)
        assert "sesame" not in str(told.value)


def test_a_writer_goes_on_with_the_engine_that_another_chose(index, images, tmp_path):
    Index.open(tmp_path / "index").use_engine("faiss")
    index.add(np.zeros((8, 8, 3), np.uint8))
    assert index.status().engine["name"] == Index.open(tmp_path / "index").status().engine["name"] == "faiss"
    assert [each.name for each in (tmp_path / "index" / "engine").iterdir()] == ["faiss"]
    index.use_engine("exact")
    assert [each.name for each in (tmp_path / "index" / "engine").iterdir()] == ["exact"]
    assert len(index.search(0, k=30)) == 20


def test_an_engine_that_cannot_be_built_leaves_the_old_one(index, monkeypatch):
    monkeypatch.setattr(FaissEngine, "rebuild", lambda self, rows, live: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        index.use_engine("faiss")
    assert index.status().engine["name"] == "exact"
    assert len(index.search(0, k=30)) == 19


def test_the_public_name():
    assert nearkin.Index is Index


def test_an_image_is_stored_once_with_what_is_said_of_it(model, images, tmp_path):
    index = Index.create(tmp_path / "birds.index", model)
    index.add(images)
    pixels = np.random.default_rng(0).integers(0, 255, (9, 8, 3), dtype=np.uint8)
    assert index.add_pixels(pixels, "robin", {"year": "2020", "place": "garden"}) == Stored(20, True)
    assert index.add_pixels(pixels.copy(), None, {}) == Stored(20, False)
    item = index.get(20)
    assert (item.label, item.path, item.columns) == ("robin", None, {"year": 2020, "place": "garden"})
    assert index.search(pixels, k=1)[0].id == 20
    np.testing.assert_array_equal(index.vectors([20]), model.encode([pixels]))
    assert index.add_pixels(pixels[::-1], "wren", {"year": "2021"}) == Stored(21, True)
    with pytest.raises(DataError, match="holds numbers"):
        index.add_pixels(pixels[:5], "wren", {"year": "old"})
    assert len(index) == 22
    index.remove([20])
    assert index.add_pixels(pixels, None, {}) == Stored(22, True)  # a number is never used twice


def test_a_few_more_labels_make_no_other_curve_and_many_do(model, images, write_images, tmp_path, monkeypatch):
    index = Index.create(tmp_path / "birds.index", model)
    index.add(write_images(tmp_path / "many", per_kind=30))
    fits, learn = [], calibration.learn_confidence
    monkeypatch.setattr(calibration, "learn_confidence", lambda *args: fits.append(len(args[1])) or learn(*args))
    rng = np.random.default_rng(0)
    for _ in range(13):
        index.add_pixels(rng.integers(0, 255, (4, 4, 3), dtype=np.uint8), "kind 1", {})
    assert fits == [126, 132 + 1]
    index.add_pixels(rng.integers(0, 255, (4, 4, 3), dtype=np.uint8), None, {})
    assert len(fits) == 2


def test_counts_of_labels_and_ranges_of_columns(model, images, tmp_path):
    paths = sorted(images.rglob("*.png"))
    labels = ["often"] * 8 + ["rare"] * 3 + ["also rare"] * 3 + [""] * 6
    lines = [
        f"{path},{label},{n - 5 if n else ''},x" for n, (path, label) in enumerate(zip(paths, labels, strict=True))
    ]
    (tmp_path / "list.csv").write_text("path,label,year,place\n" + "\n".join(lines))
    index = Index.create(tmp_path / "birds.index", model)
    assert (index.label_counts(), index.column_ranges()) == ([], [])
    index.add(tmp_path / "list.csv")
    assert index.label_counts() == [("often", 8), ("also rare", 3), ("rare", 3)]
    assert index.column_ranges() == [("year", True, -4, 14), ("place", False, None, None)]


def test_of_photos_only_those_of_kinds_not_trained_on(trained, photos, tmp_path):
    model = load(trained)
    index = Index.create(tmp_path / "index", model)
    added = index.add_test_images(trained)
    with open(trained / "split.csv", newline="", encoding="utf-8") as file:
        tested = {row["image"] for row in csv.DictReader(file) if row["split"] == "test"}
    items = index.items(index.ids())
    assert added.added == len(items) == 16
    assert {item.path for item in items} == {str(photos / id) for id in tested}
    assert all(item.path == str(photos / item.label / item.path.rpartition("/")[2]) for item in items)
    assert index.add_test_images(trained).known == 16


def test_images_that_lie_in_no_files_become_files(tmp_path, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 64), dtype=np.uint8)
    names, splits = [f"U+{row // 6:04X}/A B" for row in range(48)], ["train"] * 24 + ["test"] * 24
    glyphs = ImageTable.build("glyphs", pixels, names, splits=splits, ids=[f"{n} {i}" for i, n in enumerate(names)])
    monkeypatch.setattr("nearkin.runs.data.read_source", lambda *_, **__: glyphs)
    changes = ["training.max_steps=1", "training.epochs=1", "training.device=cpu", "protocol.name=conventional"]
    run(load_recipe("glyphs/demo", changes), RunFolder(tmp_path / "run"), Observer())
    index = Index.create(tmp_path / "index", load(tmp_path / "run"))
    added = index.add_test_images(tmp_path / "run")
    assert added.added == 24
    item = index.get(7)
    with Image.open(item.path) as image:
        np.testing.assert_array_equal(np.array(image), pixels[24 + 7])
    assert item.label == names[24 + 7]
    assert item.path.startswith(str(tmp_path / "index" / "images" / "U+"))
    assert index.search(item.path, k=1)[0].id == 7


def test_a_run_on_everything_has_none(trained, photos, tmp_path):
    recipe = load_recipe(trained / "recipe.yaml", ["protocol.name=everything"])
    run(recipe, RunFolder(tmp_path / "final"), Observer())
    index = Index.create(tmp_path / "index", load(tmp_path / "final"))
    with pytest.raises(DataError, match="no test images"):
        index.add_test_images(tmp_path / "final")


@pytest.fixture
def folder(tmp_path, images, model):
    Index.create(tmp_path / "index", model).add(images)
    return tmp_path / "index"


def test_another_encoder_is_refused(folder, stand_in):
    with pytest.raises(DataError, match=r"made with another encoder than .* the run that made this one \(nowhere\)"):
        Index.open(folder, stand_in("another"))


def test_an_encoder_that_is_not_where_it_was_is_asked_for_once_it_is_needed(folder):
    index = Index.open(folder)
    assert index.search(0, k=1), "what needs no encoder works without"
    with pytest.raises(DataError, match=r"cannot be loaded: there is no run folder .*--run RUN"):
        index.search(np.zeros((4, 4, 3), np.uint8))
