from __future__ import annotations

import json

import pytest

from nearkin.studies import catalogue


def test_without_a_planner_all_are_listed_with_their_commands(nearkin):
    code, out, err = nearkin("study", "--json")
    assert code == 0, err
    listed = {each["name"]: each for each in json.loads(out)}
    assert set(listed) == set(catalogue())
    assert listed["compare"]["command"] == "nearkin compare"
    assert listed["vary"]["options"] == {"key": "required", "values": "required"}
    assert all(each["summary"].endswith(".") for each in listed.values())


def test_the_list_of_rows_runs_nothing(nearkin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["study", "vary", "glyphs/demo", "--set", "key=training.batch_size", "--set", "values=64,128", "--list"]
    code, out, err = nearkin(*command)
    assert code == 0, err
    assert "batch_size-64" in out
    assert [row["name"] for row in json.loads(nearkin(*command, "--json")[1])] == ["batch_size-64", "batch_size-128"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["varry"], "did you mean 'vary'"),
        (["tune", "glyphs/demo"], "a command of its own, nearkin tune"),
        (["vary", "glyphs/demo", "--set", "key=training.epochs"], "vary needs --set values="),
        (["vary", "glyphs/demo", "--set", "keys=training.epochs"], "did you mean 'key'"),
        (["vary", "glyphs/demo", "--set", "seeds=3"], "vary has no option 'seeds'"),
    ],
)
def test_mistakes_get_one_clear_line(nearkin, arguments, said):
    code, _, err = nearkin("study", *arguments)
    assert code == 2
    assert said in " ".join(err.split())
