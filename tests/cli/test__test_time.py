"""Switches of what is done with a trained encoder, on the command line."""

from __future__ import annotations

import json

import pytest


def test_evaluate_says_what_was_done_at_test_time(nearkin, trained, tmp_path):
    code, out, err = nearkin("evaluate", trained, "--with", trained, "--flip", "--json")
    assert code == 0, err
    assert json.loads(out)["test_time"] == {"flip": True, "with": [str(trained)]}
    code, out, err = nearkin("evaluate", trained, "--rerank", 5)
    assert code == 0, err
    assert "k1 5, k2 6, weight 0.3 (transductive)" in " ".join(out.split())
    code, _, err = nearkin("evaluate", "--backbone", "small", "--data", tmp_path, "--rerank", 5)
    assert (code, "go with a run" in err) == (2, True)


def test_an_index_keeps_what_was_asked_of_its_encoder(nearkin, trained, photos, tmp_path):
    index, query = tmp_path / "changed.index", photos / "kiwi" / "Bild 3 ä.png"
    switches = ("--flip", "--eval-size", 40, "--with", trained)
    code, _, err = nearkin("index", trained, photos, "-o", index, *switches)
    assert code == 0, err
    code, out, _ = nearkin("index", "status", index, "--json")
    kept = {"flip": True, "eval_size": 40, "also": [str(trained)]}
    assert json.loads(out)["model_options"] == kept
    _, out, _ = nearkin("index", "status", index)
    assert "flip True, eval_size 40" in " ".join(out.split())
    code, _, err = nearkin("index", trained, photos, "-o", index)
    assert (code, "another encoder" in err, "flip True" in " ".join(err.split())) == (3, True, True)
    code, out, err = nearkin("index", trained, photos, "-o", index, *switches, "--json")
    assert json.loads(out)["known"] == 48, err
    for how in ((), ("--rerank", 5), ("--device", "cpu"), ("--run", trained)):
        code, out, err = nearkin("search", index, query, "-k", 48, *how, "--json")
        assert code == 0, err
        (hits,) = [each["hits"] for each in json.loads(out)]
        assert {hit["path"]: hit["score"] for hit in hits}[str(query)] == pytest.approx(1, abs=1e-5)
        assert len(hits) == 48
