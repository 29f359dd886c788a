"""Adding, upgrading and removing, killed at any moment: the index is whole, old or new, and work can be resumed."""

from __future__ import annotations

import json
import os

import pytest
from tests.killing import run_script

# One interpreter for all: each child is killed at a certain event, and another looks at what it left.
SCRIPT = """
import json, os, shutil, signal, sys
from pathlib import Path
import numpy as np
import numpy.random, nearkin.index.exact_engine  # which each of the forks would import else
from nearkin.index.index import Index
from nearkin.index.items import Items
from nearkin.index.segments import Segments
from nearkin.index.upgrade import upgrade
from nearkin.runs.model import Model
from tests.killing import count_events, in_child

photos, work, what = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
FILES = [(os, name) for name in ("fsync", "replace", "unlink", "rmdir")]
TABLES = [(Segments, "append"), (Segments, "clear")]
TABLES += [(Items, name) for name in ("set_fact", "record_file", "insert", "delete")]
REMOVED, LATER = () if what == "add" else (5, 6, 7, 8, 12), (3, 4, 20)

def embed_by(axis):
    def embed(images, batch_size):
        halves = [np.array_split(image, 2, axis=axis) for image in images]
        rows = np.array([np.concatenate([half.mean(axis=(0, 1)) for half in both]) for both in halves]) - 127.5
        return (rows.reshape(-1, 6) / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return embed

old, new = (Model(Path("nowhere"), name, 6, "cosine", 32, embed_by(axis)) for axis, name in enumerate(("old", "new")))

def makes(folder):
    def child(out):
        index = Index.create(folder, old)
        if what != "add":
            index.add(photos, labels=None)
            index.remove(REMOVED)
        index.close()
    return child

def works(folder, until):
    def child(out):
        seen = count_events(until, *FILES, *TABLES)
        if what == "add":
            Index.open(folder, old).add(photos, None, batch_size=4, progress=lambda done, of: print(done, file=out))
        elif what == "upgrade":
            upgrade(folder, new, batch_size=4)
        else:
            Index.open(folder, old).remove(LATER)
        print(seen[0], file=out)
    return child

def looks(folder, reported):
    def child(out):
        is_new = Index.open(folder).status().encoder == "new"
        index = Index.open(folder, new if is_new else old)
        items = index.items(index.ids())
        if what == "remove":
            is_new = len(items) == 24 - len(REMOVED) - len(LATER)
        assert len(items) >= reported if what == "add" else is_new or len(items) == 24 - len(REMOVED)
        if items:
            paths = [item.path for item in items]
            assert np.array_equal(index.vectors(index.ids()), index.model.encode(paths))
            assert all(hits[0].score > 0.9999 for hits in index.search(paths, k=1))
            assert all(map(index.thumbnail, index.ids()))
        if what == "upgrade" and not is_new:
            upgrade(folder, new, batch_size=4)
            index = Index.open(folder, new)
        if what == "remove":
            index.remove([0])
            gone = np.setdiff1d(np.arange(24), index.ids())
            assert not index._vectors.take(gone).any(), "also of the removal that was killed"
        index.add(photos, labels=None)
        assert len(index) == 24
        assert len(index.search(1, k=100)) == 23
        print("new" if is_new else "old", file=out)
    return child

assert in_child(makes(work / "made"))[1] == 0
shutil.copytree(work / "made", work / "whole")
lines, code = in_child(works(work / "whole", None))
assert code == 0
events, ends = int(lines[-1]), []
for moment in range(1, events, max(1, events // 10)):
    folder = work / str(moment)
    shutil.copytree(work / "made", folder)
    lines, code = in_child(works(folder, moment))
    assert code == -signal.SIGKILL
    lines, code = in_child(looks(folder, int(lines[-1]) if lines else 0))
    assert code == 0, moment
    ends += lines
print(json.dumps(ends))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("what", ["add", "upgrade", "remove"])
def test_killed_at_any_moment_an_index_is_whole(tmp_path, write_images, what):
    photos = write_images(tmp_path / "photos", kinds=4, per_kind=6)
    ends = json.loads(run_script(SCRIPT, photos, tmp_path, what))
    assert len(ends) >= 10
    if what != "add":
        assert ends == sorted(ends, reverse=True), "first the old one, from one moment on the new one"
        assert {"old", "new"} == set(ends)
