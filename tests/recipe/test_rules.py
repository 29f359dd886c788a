from __future__ import annotations

import pytest

from nearkin.errors import RecipeError
from nearkin.recipe import Recipe


@pytest.mark.parametrize(
    "overrides",
    [
        ["protocol.select_by=nDCG@8"],
        ["protocol.select_by=MRR@10", "protocol.scores=[MRR@10]"],
        ["protocol.select_by=MRR@10", "protocol.scores=MRR@10"],
        ["protocol.select_by=inter_class_distance", "protocol.covering=true"],
    ],
)
def test_any_score_of_every_evaluation_may_choose_the_epoch(overrides):
    assert Recipe.from_mapping({}, overrides).protocol.select_by in overrides[0]


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["protocol.select_by=MRR@10"], "must be a score that is measured at every evaluation"),
        (["protocol.select_by=R@3"], "did you mean 'R@"),
        # Only at the end, so there is nothing to choose by.
        (["protocol.select_by=NMI", "protocol.clustering=true"], "measured at every evaluation"),
        # The largest would be chosen, which is the worst.
        (["protocol.select_by=covering_radius", "protocol.covering=true"], "of which more is better"),
        (["protocol.scores=[R@1, MMR@10]"], r"protocol\.scores: unknown score 'MMR@10': did you mean 'MRR@k'"),
        (["protocol.recall_at=[1, 0]"], r"protocol\.recall_at must be at least 1, got 0"),
    ],
)
def test_a_score_that_cannot_be_is_refused_with_its_key(overrides, message):
    with pytest.raises(RecipeError, match=message):
        Recipe.from_mapping({}, overrides)


@pytest.mark.parametrize("value", [-0.1, 1.0])
def test_a_mean_that_never_forgets_or_turns_negative_is_refused(value):
    with pytest.raises(RecipeError, match=rf"training\.beta2 must be at least 0 and below 1, got {value}"):
        Recipe.from_mapping({}, [f"training.beta2={value}"])


@pytest.mark.parametrize(
    "key", ["momentum", "head_multiplier", "proxy_multiplier", "clip_at", "checkpoint_minutes", "learning_rate"]
)
def test_a_negative_value_that_would_train_the_wrong_way_is_refused(key):
    assert getattr(Recipe.from_mapping({}, [f"training.{key}=0"]).training, key) == 0
    with pytest.raises(RecipeError, match=rf"^training\.{key} must be at least 0, got -0\.5$"):
        Recipe.from_mapping({}, [f"training.{key}=-0.5"])
