from __future__ import annotations

import hashlib
import json
from pathlib import Path

from nearkin.recipe import Recipe
from nearkin.recipe.identity import fingerprint
from nearkin.runs.default_folders import (
    data_name,
    default_folder,
    found_again,
    holds_run_of,
    holds_seeds_of,
    usual_folder,
)
from nearkin.runs.folder import RunFolder
from nearkin.training.recipes import load_recipe


def changed(*overrides):
    return load_recipe({}, overrides)


def test_the_name_says_data_loss_and_method_and_ends_with_the_hash(photos):
    assert usual_folder(Recipe()) == Path(f"runs/glyphs-proxy_anchor-{fingerprint(Recipe())}")
    ccp = changed("objective.name=contrastive", "method.name=ccp", f"data.source={json.dumps(str(photos))}")
    assert usual_folder(ccp).name == f"own photos-contrastive-ccp-{fingerprint(ccp)}"
    assert data_name(changed("data.source=lists/birds.csv")) == "birds"
    assert data_name(changed("data.source=/")) == "data"


def old_hash(recipe):
    """As earlier versions made it: of everything in the recipe."""
    return hashlib.sha256(json.dumps(recipe.as_mapping(), sort_keys=True).encode()).hexdigest()[:8]


def test_the_folder_of_an_earlier_version_is_found_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with_device = changed("training.device=cpu")
    old = Path("runs") / f"glyphs-proxy_anchor-{old_hash(with_device)}"
    RunFolder(old).begin(with_device)
    RunFolder(old.with_name("glyphs-proxy_anchor-00000000")).begin(changed("training.seed=4"))
    assert default_folder(Recipe()) == old
    assert default_folder(changed("training.seed=5")) == usual_folder(changed("training.seed=5"))


def test_only_a_hash_may_differ_and_the_usual_folder_comes_first(tmp_path):
    usual = tmp_path / "a[1]-12345678"
    for name in ("a[1]-notes", "a1-00000000", "a[1]-0000000", "b-00000000"):
        (tmp_path / name).mkdir()
    assert found_again(usual, lambda folder: True) == usual
    (tmp_path / "a[1]-00000000").mkdir()
    assert found_again(usual, lambda folder: True) == tmp_path / "a[1]-00000000"
    assert found_again(usual, lambda folder: False) == usual
    usual.mkdir()
    assert found_again(usual, lambda folder: True) == usual


def test_a_folder_holds_what_was_decided_by_the_same_recipe(tmp_path):
    RunFolder(tmp_path / "row" / "seed-7").begin(changed("training.seed=7", "training.device=cpu"))
    run = tmp_path / "row" / "seed-7"
    assert holds_run_of(run, changed("training.seed=7"))
    assert not holds_run_of(run, Recipe())
    assert holds_seeds_of(tmp_path, Recipe())
    assert not holds_seeds_of(tmp_path, changed("training.epochs=3"))
    (run / "recipe.yaml").write_text("training: {epoch: 1}")
    assert not holds_run_of(run, changed("training.seed=7"))
    assert not holds_seeds_of(tmp_path, Recipe())
    assert not holds_run_of(tmp_path / "nothing", Recipe())
    assert not holds_seeds_of(tmp_path / "nothing", Recipe())
