"""Switches of what is done with a trained encoder, on the command line."""

from __future__ import annotations

import json

import pytest

from nearkin.cli._test_time import whitening_of
from nearkin.errors import RecipeError


def test_a_dimension_asks_for_whitening_and_shrinkage_does_not():
    assert whitening_of(False, None, 0.0) is False
    assert whitening_of(True, None, 0.1) is True
    assert whitening_of(False, 64, 0.1) == whitening_of(True, 64, 0.0) == 64
    with pytest.raises(RecipeError, match="--shrinkage goes with --whiten"):
        whitening_of(False, None, 0.1)


def test_evaluate_says_what_was_done_at_test_time(nearkin, trained, tmp_path):
    code, out, err = nearkin("evaluate", trained, "--with", trained, "--whiten-dim", 4, "--shrinkage", 0.1, "--json")
    assert code == 0, err
    given = {"dim": 4, "shrinkage": 0.1, "training_images": 32}
    assert json.loads(out)["test_time"] == {"with": [str(trained)], "whiten": given}
    code, out, _ = nearkin("evaluate", trained, "--expand", 3, "--alpha", 1, "--json")
    told = {"k": 3, "alpha": 1.0, "transductive": True}
    assert json.loads(out)["test_time"] == {"expand": told}
    code, out, err = nearkin("evaluate", trained, "--rerank", 5)
    assert code == 0, err
    assert "k1 5, k2 6, weight 0.3 (transductive)" in " ".join(out.split())
    for wrong, said in (
        (["--expand", 3, "--rerank", 5], "one of --expand and --rerank"),
        (["--shrinkage", 0.1], "--shrinkage goes with --whiten"),
        (["--whiten-dim", 100], "between 1 and"),
        (["--expand", 3, "--alpha", -1], "alpha 0, got 3 and -1"),
    ):
        code, _, err = nearkin("evaluate", trained, *wrong)
        assert (code, said in " ".join(err.split())) == (2, True), err
    code, _, err = nearkin("evaluate", "--backbone", "small", "--data", tmp_path, "--whiten")
    assert (code, "go with a run" in err) == (2, True)


def test_an_index_keeps_what_was_asked_of_its_encoder(nearkin, trained, photos, tmp_path):
    index, query = tmp_path / "changed.index", photos / "kiwi" / "Bild 3 ä.png"
    switches = ("--flip", "--test-size", 40, "--with", trained, "--whiten", "--shrinkage", 0.2)
    code, _, err = nearkin("index", trained, photos, "-o", index, *switches)
    assert code == 0, err
    code, out, _ = nearkin("index", "status", index, "--json")
    kept = {"flip": True, "test_size": 40, "also": [str(trained)], "whiten": True, "shrinkage": 0.2}
    assert json.loads(out)["model_options"] == kept
    _, out, _ = nearkin("index", "status", index)
    assert "flip True, test_size 40" in " ".join(out.split())
    code, _, err = nearkin("index", trained, photos, "-o", index)
    assert (code, "another encoder" in err, "flip True" in " ".join(err.split())) == (3, True, True)
    code, out, err = nearkin("index", trained, photos, "-o", index, *switches, "--json")
    assert json.loads(out)["known"] == 48, err
    for how in ((), ("--expand", 3), ("--rerank", 5), ("--device", "cpu"), ("--run", trained)):
        code, out, err = nearkin("search", index, query, "-k", 48, *how, "--json")
        assert code == 0, err
        (hits,) = [each["hits"] for each in json.loads(out)]
        assert {hit["path"]: hit["score"] for hit in hits}[str(query)] == pytest.approx(1, abs=1e-5)
        assert len(hits) == 48
    code, _, err = nearkin("search", index, query, "--expand", 3, "--rerank", 5)
    assert (code, "one of expand and rerank" in err) == (2, True)
