"""The commands index and search, with a run that was trained."""

from __future__ import annotations

import json
import shutil

import pytest

from nearkin.recipe import Recipe
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.state import Silent


@pytest.fixture
def trained(photos, tmp_path):
    recipe = Recipe.from_mapping(
        {
            "data": {"transform": "mild", "image_size": 32, "workers": 1, "shorter_side": 48, "source": str(photos)},
            "encoder": {"backbone": "small", "dim": 8},
            "training": {"epochs": 1, "max_steps": 1, "batch_size": 8, "device": "cpu"},
            "protocol": {"name": "conventional", "test_share": 0.35},
        }
    )
    run(recipe, RunFolder(tmp_path / "run"), Silent())
    return tmp_path / "run"


def test_from_photos_to_a_search(nearkin, trained, photos, tmp_path):
    (photos / "kiwi" / "broken.jpg").write_bytes(b"no image")
    index = tmp_path / "birds.index"
    code, out, err = nearkin("index", trained, photos, "-o", index)
    assert code == 0, err
    assert "48 images added" in out
    assert "could not read" in out
    assert f"Next: nearkin search {index} IMAGE" in out
    code, out, _ = nearkin("index", trained, photos, "-o", index, "--json")
    assert json.loads(out)["known"] == 48

    query = photos / "kiwi" / "Bild 3 ä.png"
    code, out, err = nearkin("search", index, query, "-k", 3, "--json")
    assert code == 0, err
    ((first, *more),) = [each["hits"] for each in json.loads(out)]
    assert first["path"] == str(query)
    assert first["label"] == "kiwi"
    assert first["score"] == pytest.approx(1, abs=1e-5)
    assert 0 < first["confidence"] < 1
    assert len(more) == 2
    code, out, _ = nearkin(
        "search", index, query, query, "-k", 3, "--where", "label=rote Ente", "--sheet", tmp_path / "s.png"
    )
    assert code == 0
    assert out.count("rote Ente") >= 6
    assert "kiwi/Bild 0" not in out
    assert (tmp_path / "s.png").stat().st_size > 1000
    code, out, _ = nearkin(
        "search", index, "--like", first["id"], "--unlike", more[0]["id"], "--group-by", "label", "--json"
    )
    labels = [hit["label"] for hit in json.loads(out)[0]["hits"]]
    assert len(set(labels)) == len(labels) == 6
    code, out, _ = nearkin("search", index, query, "--min-confidence", "1.5")
    assert "Nothing found" in out

    code, out, _ = nearkin("index", "status", index)
    assert code == 0
    assert "Files: 49 found, 48 embedded, 1 failed" in out
    assert "kinds not trained on" in out
    code, out, _ = nearkin("index", "status", index, "--json")
    assert json.loads(out)["calibration"]["brier"] < 1


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
    query = photos / "kiwi" / "Bild 3 ä.png"
    for words, exit_code, said in (
        (["index", trained], 2, "FOLDER -o INDEX"),
        (["index", trained, photos], 2, "say where the index is to be: -o INDEX"),
        (["index", trained, photos, "-o", index, "--engine", "fais"], 2, "unknown engine 'fais'; did you mean 'faiss'"),
        (
            ["index", trained, photos, "-o", index, "--engine", "mysql://me:word@host"],
            2,
            "'mysql://me@host'; give postg",
        ),
        (["index", "status"], 2, "give one index: nearkin index status INDEX"),
        (["index", "status", tmp_path / "bird.index"], 3, "did you mean"),
        (["index", tmp_path / "rum", photos, "-o", index], 3, "there is no run folder"),
        (["index", trained, tmp_path / "own fotos", "-o", index], 3, "did you mean"),
        (["search", index], 2, "give an image to look for"),
        (["search", index, photos / "none.png"], 3, "there is no file"),
        (["search", index, query, "--where", "lable=kiwi"], 2, "did you mean 'label'"),
        (["search", index, query, "--where", "year>2020"], 2, "write FIELD=VALUE"),
        (["search", index, query, "--like", "999"], 3, "there is no item 999"),
        (["search", index, query, "--sheet", "sheet.doc"], 2, "must end in .png"),
        (["search", index, query, "-k", "0"], 2, "k must be a whole number of at least 1"),
    ):
        code, _, err = nearkin(*words)
        assert (code, said in " ".join(err.split())) == (exit_code, True), (words, err)
    shutil.move(trained, tmp_path / "moved")
    code, _, err = nearkin("search", index, query)
    assert code == 3
    assert "--run RUN" in err
    assert nearkin("search", index, query, "--run", tmp_path / "moved")[0] == 0
