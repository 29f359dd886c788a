"""``mlrc.json`` in types: files of other versions are read, and what is written has the keys it always had."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from nearkin.errors import DataError
from nearkin.evaluation.statistics import Statistic
from nearkin.runs.scores import ENSEMBLE_FILE, Combinations, EnsembleScores

ASSETS = Path(__file__).parents[1] / "assets" / "records"
BEFORE = json.loads((ASSETS / ENSEMBLE_FILE).read_text())
"""Two folds, two repeats; written before these scores had types."""


def test_a_file_is_written_as_it_was_read():
    result = EnsembleScores.read(ASSETS)
    assert json.loads(json.dumps(dict(result))) == BEFORE
    assert EnsembleScores.from_record(result.as_record()) == result


def test_parts_have_types():
    result = EnsembleScores.read(ASSETS)
    assert (result.conditions.objective, result.folds, result.seeds) == ("proxy_anchor", 2, [0, 1, 2, 3])
    assert result.separate["R@1"].values == tuple(BEFORE["separate"]["R@1"]["values"])
    assert result.concatenated["MAP@R"].interval == tuple(BEFORE["concatenated"]["MAP@R"]["interval"])
    assert [(model.repeat, model.fold) for model in result.models] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert result.combinations.scored == 4


def test_one_repeat_says_that_it_has_no_interval():
    alone = {"R@1": Statistic(0.5, None, (0.5,))}
    result = dataclasses.replace(EnsembleScores.read(ASSETS), separate=alone, concatenated=alone)
    assert result["separate"]["R@1"] == {"mean": 0.5, "spread": None, "values": [0.5], "interval": None}
    assert EnsembleScores.from_record(result.as_record()) == result


def test_files_of_other_versions_are_read():
    later = json.loads(json.dumps(BEFORE)) | {"carbon": 3}
    later["models"][0]["carbon"] = later["combinations"]["carbon"] = 1
    assert EnsembleScores.from_record(later) == EnsembleScores.read(ASSETS)
    recent = ("combinations", "models", "training_conditions", "written", "hardware")
    early = {key: value for key, value in BEFORE.items() if key not in recent}
    for part in ("separate", "concatenated"):
        early[part] = {"R@1": {"mean": 0.5, "spread": None}}
    result = EnsembleScores.from_record(early)
    assert (result.combinations, result.models, result.conditions.hardware) == (Combinations(), [], "")
    assert result.separate["R@1"] == Statistic(0.5)


def test_a_folder_without_the_file_has_none_and_a_damaged_one_says_what_to_do(tmp_path):
    assert EnsembleScores.read(tmp_path) is None
    for text in ("{", "[]", "{}"):
        (tmp_path / ENSEMBLE_FILE).write_text(text)
        with pytest.raises(DataError, match=r"mlrc\.json cannot be read .*nearkin mlrc writes it again"):
            EnsembleScores.read(tmp_path)
