from __future__ import annotations

import json
from pathlib import Path

from nearkin.recipe import Recipe
from nearkin.recipe.identity import fingerprint
from nearkin.runs.default_folders import data_name, default_folder
from nearkin.training.recipes import load_recipe


def test_the_name_says_data_loss_and_method_and_ends_with_the_hash(photos):
    assert default_folder(Recipe()) == Path(f"runs/glyphs-proxy_anchor-{fingerprint(Recipe())}")
    changes = ("objective.name=contrastive", "method.name=ccp", f"data.source={json.dumps(str(photos))}")
    ccp = load_recipe({}, changes)
    assert default_folder(ccp).name == f"own photos-contrastive-ccp-{fingerprint(ccp)}"
    assert data_name(load_recipe({}, ["data.source=lists/birds.csv"])) == "birds"
    assert data_name(load_recipe({}, ["data.source=/"])) == "data"
