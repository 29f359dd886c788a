from __future__ import annotations

from nearkin.studies import catalogue
from nearkin.studies.listing import list_planners, takes_recipe


def test_every_planner_has_a_command_and_only_those_of_one_recipe_share_one():
    listed = {each["name"]: each for each in list_planners().records}
    assert set(listed) == set(catalogue())
    for name, planner in catalogue().items():
        shared = "nearkin study " if takes_recipe(planner) else "nearkin "
        assert listed[name]["command"] == shared + name
    assert takes_recipe(catalogue()["vary"])
    assert not takes_recipe(catalogue()["compare"])


def test_options_are_those_that_set_gives():
    listed = {each["name"]: each for each in list_planners().records}
    assert listed["vary"]["options"] == {"key": "required", "values": "required"}
    assert listed["compare"]["options"] == {}
    assert all(each["summary"].endswith(".") for each in listed.values())
