"""Published values beside a recipe: those of the same measurement, and no others."""

from __future__ import annotations

import pytest

from nearkin.published.matching import published_beside, published_names
from nearkin.recipe import Recipe

CUB = {
    "data": {"source": "cub"},
    "encoder": {"backbone": "resnet50", "dim": 512},
    "objective": {"name": "proxy_anchor"},
}


@pytest.mark.parametrize(
    "mapping, names",
    [
        ({"objective": {"name": "mpa", "proxies_per_class": 10}}, ["MPA"]),
        ({"objective": {"name": "mpa", "proxies_per_class": 4}}, []),
        ({"objective": {"name": "mpa", "proxies_per_class": 2}, "data": {"source": "sop"}}, ["MPA"]),
        ({"objective": {"name": "contrastive"}, "method": {"name": "ccp"}}, ["C2-CCP-L", "C2-CCP"]),
        ({"objective": {"name": "contrastive"}, "method": {"name": "ccp", "proxies_per_class": 1}}, []),
        ({"objective": {"name": "contrastive"}, "method": {"name": "ccp", "anchors": "samples"}}, []),
        (
            {"objective": {"name": "margin"}, "method": {"name": "profs", "hard_negative_classes": True}},
            ["M-PROFS-HNCM"],
        ),
        ({"objective": {"name": "arcface"}}, []),
    ],
    ids=str,
)
def test_what_papers_call_a_recipe(mapping, names):
    assert published_names(Recipe.from_mapping({"data": {"source": "cub"}} | mapping)) == names


def test_figures_measured_with_a_part_of_the_images_do_not_stand_beside_runs_with_all():
    recipe = Recipe.load("cub/proxy_anchor")
    tables = {each.table for each in published_beside(recipe, "conventional")}
    assert {"IV", "1"} <= tables
    assert not any("10%" in table for table in tables)


@pytest.mark.parametrize(
    "change",
    [
        "protocol.train_share=0.1",
        "protocol.label_noise=0.1",
        "data.image_size=448",
        "protocol.flip=true",
        "protocol.test_size=288",
        "protocol.test_scale=1.15",
        "encoder.last_stride=1",
        "data.source=glyphs",
        "objective.weighting={name: isa}",
    ],
)
def test_nothing_stands_beside_what_was_measured_otherwise(change):
    assert published_beside(Recipe.from_mapping(CUB), "conventional")
    assert not published_beside(Recipe.from_mapping(CUB, [change]), "conventional")


def test_lines_of_the_same_backbone_come_first_with_values_as_printed_and_as_fractions():
    first, *others = published_beside(Recipe.from_mapping(CUB), "conventional")
    # CCP's table IV: Proxy-Anchor with a ResNet-50 on CUB.
    assert first.what == "published: CCP, table IV (resnet50, 512-d)"
    assert (first.texts["R@1"], first.scores["R@1"].mean) == ("69.7", pytest.approx(0.697))
    own = [each.same_backbone for each in (first, *others)]
    assert own == sorted(own, reverse=True)
    assert False in own
