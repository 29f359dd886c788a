"""The command index and its words, with runs that were trained."""

from __future__ import annotations

import csv
import json
import shlex

import numpy as np
import pytest

from nearkin.index import Index
from nearkin.runs.folder import RunFolder
from nearkin.runs.model import load
from nearkin.runs.run import run
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer


@pytest.fixture
def index(nearkin, trained, photos, tmp_path):
    """An index of all photos, with a year and a place for each from a manifest."""
    rows = [
        {"path": path, "label": path.parent.name, "year": 2015 + number % 8, "place": ("New York", "Köln")[number % 2]}
        for number, path in enumerate(sorted(photos.rglob("*.png")))
    ]
    with open(tmp_path / "photos.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    code, _, err = nearkin("index", trained, tmp_path / "photos.csv", "-o", tmp_path / "photos.index")
    assert code == 0, err
    return tmp_path / "photos.index"


def test_from_photos_to_an_index_and_its_status(nearkin, trained, photos, tmp_path):
    (photos / "kiwi" / "broken.jpg").write_bytes(b"no image")
    index = tmp_path / "birds.index"
    code, out, err = nearkin("index", trained, photos, "-o", index)
    assert code == 0, err
    assert "48 images added" in out
    assert "could not read" in out
    assert f"Next: nearkin search {index} IMAGE" in out
    code, out, _ = nearkin("index", trained, photos, "-o", index, "--json")
    assert json.loads(out)["known"] == 48

    code, out, _ = nearkin("index", "status", index)
    assert code == 0
    assert "Files: 49 found, 48 embedded, 1 failed" in out
    assert "not trained on" in out
    assert "again with no image of its class in the index" in out
    assert "guessing" in out
    assert "scan of " in out
    learned = json.loads(nearkin("index", "status", index, "--json")[1])["confidence"]
    assert learned["images"] == 16, "of two test classes"
    assert f"{learned['accuracy']:.0%} right" in out
    assert f"{learned['label']['brier']:.3f}" in out


def test_classes_are_those_folders_that_the_run_took_for_classes(nearkin, trained, photos, tmp_path):
    folder = RunFolder(trained)
    folder.write_recipe(folder.recipe().with_changes({"data.class_folders": "top"}))
    for number, path in enumerate(sorted(photos.rglob("*.png"))):
        place = path.parent / ("wild", "tame")[number % 2]
        place.mkdir(exist_ok=True)
        path.rename(place / path.name)
    code, out, err = nearkin("index", trained, photos, "-o", tmp_path / "as the run")
    assert code == 0, err
    classes = {name for name, _ in Index.open(tmp_path / "as the run").label_counts()}
    assert classes == {folder.name for folder in photos.iterdir()}
    assert "Labels:" not in out
    code, out, err = nearkin("index", trained, photos, "-o", tmp_path / "other", "--class-folders", "deepest")
    assert code == 0, err
    assert len(Index.open(tmp_path / "other").label_counts()) == 12
    assert f"Labels: 12 of 12 are no classes of {trained}, which has 6." in " ".join(out.split())


def test_status_of_an_index_that_is_being_made_and_after_an_interruption(nearkin, trained, photos, tmp_path):
    index, during = Index.create(tmp_path / "birds.index", load(trained)), []

    def interrupt(done, total):
        if done == 16:
            during.append(" ".join(nearkin("index", "status", index.path)[1].split()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.add(photos, batch_size=8, progress=interrupt)
    assert "Unfinished: 16 of 48 images are done; process " in during[0]
    assert "too few labels" not in during[0]
    out = nearkin("index", "status", index.path)[1]
    assert "too few labels" not in out
    (line,) = [line for line in out.splitlines() if line.startswith("Unfinished: 16 of 48")]
    command = shlex.split(line.partition("command: ")[2])
    assert nearkin(*command[1:])[0] == 0
    assert len(Index.open(index.path)) == 48
    assert "Unfinished" not in nearkin("index", "status", index.path)[1]


def test_status_draws_how_far_confidences_can_be_believed(nearkin, index, tmp_path):
    code, _, err = nearkin("index", "status", index, "--figure", tmp_path / "reliability.png")
    assert code == 0, err
    assert (tmp_path / "reliability.png").stat().st_size > 1000
    code, _, err = nearkin("index", "status", index, "--figure", tmp_path / "reliability.doc")
    assert (code, "must end in .png" in err) == (2, True)


def test_the_word_add_may_be_there_and_options_may_come_first(nearkin, trained, photos, tmp_path):
    assert nearkin("index", "add", trained, photos, "-o", tmp_path / "one")[0] == 0
    assert nearkin("index", "-o", tmp_path / "two", "--no-labels", trained, photos)[0] == 0
    assert Index.open(tmp_path / "one").status().labelled == len(Index.open(tmp_path / "two")) == 48
    assert Index.open(tmp_path / "two").status().labelled == 0


def test_help_shows_how_to_add_and_every_word(nearkin):
    code, out, _ = nearkin("index", "--help")
    assert code == 0
    assert "RUN FOLDER... -o INDEX" in out
    for word in ("add", "status", "upgrade", "export", "remove"):
        assert f"│ {word} " in out
        assert nearkin("index", word, "--help")[0] == 0
    listed = nearkin("--help")[1]
    assert listed.index("│ export ") < listed.index("│ index ") < listed.index("│ search ")


def test_test_images(nearkin, trained, tmp_path):
    code, out, err = nearkin("index", trained, "--test-images", "-o", tmp_path / "index", "--json")
    assert code == 0, err
    assert json.loads(out)["added"] == 16


def test_upgrade(nearkin, index, trained, photos, tmp_path):
    recipe = load_recipe(trained / "recipe.yaml", ["encoder.dim=4", "training.seed=1"])
    run(recipe, RunFolder(tmp_path / "better"), Observer())
    before = Index.open(index).items(Index.open(index).ids())
    gone = photos / "kiwi" / "Bild 3 ä.png"
    gone.unlink()
    code, _, err = nearkin("index", "upgrade", index, tmp_path / "better")
    assert code == 3
    assert "1 images of" in err
    assert "--drop-missing" in err
    code, out, err = nearkin("index", "upgrade", index, tmp_path / "better", "--drop-missing")
    assert code == 0, err
    assert "47 images embedded" in " ".join(out.split())
    new = Index.open(index)
    assert new.dim == 4
    assert new.items(new.ids()) == [item for item in before if item.path != str(gone)]
    assert nearkin("search", index, photos / "kiwi" / "Bild 4 ä.png")[0] == 0
    code, out, _ = nearkin("index", "upgrade", index, trained, "--json")
    assert json.loads(out)["items"] == len(Index.open(index))
    code, _, err = nearkin("index", "upgrade", index, trained)
    assert code == 2
    assert "of this encoder already" in err


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_export(nearkin, index, tmp_path, ending):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    file = tmp_path / f"photos.{ending}"
    code, out, err = nearkin("index", "export", index, "-o", file, "--where", "place=New York", "--json")
    assert code == 0, err
    assert json.loads(out) == {"file": str(file), "items": 24}
    if ending == "npz":
        with np.load(file) as held:
            assert set(held["columns.place"].tolist()) == {"New York"}
    code, _, err = nearkin("index", "export", index, "-o", tmp_path / "photos.xls")
    assert (code, "must end in .npz or .parquet" in err) == (2, True)


def test_remove(nearkin, index, monkeypatch):
    code, out, err = nearkin("index", "remove", index, 3, 17, "--yes")
    assert code == 0, err
    assert "2 items removed" in out
    terms = ["--where", "place=New York", "--where", "year<=2018"]
    going = Index.open(index).ids({"place": "New York", "year": (None, 2018)})
    code, out, err = nearkin("index", "remove", index, *terms)
    assert code == 2
    assert f"Remove {len(going)} of 46 items" in " ".join(err.split())
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda text, **_: "Remove" in text)
    code, out, err = nearkin("index", "remove", index, *terms, "--json")
    assert code == 0, err
    assert json.loads(out) == {"removed": going.tolist(), "items": 46 - len(going)}
    for words, exit_code, said in (
        (["remove", index], 2, "--where"),
        (["remove", index, 5, "--where", "label=kiwi"], 2, "not both"),
        (["remove", index, 3, "--yes"], 3, "there is no item 3"),
        (["remove", index, "--where", "plcae=Köln", "--yes"], 2, "did you mean 'place'"),
    ):
        code, _, err = nearkin("index", *words)
        assert (code, said in " ".join(err.split())) == (exit_code, True), (words, err)


def test_an_index_changes_to_another_engine(nearkin, trained, photos, tmp_path):
    index, query = tmp_path / "birds.index", photos / "kiwi" / "Bild 3 ä.png"
    assert nearkin("index", trained, photos, "-o", index, "--engine", "faiss")[0] == 0
    assert "name faiss" in nearkin("index", "status", index)[1]
    found = json.loads(nearkin("search", index, query, "--json")[1])
    code, out, _ = nearkin("index", trained, photos, "-o", index, "--engine", "exact", "--json")
    assert (code, json.loads(out)["known"]) == (0, 48)
    assert "name exact" in nearkin("index", "status", index)[1]
    assert json.loads(nearkin("search", index, query, "--json")[1]) == found


def test_mistakes_say_what_to_do(nearkin, trained, photos, tmp_path):
    index = tmp_path / "birds.index"
    assert nearkin("index", trained, photos / "kiwi", "-o", index)[0] == 0
    for words, exit_code, said in (
        ([trained], 2, "FOLDER -o INDEX"),
        ([trained, photos], 2, "-o INDEX"),
        ([trained, photos, "--test-images", "-o", index], 2, "not both"),
        ([trained, photos, "-o", index, "--engine", "fais"], 2, "unknown engine 'fais'; did you mean 'faiss'"),
        ([trained, photos, "-o", index, "--engine", "mysql://me:word@host"], 2, "'mysql://me@host'; give postg"),
        (["status"], 2, "Missing argument 'INDEX'"),
        (["statsu", index], 2, "did you mean 'status'"),
        (["status", tmp_path / "bird.index"], 3, "did you mean"),
        (["upgrade", index, tmp_path / "rum"], 3, "there is no run folder"),
        ([tmp_path / "rum", photos, "-o", index], 3, "there is no run folder"),
        ([trained, tmp_path / "own fotos", "-o", index], 3, "did you mean"),
    ):
        code, _, err = nearkin("index", *words)
        assert (code, said in " ".join(err.split())) == (exit_code, True), (words, err)
