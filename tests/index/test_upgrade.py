"""An index that gets another encoder or is compacted: what stays, what goes, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from nearkin.disk import sole_writer_of
from nearkin.errors import BusyError, DataError, Notice, OutputError, RecipeError
from nearkin.index.engine import ADDRESSES
from nearkin.index.exact_engine import ExactEngine
from nearkin.index.index import Index
from nearkin.index.remote import Unreachable
from nearkin.index.upgrade import upgrade
from nearkin.runs.model import Model


def left_and_right(images, batch_size):
    """Mean colours to the left and right, which images of one colour above and below have alike, and no unit length."""
    rows = [np.concatenate([half.mean(axis=(0, 1)) for half in np.array_split(image, 2, axis=1)]) for image in images]
    return np.array(rows, dtype=np.float32).reshape(-1, 6)[:, :4] - 100


def other(identity="other", **changes):
    return Model(
        Path("elsewhere"), identity, 4, "euclidean", 32, left_and_right, **{"was_trained_on": lambda _: False} | changes
    )


@pytest.fixture
def index(tmp_path, images, model):
    made = Index.create(tmp_path / "birds.index", model)
    made.add(images)
    made.remove([3])
    return made


def told(index):
    return [(item, index.thumbnail(item.id)) for item in index.items(index.ids())]


def test_everything_but_the_vectors_stays(index, images):
    before = told(index)
    seen = []
    done = upgrade(index.path, other(), batch_size=8, progress=lambda *both: seen.append(both))
    assert seen == [(8, 20), (16, 20), (20, 20)]
    assert (done.items, done.dropped) == (19, ())
    new = Index.open(index.path, other())
    assert told(new) == before
    assert (new.dim, new.distance) == (4, "euclidean")
    paths = [item.path for item in new.items(new.ids())]
    np.testing.assert_array_equal(new.vectors(new.ids()), other().encode(paths))
    assert [hit.path for hit in new.search(images / "kind 1" / "2.png", k=1)] == [str(images / "kind 1" / "2.png")]
    assert new.status().confidence is not None
    assert sorted(each.name for each in index.path.iterdir() if each.is_dir()) == [new._vectors.folder.parent.name]
    added = new.add(images)  # and the new one can be added to, by files that are known and by new ones
    assert (added.added, added.known) == (1, 19), "what was removed is new again"


def test_what_is_gone_or_changed_is_refused_or_dropped(index, images, model):
    (images / "kind 0" / "1.png").unlink()
    ids = {item.path: item.id for item in index.items(index.ids())}
    gone = ids[str(images / "kind 0" / "1.png")]
    with pytest.raises(DataError, match=rf"1 images .* \(item {gone}: .*1.png: no such file\).*--drop-missing"):
        upgrade(index.path, other())
    assert not list(index.path.glob("upgrade-*")), "that is known before any work"
    (images / "kind 0" / "1.png").write_bytes((images / "kind 2" / "1.png").read_bytes())
    with pytest.raises(DataError, match="has changed"):
        upgrade(index.path, other(), batch_size=4)
    assert len(Index.open(index.path, model).search(0, k=50)) == 18, "the old one is untouched"
    done = upgrade(index.path, other(), batch_size=4, drop_missing=True)
    assert [id for id, _ in done.dropped] == [gone]
    assert done.items == 18
    new = Index.open(index.path, other())
    assert gone not in new.ids()
    assert len(new.search(0, k=50)) == 17


def test_a_copy_of_a_file_that_is_gone_will_do(index, images):
    first = images / "kind 0" / "1.png"
    (images / "kind 0" / "copy.png").write_bytes(first.read_bytes())
    index.add(images)
    first.unlink()
    assert upgrade(index.path, other()).dropped == ()


def test_images_given_as_pixels_have_no_file(tmp_path, model):
    index = Index.create(tmp_path / "index", model)
    index.add(np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8))
    command = f"nearkin index upgrade {index.path} elsewhere --drop-missing"
    with pytest.raises(DataError, match=rf"3 images .* \(item 0: uploaded or given as pixels.*\): remove .*{command}"):
        upgrade(index.path, other())
    file = tmp_path / "file.png"
    Image.new("RGB", (8, 8)).save(file)
    index.add([file])
    file.unlink()
    with pytest.raises(DataError, match=rf"4 images .*\): put the files back, or remove .*{command}"):
        upgrade(index.path, other())
    done = upgrade(index.path, other(), drop_missing=True)
    assert done.items == 0


def test_an_interrupted_upgrade_goes_on_where_it_was(index, images, write_images, tmp_path):
    def stop(done, of):
        if done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        upgrade(index.path, other(), batch_size=4, progress=stop)
    # Meanwhile the old one is used as ever.
    index.remove([0, 12])
    more = write_images(tmp_path / "more", seed=7)
    index.add(more)
    before = told(index)
    calls = []

    def counted(pixels, batch_size):
        calls.append(len(pixels))
        return left_and_right(pixels, batch_size)

    model = Model(Path("elsewhere"), "other", 4, "euclidean", 32, counted)
    assert upgrade(index.path, model, batch_size=4).items == 37
    assert sum(calls) == 12 - 1 + 20, "eight of the first twenty were embedded before, and one of the rest is gone"
    new = Index.open(index.path, other())
    assert told(new) == before
    np.testing.assert_array_equal(new.vectors(new.ids()), other().encode([item.path for item in new.items(new.ids())]))


def test_an_upgrade_that_let_items_go_and_was_interrupted_takes_those_that_are_back(index, images):
    lost = images / "kind 0" / "1.png"
    content = lost.read_bytes()
    lost.unlink()

    def stop(done, of):
        if done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        upgrade(index.path, other(), batch_size=4, progress=stop, drop_missing=True)
    lost.write_bytes(content)
    assert upgrade(index.path, other(), batch_size=4).items == 19
    new = Index.open(index.path, other())
    np.testing.assert_array_equal(new.vectors(new.ids()), other().encode([item.path for item in new.items(new.ids())]))


def test_upgrades_follow_each_other(index, model, images):
    hits = index.search(images / "kind 1" / "2.png")
    upgrade(index.path, other())
    upgrade(index.path, other("third"))
    upgrade(index.path, model)
    again = Index.open(index.path, model)
    # The curve of confidence is fitted again, without the item that was removed.
    repeated = again.search(images / "kind 1" / "2.png")
    assert [(hit.id, hit.score) for hit in repeated] == [(hit.id, hit.score) for hit in hits]
    assert len(list(index.path.glob("upgrade-*"))) == 1
    assert not (index.path / "vectors").exists()


def test_whoever_has_the_index_open_is_told(index, images):
    reader, writer = Index.open(index.path), Index.open(index.path, index.model)
    assert reader.search(0)
    upgrade(index.path, other())
    for call in (
        lambda: reader.search(0),
        lambda: writer.remove([0]),
        lambda: writer.add(images),
    ):
        with pytest.raises(DataError, match="was upgraded since it was opened: open it again"):
            call()
    assert len(Index.open(index.path)) == 19


def test_mistakes(index, model):
    with pytest.raises(RecipeError, match="of this encoder already"):
        upgrade(index.path, model)
    with pytest.raises(DataError, match="no index"):
        upgrade(index.path / "none", model)
    with sole_writer_of(index.path), pytest.raises(BusyError):
        upgrade(index.path, other())


class Server:
    """The table of a server: it holds rows by the name of their index, and may be away."""

    tables: ClassVar[dict] = {}
    is_away = False
    server, most, exact_below = "a server at somewhere", 300, 10**9

    def __init__(self, address, identity, dim, distance):
        self.name = identity

    @property
    def held(self):
        if Server.is_away:
            raise Unreachable("it is away")
        return Server.tables.setdefault(self.name, {})

    def create(self):
        assert self.held is not None

    def count(self, first=0):
        return sum(row >= first for row in self.held)

    def rows(self, first, last):
        return np.array(sorted(row for row in self.held if first <= row < last), dtype=np.int64)

    def put(self, rows, vectors):
        self.held.update(zip(rows.tolist(), vectors, strict=True))

    def delete(self, rows):
        for row in rows.tolist():
            self.held.pop(row, None)

    def delete_from(self, first):
        self.delete(self.rows(first, 1000))

    def nearest(self, queries, limit, age):
        rows, vectors = np.array(list(self.held)), np.array(list(self.held.values()))
        far = [np.square(vectors - query).sum(axis=1).astype(np.float64) for query in queries]
        return [
            (rows[order], one[order]) for one, order in zip(far, (np.argsort(one)[:limit] for one in far), strict=True)
        ]

    def about(self):
        return {"rows": self.count()}

    def drop(self):
        assert self.held is not None
        del Server.tables[self.name]


@pytest.fixture
def served(index, monkeypatch):
    """The index with a server for an engine."""
    entry = replace(ADDRESSES["http"], cls=f"{__name__}:Server", package=None)
    monkeypatch.setitem(ADDRESSES, "http", entry)
    monkeypatch.setattr(Server, "tables", {})
    monkeypatch.setattr(Server, "is_away", False)
    index.use_engine("http://somewhere:19530")
    assert [len(held) for held in Server.tables.values()] == [19]
    return index


def test_the_old_vectors_on_a_server_are_replaced(served, images):
    first = set(Server.tables)
    upgrade(served.path, other())
    assert len(Server.tables) == 1
    assert not first & set(Server.tables)
    assert Index.open(served.path).status().engine["name"] == "http://somewhere:19530"
    assert len(Index.open(served.path).search(0, k=5)) == 5


def test_a_server_that_is_gone_can_be_replaced_after_the_upgrade(served, images):
    before = told(served)
    Server.is_away = True
    with (
        pytest.warns(Notice, match="could not be deleted"),
        pytest.raises(DataError, match=r"is upgraded, but .*--engine exact"),
    ):
        upgrade(served.path, other())
    new = Index.open(served.path, other())
    with pytest.warns(Notice, match="could not be deleted"):
        new.use_engine("exact")
    assert told(new) == before
    hits = new.search(images / "kind 1" / "2.png", k=5)
    assert len(hits) == 5
    Server.is_away = False
    new.use_engine("http://somewhere:19530")
    assert len(Server.tables[new._items.fact("identity")]) == 19
    assert new.search(images / "kind 1" / "2.png", k=5) == hits


def test_what_goes_wrong_here_is_an_error(index, monkeypatch):
    def full(self, rows, live=None):
        raise OutputError("the disk is full")

    monkeypatch.setattr(ExactEngine, "rebuild", full)
    with pytest.raises(OutputError, match="full"):
        upgrade(index.path, other())
