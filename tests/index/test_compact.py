"""Compaction: removed vectors are gone, all else is as it was, whenever it is killed."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from tests.killing import run_script

from nearkin.errors import DataError
from nearkin.index import Index
from nearkin.index import upgrade as module
from nearkin.index.corrections import correct, corrections
from nearkin.index.upgrade import compact


@pytest.fixture
def index(tmp_path, write_images, model):
    index = Index.create(tmp_path / "a.index", model)
    index.add(write_images(tmp_path / "photos", kinds=4, per_kind=6))
    return index


def stored(folder):
    """All numbers that lie in files of vectors below a folder."""
    return np.concatenate([np.fromfile(file, np.float32) for file in sorted(folder.rglob("vectors/*.float32"))])


def test_removed_vectors_are_gone_and_all_else_stays(index, model):
    gone = [0, 5, 6, 7, 23]
    vectors = index.vectors(gone)
    correct(index, [3], "robin")
    thumbnail = index.thumbnail(6)
    index.remove(gone)
    ids, kept, items = index.ids(), index.vectors(index.ids()), index.items(index.ids())
    found = index.search(items[2].path, k=30)
    assert all(vector.tobytes() in stored(index.path).tobytes() for vector in vectors)
    done = compact(index.path)
    assert (done.items, done.removed) == (19, 5)
    assert not any(vector.tobytes() in stored(index.path).tobytes() for vector in vectors)
    again = Index.open(index.path, model)
    assert np.array_equal(again.ids(), ids)
    assert np.array_equal(again.vectors(ids), kept)
    assert again.items(ids) == items
    assert again.search(items[2].path, k=30) == found
    assert [each.id for each in corrections(again)] == [3]
    assert not (index.path / "vectors").exists()
    again.close()
    index.close()
    assert not any(thumbnail in file.read_bytes() for file in index.path.rglob("*") if file.is_file())


def test_ids_are_not_used_again_and_it_can_be_done_again(index, model, write_images, tmp_path):
    index.remove([22, 23])
    compact(index.path)
    again = Index.open(index.path, model)
    again.add(write_images(tmp_path / "more", kinds=1, per_kind=3, seed=7))
    assert again.ids().tolist() == [*range(22), 24, 25, 26]
    again.remove([24])
    compact(index.path)
    last = Index.open(index.path, model)
    assert last.search(last.get(26).path, k=1)[0].id == 26
    assert len(list(index.path.glob("compact-*"))) == 1


def test_nothing_removed_is_nothing_to_do(index):
    before = sorted(index.path.rglob("*"))
    done = compact(index.path)
    assert (done.removed, done.before) == (0, done.after)
    assert sorted(index.path.rglob("*")) == before


def test_everything_removed(index, model):
    index.remove(index.ids())
    compact(index.path)
    assert not stored(index.path).any()
    assert Index.open(index.path, model).search(np.zeros((8, 8, 3), np.uint8), k=3) == []


def test_whoever_has_the_index_open_is_told(index, images, model):
    index.remove([1])
    compact(index.path)
    with pytest.raises(DataError, match="was upgraded or compacted since it was opened: open it again"):
        index.search(index.get(0).path)


@pytest.mark.skipif(os.name == "nt", reason="holes in files")
def test_long_runs_that_were_removed_free_their_room(tmp_path, model, monkeypatch):
    """In whole files of several segments, of which the first is all gone."""
    from nearkin.index.segments import Segments

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


SCRIPT = """
import json, os, shutil, signal, sys
from pathlib import Path
import numpy as np
import numpy.random, sklearn.linear_model, nearkin.index.exact  # which each of the forks would import else
from nearkin.index import upgrade as module
from nearkin.index.upgrade import compact
from nearkin.index.index import Index
from nearkin.index.items import Items
from nearkin.index.segments import Segments
from nearkin.runs.model import Model
from tests.killing import count_events, in_child

photos, work = Path(sys.argv[1]), Path(sys.argv[2])
module.BLOCK = 4

def embed(images, batch_size):
    rows = np.array([image.mean(axis=(0, 1)) for image in images])
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

model = Model(Path("nowhere"), "colours", 3, "cosine", 32, embed)

def compacts(folder, until):
    def work_of_child(out):
        files = [(os, name) for name in ("fsync", "replace", "unlink", "rmdir")]
        seen = count_events(until, *files, (Segments, "append"), (Items, "set_fact"))
        compact(folder)
        print(seen[0], file=out)
    return work_of_child

def is_gone(folder):
    return not any(gone in file.read_bytes() for file in folder.rglob("*.float32"))

def looks(folder):
    def work_of_child(out):
        index = Index.open(folder, model)
        ids = index.ids()
        assert ids.tolist() == [each for each in range(24) if each not in (5, 6, 7, 8, 12)]
        items = index.items(ids)
        assert np.array_equal(index.vectors(ids), model.encode([item.path for item in items]))
        assert all(hits[0].score > 0.9999 for hits in index.search([item.path for item in items], k=1))
        name = index._items.fact("vectors")
        compact(folder)
        assert is_gone(folder)
        assert len([*folder.glob("compact-*"), *folder.glob("vectors")]) == 1
        index = Index.open(folder, model)
        assert index.add(photos).added == 5, "those that were removed"
        print("new" if name else "old", file=out)
    return work_of_child

def makes(folder):
    def work_of_child(out):
        index = Index.create(folder, model)
        index.add(photos)
        print(index.vectors([6])[0].tobytes().hex(), file=out)
        index.remove([5, 6, 7, 8, 12])
        index.close()
    return work_of_child

lines, code = in_child(makes(work / "made"))
assert code == 0
gone = bytes.fromhex(lines[0])
assert not is_gone(work / "made")
shutil.copytree(work / "made", work / "whole")
lines, code = in_child(compacts(work / "whole", None))
assert code == 0
assert is_gone(work / "whole")
events = int(lines[0])
ends = []
for moment in range(1, events, max(1, events // 10)):
    folder = work / str(moment)
    shutil.copytree(work / "made", folder)
    assert in_child(compacts(folder, moment))[1] == -signal.SIGKILL
    lines, code = in_child(looks(folder))
    assert code == 0, moment
    ends += lines
print(json.dumps(ends))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_moment_it_is_the_old_index_or_the_new_one_whole(tmp_path, write_images):
    photos = write_images(tmp_path / "photos", kinds=4, per_kind=6)
    ends = json.loads(run_script(SCRIPT, photos, tmp_path))
    assert len(ends) >= 10
    assert ends == sorted(ends, reverse=True), "first the old one, from one moment on the new one"
    assert {"old", "new"} == set(ends)
