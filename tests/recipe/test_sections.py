from __future__ import annotations

import dataclasses

import pytest

from nearkin.evaluation.scores import is_score
from nearkin.recipe import sections
from nearkin.recipe.sections import PartSection, ProtocolSection

SECTIONS = [each for each in vars(sections).values() if dataclasses.is_dataclass(each)]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_is_frozen_and_whole_without_a_word(section):
    made = section("vcpa") if section is PartSection else section()
    assert made == dataclasses.replace(made)
    first = dataclasses.fields(made)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, first, None)


def test_what_is_measured_follows_the_keys_each_score_once():
    assert ProtocolSection().measured == ("R@1", "R@2", "R@4", "R@8", "P@R", "MAP@R", "nDCG@8")
    every = ProtocolSection(
        recall_at=(1,),
        precision_at=(2,),
        map_at=(3,),
        ndcg_at=(4,),
        covering=True,
        clustering=True,
        scores=("MRR@5", "R@1"),
    ).measured
    places = ("R@1", "P@R", "MAP@R", "P@2", "MAP@3", "nDCG@4")
    assert every == (*places, "covering_radius", "inter_class_distance", "NMI", "F1", "MRR@5")
    assert all(map(is_score, every))
