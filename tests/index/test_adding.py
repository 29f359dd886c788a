"""Adding to an index, and the process that does it killed in the middle."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.errors import RecipeError
from nearkin.index.adding import sources_of, thumbnail_of
from nearkin.index.index import Index


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
    monkeypatch.setattr(index._engine, "rebuild", lambda rows, live: built.append(rows))
    # Whoever writes begins with what is there, as the one before may have been killed.
    assert index.add(images / "kind 0").added == 5
    assert built == [0, 5]
    assert index.add(images / "kind 0").added == 0
    assert built == [0, 5, 5]
    assert index.add(images).added == 15
    assert built == [0, 5, 5, 5, 20]
