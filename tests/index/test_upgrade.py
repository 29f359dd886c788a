"""An index that gets another encoder or is compacted: what stays, what goes, and what is refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from nearkin.disk import sole_writer_of
from nearkin.errors import BusyError, DataError, Notice, OutputError, RecipeError
from nearkin.index import upgrade as module
from nearkin.index.corrections import correct, corrections
from nearkin.index.engine import ADDRESSES
from nearkin.index.exact import ExactEngine
from nearkin.index.index import Index
from nearkin.index.segments import Segments
from nearkin.index.upgrade import compact, upgrade
from nearkin.runs.model import Model


def left_and_right(images, batch_size):
    """Mean colours to the left and right, which images of one colour above and below have alike, and no unit length."""
    rows = [np.concatenate([half.mean(axis=(0, 1)) for half in np.array_split(image, 2, axis=1)]) for image in images]
    return np.array(rows, dtype=np.float32).reshape(-1, 6)[:, :4] - 100


def other(identity="other", **changes):
    return Model(Path("elsewhere"), identity, 4, "euclidean", 32, left_and_right, **changes)


@pytest.fixture
def index(tmp_path, images, model):
    made = Index.create(tmp_path / "birds.index", model)
    made.add(images)
    made.remove([3])
    return made


@pytest.fixture
def whole(tmp_path, write_images, model):
    made = Index.create(tmp_path / "a.index", model)
    made.add(write_images(tmp_path / "photos", kinds=4, per_kind=6))
    return made


def told(index):
    return [(item, index.thumbnail(item.id)) for item in index.items(index.ids())]


def test_everything_but_the_vectors_stays(index, images):
    before = told(index)
    seen = []
    done = upgrade(index.path, other(), batch_size=8, progress=lambda *both: seen.append(both))
    assert seen == [(8, 20), (16, 20), (20, 20)]
    assert (done.items, done.dropped, done.old) == (19, (), None)
    new = Index.open(index.path, other())
    assert told(new) == before
    assert (new.dim, new.distance) == (4, "euclidean")
    paths = [item.path for item in new.items(new.ids())]
    np.testing.assert_array_equal(new.vectors(new.ids()), other().encode(paths))
    assert [hit.path for hit in new.search(images / "kind 1" / "2.png", k=1)] == [str(images / "kind 1" / "2.png")]
    assert new.status().calibration is not None
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
    with pytest.raises(DataError, match=r"3 images .* given as pixels"):
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


def test_the_old_index_can_be_kept_and_upgrades_follow_each_other(index, model, images):
    hits = index.search(images / "kind 1" / "2.png")
    done = upgrade(index.path, other(), keep_old=True)
    assert done.old == index.path.with_name("birds.index.old")
    kept = Index.open(done.old, model)
    assert kept.search(images / "kind 1" / "2.png") == hits
    with pytest.raises(RecipeError, match=r"birds.index.old is there already"):
        upgrade(index.path, other("third"), keep_old=True)
    upgrade(index.path, other("third"))
    upgrade(index.path, model)
    again = Index.open(index.path, model)
    # The curve of confidence is fitted anew, without the item that was removed.
    found = again.search(images / "kind 1" / "2.png")
    assert [(hit.id, hit.score) for hit in found] == [(hit.id, hit.score) for hit in hits]
    assert len(list(index.path.glob("upgrade-*"))) == 1
    assert not (index.path / "vectors").exists()


def test_whoever_has_the_index_open_is_told(index, images):
    reader, writer = Index.open(index.path), Index.open(index.path, index.model)
    assert reader.search(0)
    upgrade(index.path, other())
    compacted = Index.open(index.path, other())
    compact(index.path)
    for call in (
        lambda: compacted.search(0),
        lambda: reader.search(0),
        lambda: writer.remove([0]),
        lambda: writer.add(images),
    ):
        with pytest.raises(DataError, match="was upgraded or compacted since it was opened: open it again"):
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
    """An engine at an address: it holds tables by the name of their index, and may be away, or want its password."""

    tables: ClassVar[dict] = {}
    is_away = False

    def __init__(self, address, identity, folder, vectors, distance):
        self.name, self.exact = identity, ExactEngine(folder / "exact", vectors, distance)

    def answer(self):
        if Server.is_away:
            raise DataError("the server cannot be reached")

    def rebuild(self, rows):
        self.answer()
        self.exact.rebuild(rows)
        Server.tables[self.name] = rows

    def candidates(self, *given):
        self.answer()
        return self.exact.candidates(*given)

    def add(self, first, vectors):
        self.exact.add(first, vectors)

    def discard(self):
        self.answer()
        Server.tables.pop(self.name, None)

    def show(self, rows):
        self.exact.show(rows)

    def status(self):
        return {}


@pytest.fixture
def served(index, monkeypatch):
    """The index with a server for an engine."""
    kind = replace(ADDRESSES["http"], cls=f"{__name__}:Server", package=None)
    monkeypatch.setitem(ADDRESSES, "http", kind)
    monkeypatch.setattr(Server, "tables", {})
    monkeypatch.setattr(Server, "is_away", False)
    index.use_engine("http://somewhere:19530")
    assert list(Server.tables.values()) == [20]
    return index


def test_what_a_server_held_of_the_old_vectors_goes_unless_they_are_kept(served, images, model):
    first = set(Server.tables)
    upgrade(served.path, other())
    second = set(Server.tables)
    assert len(second) == 1
    assert not second & first
    done = upgrade(served.path, other("third"), keep_old=True)
    assert len(Server.tables) == 2
    assert second < set(Server.tables)
    for folder in (served.path, done.old):
        assert Index.open(folder).status().engine["name"] == "http://somewhere:19530"
        assert len(Index.open(folder).search(0, k=5)) == 5


def test_an_upgrade_does_without_a_server_that_is_gone(served, images):
    Server.is_away = True
    before = told(served)
    with pytest.warns(Notice) as said:
        upgrade(served.path, other())
    texts = [str(each.message) for each in said]
    assert len(texts) == 2
    assert "could not be deleted" in texts[0]
    assert "is upgraded, and is searched by an exact scan for now" in texts[1]
    assert "--engine http://somewhere:19530" in texts[1]
    new = Index.open(served.path, other())
    assert told(new) == before
    assert new.status().engine["name"] == "exact"
    hits = new.search(images / "kind 1" / "2.png", k=5)
    assert len(hits) == 5
    Server.is_away = False
    new.use_engine("http://somewhere:19530")
    assert Server.tables[new._items.fact("identity")] == 20
    assert new.search(images / "kind 1" / "2.png", k=5) == hits


def test_what_goes_wrong_here_is_an_error(index, monkeypatch):
    def full(self, rows):
        raise OutputError("the disk is full")

    monkeypatch.setattr(ExactEngine, "rebuild", full)
    with pytest.raises(OutputError, match="full"):
        upgrade(index.path, other())


def stored(folder):
    """All numbers that lie in files of vectors below a folder."""
    return np.concatenate([np.fromfile(file, np.float32) for file in sorted(folder.rglob("vectors/*.float32"))])


def test_removed_vectors_are_gone_and_all_else_stays(whole, model):
    gone = [0, 5, 6, 7, 23]
    vectors = whole.vectors(gone)
    correct(whole, [3], "robin")
    thumbnail = whole.thumbnail(6)
    whole.remove(gone)
    ids, kept, items = whole.ids(), whole.vectors(whole.ids()), whole.items(whole.ids())
    found = whole.search(items[2].path, k=30)
    assert all(vector.tobytes() in stored(whole.path).tobytes() for vector in vectors)
    done = compact(whole.path)
    assert (done.items, done.removed) == (19, 5)
    assert not any(vector.tobytes() in stored(whole.path).tobytes() for vector in vectors)
    again = Index.open(whole.path, model)
    assert np.array_equal(again.ids(), ids)
    assert np.array_equal(again.vectors(ids), kept)
    assert again.items(ids) == items
    assert again.search(items[2].path, k=30) == found
    assert [each.id for each in corrections(again)] == [3]
    assert not (whole.path / "vectors").exists()
    again.close()
    whole.close()
    assert not any(thumbnail in file.read_bytes() for file in whole.path.rglob("*") if file.is_file())


def test_ids_are_not_used_again_and_it_can_be_done_again(whole, model, write_images, tmp_path):
    whole.remove([22, 23])
    compact(whole.path)
    again = Index.open(whole.path, model)
    again.add(write_images(tmp_path / "more", kinds=1, per_kind=3, seed=7))
    assert again.ids().tolist() == [*range(22), 24, 25, 26]
    again.remove([24])
    compact(whole.path)
    last = Index.open(whole.path, model)
    assert last.search(last.get(26).path, k=1)[0].id == 26
    assert len(list(whole.path.glob("compact-*"))) == 1


def test_nothing_removed_is_nothing_to_do(whole):
    before = sorted(whole.path.rglob("*"))
    done = compact(whole.path)
    assert (done.removed, done.before) == (0, done.after)
    assert sorted(whole.path.rglob("*")) == before


def test_everything_removed(whole, model):
    whole.remove(whole.ids())
    compact(whole.path)
    assert not stored(whole.path).any()
    assert Index.open(whole.path, model).search(np.zeros((8, 8, 3), np.uint8), k=3) == []


@pytest.mark.skipif(os.name == "nt", reason="holes in files")
def test_long_runs_that_were_removed_free_their_room(tmp_path, model, monkeypatch):
    """In whole files of several segments, of which the first is all gone."""
    monkeypatch.setattr(module, "BLOCK", 1024)
    old = Segments(tmp_path / "old" / "vectors", 16, np.float32, rows_per_segment=4096)
    values = np.random.default_rng(0).normal(size=(10_000, 16)).astype(np.float32)
    old.append(0, values)
    ids = np.arange(9_000, 9_900)
    module._copy(old, tmp_path / "new", ids, 10_000, None)
    new = Segments(tmp_path / "new" / "vectors", 16, np.float32, rows_per_segment=4096)
    new.show(10_000)
    expected = np.zeros_like(values)
    expected[ids] = values[ids]
    assert np.array_equal(np.concatenate(new.maps()), expected)
    # 10,000 rows of 64 bytes; written are five blocks of 1,024 at most.
    new_size, old_size = (module._bytes_on_disk(tmp_path, tmp_path / name) for name in ("new", "old"))
    assert new_size <= 5 * 1024 * 64 + 3 * 4096 < old_size
