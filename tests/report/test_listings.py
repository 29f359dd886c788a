from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from nearkin import losses
from nearkin.encoders.architectures import backbones, build_backbone
from nearkin.recipe import Recipe
from nearkin.report import listings
from nearkin.report.listings import Listing
from nearkin.training import methods

FILES = Path(__file__).parents[2] / "benchmarks" / "results"
LISTS = [listings.list_losses, listings.list_methods, listings.list_scores, listings.list_backbones]


@pytest.mark.parametrize("make", LISTS)
def test_every_part_says_what_it_is(make):
    for record in make().records:
        text = record.get("summary", record.get("meaning"))
        assert len(text) > 10, record["name"]


def test_nothing_is_missing():
    assert [each["name"] for each in listings.list_losses().records] == list(losses.catalogue())
    assert [each["name"] for each in listings.list_methods().records] == list(methods.catalogue())
    assert set(backbones()) <= {each["name"] for each in listings.list_backbones().records}


def test_backbones_show_what_was_measured_and_what_was_not():
    listed = {record["name"]: record for record in listings.list_backbones().records}
    for name in backbones():
        parameters = sum(parameter.numel() for parameter in build_on_meta(name).parameters())
        assert listed[name]["million parameters"] == pytest.approx(parameters / 1e6, abs=0.05), name
        assert listed[name]["CPU ms a photo"] > 0
    assert listed["googlenet"]["R@1 on CUB"] == "not measured"
    assert listed["vit_tiny"]["weights"] == "hub:timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    assert listed["vit_tiny"]["licence"] == "Apache-2.0"
    assert listed["timm:<model>"]["million parameters"] == "not measured"


def build_on_meta(name):
    with torch.device("meta"):
        return build_backbone(name)


@pytest.mark.skipif(not FILES.is_dir(), reason="a wheel has no result files")
def test_figures_of_backbones_are_those_of_the_newest_file():
    newest = {}
    for file in sorted(FILES.glob("*-backbones*.json")):
        for name, figures in json.loads(file.read_text())["backbones"].items():
            newest.setdefault(name, {}).update(figures)
    listed = {record["name"]: record for record in listings.list_backbones().records if ":" not in record["name"]}
    assert newest.keys() == listed.keys()
    for name, record in listed.items():
        assert record["CPU ms a photo"] == float(f"{newest[name]['cpu_ms_a_photo']:.3g}"), "run: make results"
        for key, part in (("R@1 on CUB", "cub"), ("R@1 on the held-out half", "held_out_half")):
            measured = newest[name].get(part)
            assert record[key] == (round(100 * measured["R@1"], 1) if measured else "not measured"), name


def test_every_key_of_a_recipe_is_listed_with_its_default():
    listed = {each["name"]: json.loads(each["default"]) for each in listings.list_keys().records}
    sections = Recipe().as_mapping()
    assert listed == {f"{name}.{key}": value for name, keys in sections.items() for key, value in keys.items()}


def test_a_page_has_names_and_options_as_code():
    records = ({"name": "a|b", "options": {"x": 1}, "summary": None}, {"name": "c", "options": {}, "summary": "text"})
    page = Listing("Things", "Of all kinds.", ("name", "summary", "options"), records).page()
    assert page.startswith("# Things\n\nOf all kinds. ")
    assert r"| `a\|b` | – | `x=1` |" in page
    assert "| `c` | text | – |" in page


def test_benchmarks_say_whether_they_are_here(tmp_path):
    listed = {each["name"]: each for each in listings.list_datasets(tmp_path).records}
    assert listed["glyphs"]["here"] == "comes with nearkin"
    assert (listed["glyphs"]["expected in"], listed["glyphs"]["to get it"]) == (None, None)
    assert (listed["cub"]["found"], listed["cub"]["here"]) == (None, None)
    assert listed["cub"]["expected in"] == str(tmp_path / "CUB_200_2011")
    assert listed["cub"]["to get it"].startswith("nearkin datasets --download cub")
    assert "nearkin datasets --unpack" in listed["sop"]["to get it"]
    (tmp_path / "CUB_200_2011").mkdir()
    broken = {each["name"]: each for each in listings.list_datasets(tmp_path).records}["cub"]
    assert broken["here"] == f"{tmp_path / 'CUB_200_2011'}, but {broken['problem']}"
    assert broken["to get it"] is not None
