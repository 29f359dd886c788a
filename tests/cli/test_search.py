"""The commands search and classify, with a run that was trained."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from nearkin.index import Index


@pytest.fixture
def index(nearkin, trained, photos, tmp_path):
    code, _, err = nearkin("index", trained, photos, "-o", tmp_path / "photos.index")
    assert code == 0, err
    return tmp_path / "photos.index"


def test_search(nearkin, index, photos, tmp_path):
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


def test_columns_of_a_manifest_can_be_asked_for(nearkin, trained, photos, tmp_path):
    with open(tmp_path / "photos.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "year", "seen at"])
        for number, path in enumerate(sorted(photos.rglob("*.png"))):
            writer.writerow([path, path.parent.name, 2015 + number % 8, ("New York", "a = b >= c")[number % 2]])
    index = tmp_path / "photos.index"
    assert nearkin("index", trained, tmp_path / "photos.csv", "-o", index)[0] == 0
    query = photos / "kiwi" / "Bild 3 ä.png"

    def found(*terms):
        words = [word for term in terms for word in ("--where", term)]
        code, out, err = nearkin("search", index, query, "-k", 100, "--json", *words)
        assert code == 0, err
        return [hit["columns"] for hit in json.loads(out)[0]["hits"]]

    assert len(found()) == 48
    assert {each["year"] for each in found("year>=2016", "year<=2018")} == {2016, 2017, 2018}
    assert {each["year"] for each in found("year = 2016", "year=2020")} == {2016, 2020}
    assert {each["seen at"] for each in found("seen at=New York")} == {"New York"}
    assert {each["seen at"] for each in found("seen at=a = b >= c")} == {"a = b >= c"}
    assert len(found("seen at=New York", "year>=2019")) == 12
    for term, said in (
        ("seen_at=New York", "did you mean 'seen at'"),
        ("yaer>=2016", "did you mean 'year'"),
        ("year=New York", "'year' holds numbers, got 'New York'"),
        ("New York", "write FIELD=VALUE"),
    ):
        code, _, err = nearkin("search", index, query, "--where", term)
        assert (code, said in " ".join(err.split())) == (2, True), err


def test_crop_in_pixels_and_in_shares_is_the_part_itself(nearkin, index, photos, tmp_path):
    left, right = (Image.open(photos / kind / "Bild 3 ä.png") for kind in ("kiwi", "rote Ente"))
    both = Image.new("RGB", (100, 40))
    both.paste(left, (0, 0))
    both.paste(right, (60, 0))
    turned = Image.Exif()
    turned[274] = 6  # to be turned by a quarter to the right
    both.rotate(90, expand=True).save(tmp_path / "both.png", exif=turned)
    for crop, kind in (("0,0,40,40", "kiwi"), ("60,0,40,40", "rote Ente"), ("0.6,0,0.4,1", "rote Ente")):
        code, out, err = nearkin("search", index, tmp_path / "both.png", "--crop", crop, "-k", 1, "--json")
        assert code == 0, err
        (hit,) = json.loads(out)[0]["hits"]
        assert hit["path"] == str(photos / kind / "Bild 3 ä.png")
        assert hit["score"] == pytest.approx(1, abs=1e-5)
    opened = Index.open(index)
    array = np.array(both)
    found = opened.search(array, k=1, crop=[0.6, 0, 0.4, 1])
    assert opened.get(found[0].id).path == str(photos / "rote Ente" / "Bild 3 ä.png")
    query = photos / "kiwi" / "Bild 3 ä.png"
    for words, said in (
        (["--crop", "10,10,31,10"], "does not lie within"),
        (["--crop", "10,10,31,10"], "40 pixels wide and 40 high"),
        (["--crop", "-1,0,20,20"], "does not lie within"),
        (["--crop", "0.5,0,0.6,1"], "must lie within the image"),
        (["--crop", "0,0,0,1"], "must lie within the image"),
        (["--crop", "1,2,3"], "four numbers"),
        (["--crop", "a,b,c,d"], "four numbers"),
        (["--crop", "nan,0,1,1"], "four numbers"),
        ([query, "--crop", "0,0,9,9"], "a part of one image"),
    ):
        code, _, err = nearkin("search", index, query, *words)
        assert (code, said in " ".join(err.split())) == (2, True), (words, err)


def test_classify(nearkin, index, photos, tmp_path):
    query, other = photos / "kiwi" / "Bild 3 ä.png", photos / "rote Ente" / "Bild 1 ä.png"
    code, out, err = nearkin("classify", index, query, other, "-k", 1, "--json")
    assert code == 0, err
    first, second = json.loads(out)
    assert (first["query"], first["label"], second["label"]) == (str(query), "kiwi", "rote Ente")
    assert first["hits"][0]["path"] == str(query)
    assert 0.5 <= first["confidence"] <= 1
    code, out, _ = nearkin("classify", index, query, "-k", 1)
    assert (code, "kiwi" in out) == (0, True)
    code, out, _ = nearkin("classify", index, query, "--min-confidence", "1.1")
    assert "none of these" in out
    code, out, _ = nearkin("classify", index, query, "--min-confidence", "1.1", "--json")
    assert json.loads(out)[0]["label"] is None
    code, out, _ = nearkin("classify", index, query, "--where", "label=rote Ente", "--min-confidence", 0, "--json")
    assert json.loads(out)[0]["label"] == "rote Ente"
    code, _, err = nearkin("classify", index)
    assert (code, "Missing argument" in err) == (2, True)
    code, _, err = nearkin("classify", index, photos / "none.png")
    assert (code, "there is no file" in err) == (3, True)


def test_mistakes_say_what_to_do(nearkin, trained, index, photos, tmp_path):
    query = photos / "kiwi" / "Bild 3 ä.png"
    for words, exit_code, said in (
        ([], 2, "give an image to look for"),
        ([photos / "none.png"], 3, "there is no file"),
        ([query, "--where", "lable=kiwi"], 2, "did you mean 'label'"),
        ([query, "--where", "year>2020"], 2, "write FIELD=VALUE"),
        ([query, "--like", "999"], 3, "there is no item 999"),
        ([query, "--sheet", "sheet.doc"], 2, "must end in .png"),
        ([query, "-k", "0"], 2, "k must be a whole number of at least 1"),
        (["--like", "3", "--crop", "0,0,1,1"], 2, "a part of one image"),
    ):
        code, _, err = nearkin("search", index, *words)
        assert (code, said in " ".join(err.split())) == (exit_code, True), (words, err)
    shutil.move(trained, tmp_path / "moved")
    code, _, err = nearkin("search", index, query)
    assert code == 3
    assert "--run RUN" in err
    assert nearkin("search", index, query, "--run", tmp_path / "moved")[0] == 0
