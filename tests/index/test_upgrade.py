"""An index that gets another encoder: what stays, what is refused, and the process killed in the middle."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from tests.killing import run_script

from nearkin.errors import BusyError, DataError, Notice, OutputError, RecipeError
from nearkin.index.engine import ADDRESSES
from nearkin.index.exact import ExactEngine
from nearkin.index.index import Index
from nearkin.index.upgrade import upgrade
from nearkin.runs.lock import sole_writer_of
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


def told(index):
    return [(item, index.thumbnail(item.id)) for item in index.items(index.ids())]


def test_everything_but_the_vectors_stays(index, images):
    before = told(index)
    seen = []
    done = upgrade(index.path, other(), batch_size=8, progress=lambda *both: seen.append(both))
    assert seen == [(8, 20), (16, 20), (20, 20)]
    assert (done.items, done.dropped, done.compared, done.old) == (19, (), 19, None)
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


def test_how_far_old_and_new_agree_is_what_plain_rankings_say(index, images, mean_colours):
    done = upgrade(index.path, other())
    new = Index.open(index.path, other())
    items = new.items(new.ids())
    paths = [item.path for item in items]
    labels = np.array([item.label for item in items])
    pixels = [np.asarray(image) for image in _decoded(paths)]
    old_vectors = mean_colours(pixels, None).astype(np.float64)
    new_vectors = left_and_right(pixels, None).astype(np.float64)
    scores = [old_vectors @ old_vectors.T, -np.linalg.norm(new_vectors[:, None] - new_vectors[None], axis=2)]
    for score in scores:
        np.fill_diagonal(score, -np.inf)
    before, after = (np.argsort(-score, axis=1, kind="stable")[:, :10] for score in scores)
    overlap = np.mean([len({*a} & {*b}) / 10 for a, b in zip(before.tolist(), after.tolist(), strict=True)])
    assert done.overlap == pytest.approx(overlap)
    for accuracy, ranked in ((done.accuracy_before, before), (done.accuracy, after)):
        right = []
        for row, found in enumerate(ranked):
            votes = [int((labels[found] == label).sum()) for label in labels[found]]
            right.append(labels[found][int(np.argmax(votes))] == labels[row])
        assert accuracy == pytest.approx(np.mean(right))


def _decoded(paths):
    from nearkin.data.images import decode

    return [decode(path, shorter_side=32) for path in paths]


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
    assert (done.items, done.overlap, done.accuracy) == (0, None, None)


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
    for call in (lambda: reader.search(0), lambda: writer.remove([0]), lambda: writer.add(images)):
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
        done = upgrade(served.path, other())
    assert done.overlap is not None
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


SCRIPT = """
import json, os, random, shutil, signal, sys
from pathlib import Path
import numpy as np
import numpy.random, sklearn.linear_model, nearkin.index.exact  # which each of the forks would import else
from nearkin.index.index import Index
from nearkin.index.items import Items
from nearkin.index.segments import Segments
from nearkin.index.upgrade import upgrade
from nearkin.runs.model import Model
from tests.killing import count_events, in_child

photos, work = Path(sys.argv[1]), Path(sys.argv[2])

def embed_by(axis):
    def embed(images, batch_size):
        halves = [np.array_split(image, 2, axis=axis) for image in images]
        rows = np.array([np.concatenate([half.mean(axis=(0, 1)) for half in both]) for both in halves])
        return (rows.reshape(-1, 6) / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return embed

old, new = (Model(Path("nowhere"), name, 6, "cosine", 32, embed_by(axis)) for axis, name in enumerate(("old", "new")))

def upgrades(folder, until):
    def work_of_child(out):
        files = [(os, name) for name in ("fsync", "replace", "unlink", "rmdir")]
        seen = count_events(until, *files, (Segments, "append"), (Items, "set_fact"), (Items, "delete"))
        upgrade(folder, new, batch_size=4, keep_old=True)
        print(seen[0], file=out)
    return work_of_child

def looks(folder):
    def work_of_child(out):
        encoder = Index.open(folder).status().encoder
        model = {"old": old, "new": new}[encoder]
        index = Index.open(folder, model)
        items = index.items(index.ids())
        assert len(items) == 23, len(items)
        found = index.search([item.path for item in items], k=1)
        assert all(hits[0].score > 0.9999 for hits in found)
        assert np.array_equal(index.vectors(index.ids()), model.encode([item.path for item in items]))
        if encoder == "old":
            shutil.rmtree(str(folder) + ".old", ignore_errors=True)
            upgrade(folder, new, batch_size=4)
            index = Index.open(folder, new)
        assert index.add(photos).added == 1, "the one that was removed"
        print(encoder, file=out)
    return work_of_child

def makes(folder):
    def work_of_child(out):
        index = Index.create(folder, old)
        index.add(photos)
        index.remove([5])
        index.close()
    return work_of_child

assert in_child(makes(work / "made"))[1] == 0
shutil.copytree(work / "made", work / "whole")
lines, code = in_child(upgrades(work / "whole", None))
assert code == 0
events = int(lines[0])
ends = []
for moment in range(1, events, max(1, events // 12)):
    folder = work / str(moment)
    shutil.copytree(work / "made", folder)
    assert in_child(upgrades(folder, moment))[1] == -signal.SIGKILL
    lines, code = in_child(looks(folder))
    assert code == 0, moment
    ends += lines
print(json.dumps({"events": events, "ends": ends}))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_moment_it_is_the_old_index_or_the_new_one_whole(tmp_path, write_images):
    photos = write_images(tmp_path / "photos", kinds=4, per_kind=6)
    ends = json.loads(run_script(SCRIPT, photos, tmp_path))["ends"]
    assert len(ends) >= 12
    assert ends == sorted(ends, reverse=True), "first the old one, from one moment on the new one"
    assert {"old", "new"} == set(ends)
