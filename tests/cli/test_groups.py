"""The commands duplicates and cluster, with a run that was trained."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from PIL import Image, ImageOps

from nearkin.index import Index


@pytest.fixture
def index(nearkin, trained, photos, tmp_path):
    """Photos, one of them stored again smaller and as JPEG, and mirrored, which is another picture."""
    rough = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    image = Image.fromarray(rough).resize((120, 120), Image.Resampling.BICUBIC)
    image.save(photos / "kiwi" / "once.png")
    image.resize((60, 60)).save(photos / "kiwi" / "again.jpg", quality=80)
    ImageOps.mirror(image).save(photos / "kiwi" / "mirrored.png")
    code, _, err = nearkin("index", trained, photos, "-o", tmp_path / "photos.index")
    assert code == 0, err
    return tmp_path / "photos.index"


def test_the_same_picture(nearkin, index, photos, tmp_path):
    code, out, err = nearkin("duplicates", index, "--json", "--sheet", tmp_path / "same.png")
    assert code == 0, err
    told = json.loads(out)
    assert told["question"] == "same picture"
    kiwis = [group for group in told["groups"] if any(item["path"].endswith("again.jpg") for item in group)]
    assert [{item["path"] for item in group} for group in kiwis] == [
        {str(photos / "kiwi" / "once.png"), str(photos / "kiwi" / "again.jpg")}
    ]
    assert (tmp_path / "same.png").stat().st_size > 1000
    code, out, _ = nearkin("duplicates", index)
    assert "The same picture: " in out
    assert "again.jpg" in out


def test_near_is_said_to_be_another_question(nearkin, index):
    code, out, err = nearkin("duplicates", index, "--near", "--min-score", "-1.1")
    assert code == 0, err
    assert "Near to the encoder" in out
    assert "1 groups, 51 images in all" in out
    assert "… and 31 more" in out
    code, out, _ = nearkin("duplicates", index, "--near", "--min-confidence", 1.5, "--json")
    assert json.loads(out) == {"question": "near", "groups": [], "blank": []}


def test_cluster(nearkin, index, tmp_path):
    code, out, err = nearkin("cluster", index, "-n", 4, "-o", tmp_path / "clusters", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert len(told["ids"]) == 4
    assert 0 < told["purity"] <= 1
    assert sorted(path.name for path in (tmp_path / "clusters").iterdir()) == [
        *(f"cluster-{number}.png" for number in range(1, 5)),
        "clusters.csv",
    ]
    with open(tmp_path / "clusters" / "clusters.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(Index.open(index)) == 51
    assert [int(row["id"]) for row in rows if row["cluster"] == "1"] == told["ids"][0]
    code, out, err = nearkin("cluster", index)
    assert code == 0, err
    assert "chosen by a silhouette of" in out
    assert "Against the labels: purity" in out


def test_mistakes_say_what_to_do(nearkin, index, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for words, exit_code, said in (
        (["duplicates", index, "--near", "--same-picture"], 2, "two questions"),
        (["duplicates", index, "--near", "--bits", 3], 2, "--bits goes with the first"),
        (["duplicates", index, "--min-score", 0.9], 2, "go with --near"),
        (["duplicates", index, "--bits", 40], 2, "0 to 16 of 64 bits"),
        (["duplicates", index, "--sheet", "a.doc"], 2, "must end in .png"),
        (["duplicates", index, "--where", "lable=kiwi"], 2, "did you mean 'label'"),
        (["duplicates", tmp_path / "photo.index"], 3, "did you mean"),
        (["cluster", index, "-n", 52], 2, "from 1 to the number of items, 51"),
        (["cluster", index, "-o", tmp_path / "full"], 2, "give a new folder"),
        (["cluster", index, "--where", "label=none"], 3, "too few"),
    ):
        code, _, err = nearkin(*words)
        assert (code, said in " ".join(err.split())) == (exit_code, True), (words, err)
