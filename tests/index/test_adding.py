"""Adding to an index, and the process that does it killed in the middle."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from tests.killing import run_script

from nearkin.errors import RecipeError
from nearkin.index.adding import sources_of, thumbnail_of
from nearkin.index.index import Index

# One interpreter for all rounds: each child is killed at a certain event, and another looks at what it left.
SCRIPT = """
import json, os, random, signal, sys
from pathlib import Path
import numpy as np
from PIL import Image
import numpy.random, sklearn.linear_model, nearkin.index.exact  # which each of the forks would import else
from nearkin.index.index import Index
from nearkin.index.items import Items
from nearkin.index.segments import Segments
from nearkin.runs.model import Model
from tests.killing import count_events, in_child

photos, work = Path(sys.argv[1]), Path(sys.argv[2])

def embed(images, batch_size):
    rows = [np.concatenate([half.mean(axis=(0, 1)) for half in np.array_split(image, 2)]) for image in images]
    vectors = np.array(rows, dtype=np.float32).reshape(-1, 6) - 127.5
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

model = Model(Path("nowhere"), "stand-in", 6, "cosine", 32, embed)

def adds(folder, until):
    def work_of_child(out):
        tables = [(Items, name) for name in ("set_fact", "record_file", "insert")]
        seen = count_events(until, (os, "fsync"), (Segments, "append"), *tables)
        index = Index.open(folder, model) if (folder / "items.sqlite").exists() else Index.create(folder, model)
        index.add(photos, batch_size=4, progress=lambda done, of: print(done, file=out))
        print(seen[0], file=out)
    return work_of_child

def looks(folder, reported):
    def work_of_child(out):
        if not (folder / "items.sqlite").exists():
            assert reported == 0
            return
        index = Index.open(folder, model)
        index.status()
        ids = index.ids().tolist()
        assert len(ids) >= reported, (ids, reported)
        for id, item in zip(ids, index.items(ids)):
            wanted = embed([np.asarray(Image.open(item.path))], None)[0]
            assert np.allclose(index.vectors([id])[0], wanted, atol=1e-6), id
            assert index.thumbnail(id)
        if ids:
            assert len(index.search(ids[0], k=100)) == len(ids) - 1
    return work_of_child

lines, code = in_child(adds(work / "whole", None))
assert code == 0, code
events = int(lines[-1])
ends = []
for round, until in enumerate(sorted(random.Random(0).sample(range(1, events), 10))):
    folder = work / str(round)
    reported = 0
    lines, code = in_child(adds(folder, until))
    assert code == -signal.SIGKILL, code
    reported = int(lines[-1]) if lines else 0
    assert in_child(looks(folder, reported))[1] == 0, (round, until)
    lines, code = in_child(adds(folder, max(1, until // 2)))  # and once more, wherever that is
    assert in_child(looks(folder, int(lines[-1]) if lines and code else reported))[1] == 0, (round, until)
    lines, code = in_child(adds(folder, None))
    assert code == 0, code
    assert in_child(looks(folder, 24))[1] == 0, (round, until)
    ends.append(reported)
print(json.dumps({"events": events, "reported": ends}))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_moment_an_index_opens_holds_what_it_reported_and_goes_on(tmp_path, write_images):
    photos = write_images(tmp_path / "photos", kinds=4, per_kind=6)
    told = json.loads(run_script(SCRIPT, photos, tmp_path))
    assert told["events"] > 100
    assert len(set(told["reported"])) > 3, "the moments were spread over the whole of it"


def test_an_interrupted_add_goes_on_where_it_was(tmp_path, images, model):
    index = Index.create(tmp_path / "index", model)

    def stop(done, of):
        if done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.add(images, batch_size=4, progress=stop)
    assert len(index) == 8
    added = Index.open(tmp_path / "index", model).add(images, batch_size=4)
    assert (added.added, added.known) == (12, 8)
    assert len(index.search(0, k=50)) == 19


def test_files_that_are_known_are_not_read_again(tmp_path, images, model, monkeypatch):
    index = Index.create(tmp_path / "index", model)
    index.add(images)
    monkeypatch.setattr("nearkin.index.adding.read_file", lambda path: pytest.fail(f"read {path}"))
    assert index.add(images).known == 20


def test_what_can_be_added(images):
    assert [row.label for row in sources_of(images, "folder", 32).rows][:6] == [*["kind 0"] * 5, "kind 1"]
    assert {row.label for row in sources_of(images, None, 32).rows} == {None}
    several = sources_of([images / "kind 0", images / "kind 1" / "0.png"], "folder", 32)
    assert len(several.rows) == 6


@pytest.mark.parametrize("collected", [list, tuple, np.array])
def test_labels_given_one_by_one(images, tmp_path, model, collected):
    files = sorted(images.rglob("*.png"))[:3]
    pixels = [np.full((8, 8, 3), 60 * number, dtype=np.uint8) for number in range(3)]
    named = collected(["tit", "", "wren"])
    for given in (files, pixels):
        assert [row.label for row in sources_of(given, named, 32).rows] == ["tit", None, "wren"]
        with pytest.raises(RecipeError, match="3 images were given, and 2 labels: give one for each"):
            sources_of(given, named[:2], 32)
    for none in (None, "folder"):
        assert [row.label for row in sources_of(pixels, none, 32).rows] == [None] * 3
    with pytest.raises(RecipeError, match="labels must be 'folder', one for each image, or None, got 'tit'"):
        sources_of(pixels, "tit", 32)
    index = Index.create(tmp_path / "index", model)
    index.add(pixels, labels=named)
    assert [item.label for item in index.items(index.ids())] == ["tit", None, "wren"]
    assert [item.label for item in index.items(index.ids(where={"label": "wren"}))] == ["wren"]


def test_a_thumbnail_of_a_strip():
    assert thumbnail_of(np.zeros((3, 2000, 3), np.uint8)).startswith(b"\xff\xd8")


def test_an_engine_is_built_anew_when_something_was_added_and_not_otherwise(tmp_path, images, model, monkeypatch):
    index, built = Index.create(tmp_path / "index", model), []
    monkeypatch.setattr(index._engine, "rebuild", built.append)
    # Whoever writes begins with what is there, as the one before may have been killed.
    assert index.add(images / "kind 0").added == 5
    assert built == [0, 5]
    assert index.add(images / "kind 0").added == 0
    assert built == [0, 5, 5]
    assert index.add(images).added == 15
    assert built == [0, 5, 5, 5, 20]
