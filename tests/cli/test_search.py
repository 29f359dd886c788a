"""The commands search, classify, duplicates and cluster, with a trained run."""

from __future__ import annotations

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image, ImageOps

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
    words = ["--where", "label=kiwii", "--where", "label=kiwi", "--where", "label=xyz"]
    code, out, err = nearkin("search", index, query, *words)
    assert (code, "kiwi/Bild" in out) == (0, True)
    notes = "note: no item has the label 'kiwii'; did you mean 'kiwi'?\nnote: no item has the label 'xyz'\n"
    assert err == notes, "existing labels need no note"
    assert nearkin("search", index, query, "--where", "label>=k")[::2] == (0, "")


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
        (["--crop", "10,10,31,10"], "40 pixels wide"),
        (["--crop", "-1,0,20,20"], "-1,0,20,20"),
        (["--crop", "0.5,0,0.6,1"], "within the image"),
        (["--crop", "0,0,0,1"], "within the image"),
        (["--crop", "1,2,3"], "1,2,3"),
        (["--crop", "nan,0,1,1"], "four numbers"),
        ([query, "--crop", "0,0,9,9"], "--crop"),
    ):
        code, _, err = nearkin("search", index, query, *words)
        assert (code, said in " ".join(err.split())) == (2, True), (words, err)


def test_classify(nearkin, index, photos, tmp_path):
    query, other = photos / "kiwi" / "Bild 3 ä.png", photos / "rote Ente" / "Bild 1 ä.png"
    code, out, err = nearkin("classify", index, query, other, "--min-confidence", 0, "--json")
    assert (code, err) == (0, "")
    first, second = json.loads(out)
    assert (first["query"], first["label"], second["label"]) == (str(query), "kiwi", "rote Ente")
    assert first["hits"][0]["path"] == str(query)
    assert 0 <= first["confidence"] <= 1
    code, out, _ = nearkin("classify", index, query, "--min-confidence", 0)
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


def test_without_confidences_it_says_so_and_refuses_a_least_one(nearkin, trained, photos, tmp_path):
    few, query = tmp_path / "few.index", photos / "kiwi" / "Bild 3 ä.png"
    for kind in ("kiwi", "rote Ente"):
        shutil.copytree(photos / kind, tmp_path / "two" / kind)
    code, _, err = nearkin("index", trained, tmp_path / "two", "-o", few)
    assert code == 0, err
    for options in ([], ["--json"]):
        code, out, err = nearkin("classify", few, query, query, *options)
        assert (code, out.count('"label": "kiwi", "confidence": null, "hits"' if options else "kiwi  ")) == (0, 2)
        note = f"note: {few} has no confidences, so every photo gets a label and 'none of these' is impossible"
        assert err == f"{note}: see nearkin index status {few}\n", "once"
    code, _, err = nearkin("search", few, query, query)
    assert (code, err.count(f"{few} has no confidences to tell how sure these hits are: see ")) == (0, 1)
    for command in ("classify", "search"):
        code, out, err = nearkin(command, few, query, "--min-confidence", 0.9)
        assert (code, out) == (2, "")
        assert "has no confidences: it takes 3 labels, got 2: add labelled images of other classes" in err
    assert nearkin("index", trained, photos, "--no-labels", "-o", tmp_path / "plain.index")[0] == 0
    assert nearkin("search", tmp_path / "plain.index", query)[2] == "", "there is no label to be unsure of"


def test_mistakes_say_what_to_do(nearkin, trained, index, photos, tmp_path):
    query = photos / "kiwi" / "Bild 3 ä.png"
    for words, exit_code, said in (
        ([], 2, "IMAGE"),
        ([photos / "none.png"], 3, "there is no file"),
        ([query, "--where", "lable=kiwi"], 2, "did you mean 'label'"),
        ([photos / "kiwi"], 3, f"is a folder: give image files, such as {photos / 'kiwi' / '*.jpg'}"),
        ([query, "--where", "year>2020"], 2, "write FIELD=VALUE"),
        ([query, "--like", "999"], 3, "there is no item 999"),
        ([query, "--sheet", "sheet.doc"], 2, "must end in .png"),
        ([query, "-k", "0"], 2, "k must be"),
        (["--like", "3", "--crop", "0,0,1,1"], 2, "--crop"),
    ):
        code, _, err = nearkin("search", index, *words)
        assert (code, said in " ".join(err.split())) == (exit_code, True), (words, err)
    shutil.move(trained, tmp_path / "moved")
    code, _, err = nearkin("search", index, query)
    assert code == 3
    assert "--run RUN" in err
    assert nearkin("search", index, query, "--run", tmp_path / "moved")[0] == 0


@pytest.fixture
def with_copies(nearkin, trained, photos, tmp_path):
    """Photos, one of them stored again smaller and as JPEG, and mirrored, which is another picture."""
    rough = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    image = Image.fromarray(rough).resize((120, 120), Image.Resampling.BICUBIC)
    image.save(photos / "kiwi" / "once.png")
    image.resize((60, 60)).save(photos / "kiwi" / "again.jpg", quality=80)
    ImageOps.mirror(image).save(photos / "kiwi" / "mirrored.png")
    code, _, err = nearkin("index", trained, photos, "-o", tmp_path / "photos.index")
    assert code == 0, err
    return tmp_path / "photos.index"


def test_the_same_picture(nearkin, with_copies, photos, tmp_path):
    code, out, err = nearkin("duplicates", with_copies, "--json", "--sheet", tmp_path / "same.png")
    assert code == 0, err
    result = json.loads(out)
    assert result["question"] == "same picture"
    kiwis = [group for group in result["groups"] if any(item["path"].endswith("again.jpg") for item in group)]
    assert [{item["path"] for item in group} for group in kiwis] == [
        {str(photos / "kiwi" / "once.png"), str(photos / "kiwi" / "again.jpg")}
    ]
    assert (tmp_path / "same.png").stat().st_size > 1000
    code, out, _ = nearkin("duplicates", with_copies)
    assert "again.jpg" in out


def test_copies_are_one_hit_unless_all_are_asked_for(nearkin, with_copies, photos):
    def hits(*options):
        code, out, err = nearkin("search", with_copies, photos / "kiwi" / "once.png", "-k", 51, "--json", *options)
        assert code == 0, err
        return {hit["path"].rpartition("/")[2]: hit["copies"] for hit in json.loads(out)[0]["hits"]}

    collapsed, all_copies = hits(), hits("--all-copies")
    assert collapsed["once.png"] == 2
    assert "again.jpg" not in collapsed
    assert collapsed["mirrored.png"] == 1
    assert set(all_copies.values()) == {1}
    assert "again.jpg" in all_copies
    assert "copies" in nearkin("search", with_copies, photos / "kiwi" / "once.png")[1]


def test_near_is_said_to_be_another_question(nearkin, with_copies):
    code, out, err = nearkin("duplicates", with_copies, "--near", "--min-score", "-1.1")
    assert code == 0, err
    assert "1 groups, 51 images in all" in out
    assert "… and 31 more" in out
    code, out, _ = nearkin("duplicates", with_copies, "--near", "--min-confidence", 1.5, "--json")
    assert json.loads(out) == {"question": "near", "groups": [], "blank": []}


def test_cluster(nearkin, with_copies, tmp_path):
    code, out, err = nearkin("cluster", with_copies, "-n", 4, "-o", tmp_path / "clusters", "--json")
    assert code == 0, err
    result = json.loads(out)
    assert len(result["ids"]) == 4
    assert 0 < result["purity"] <= 1
    assert sorted(path.name for path in (tmp_path / "clusters").iterdir()) == [
        *(f"cluster-{number}.png" for number in range(1, 5)),
        "clusters.csv",
    ]
    with open(tmp_path / "clusters" / "clusters.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(Index.open(with_copies)) == 51
    assert [int(row["id"]) for row in rows if row["cluster"] == "1"] == result["ids"][0]
    code, out, err = nearkin("cluster", with_copies)
    assert code == 0, err
    assert "silhouette" in out
    assert "purity" in out


def test_mistakes_about_groups_say_what_to_do(nearkin, with_copies, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for words, exit_code, said in (
        (["duplicates", with_copies, "--near", "--bits", 3], 2, "--bits"),
        (["duplicates", with_copies, "--min-score", 0.9], 2, "--near"),
        (["duplicates", with_copies, "--bits", 40], 2, "0 to 16 of 64 bits"),
        (["duplicates", with_copies, "--sheet", "a.doc"], 2, "must end in .png"),
        (["duplicates", with_copies, "--where", "lable=kiwi"], 2, "did you mean 'label'"),
        (["duplicates", tmp_path / "photo.index"], 3, "did you mean"),
        (["cluster", with_copies, "-n", 52], 2, "from 1 to the number of items, 51"),
        (["cluster", with_copies, "-o", tmp_path / "full"], 2, "give a new folder"),
        (["cluster", with_copies, "--where", "label=none"], 3, "too few"),
    ):
        code, _, err = nearkin(*words)
        assert (code, said in " ".join(err.split())) == (exit_code, True), (words, err)
