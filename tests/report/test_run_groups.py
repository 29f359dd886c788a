from __future__ import annotations

import json

import pytest

from nearkin.errors import DataError
from nearkin.report.run_groups import gather_runs


def test_a_copy_of_a_run_does_not_count_twice(write_run):
    first, second = write_run("a", {"R@1": 0.5}), write_run("b", {"R@1": 0.7})
    gathered = gather_runs([first, second, first])
    assert [len(group.runs) for group in gathered.groups] == [1]
    assert len(gathered.left_out) == 1
    assert str(second) in gathered.left_out[0]


def test_a_study_stands_for_its_runs_under_its_own_titles(write_run, tmp_path):
    for row, loss in (("z_first", "proxy_anchor"), ("a_second", "vcpa")):
        for seed in (0, 1):
            write_run(f"study/{row}/seed-{seed}", {"R@1": 0.5}, seed=seed, overrides=[f"objective.name={loss}"])
    rows = [{"name": "z_first", "title": "Proxy-Anchor"}, {"name": "a_second", "title": "VCPA"}]
    (tmp_path / "study" / "comparison.json").write_text(json.dumps({"rows": rows}))
    groups = gather_runs([tmp_path / "study"]).groups
    found = [(group.title, [run.recipe.training.seed for run in group.runs]) for group in groups]
    assert found == [("Proxy-Anchor", [0, 1]), ("VCPA", [0, 1])]
    with pytest.raises(DataError, match="neither a run folder nor a study"):
        gather_runs([tmp_path / "study" / "z_first" / "seed-0" / "checkpoints"])


def test_runs_that_differ_in_more_than_the_seed_are_called_by_what_differs(write_run):
    runs = [write_run(f"seed {seed}", {"R@1": 0.5}, seed=seed) for seed in (1, 0)]
    runs.append(write_run("other", {"R@1": 0.5}, overrides=["objective.alpha=16"]))
    groups = gather_runs(runs).groups
    assert [group.title for group in groups] == ["proxy_anchor (alpha=default)", "proxy_anchor (alpha=16.0)"]
    assert [run.folder.path.name for run in groups[0].runs] == ["seed 0", "seed 1"]


def test_runs_on_other_data_stand_apart(write_run):
    runs = [write_run(source, {"R@1": 0.5}, overrides=[f"data.source={source}"]) for source in ("glyphs", "cub")]
    gathered = gather_runs(runs)
    assert [[group.data for group in groups] for groups in gathered.by_data] == [["glyphs"], ["cub"]]
    assert gathered.data == "glyphs, cub"


def test_scores_are_those_of_the_finished_runs(write_run):
    done, begun = write_run("done", {"R@1": 0.5}), write_run("begun", {"R@1": 0.7}, seed=1)
    (begun / "scores.json").unlink()
    (group,) = gather_runs([done, begun]).groups
    assert (len(group.runs), [scores.test for scores in group.scores]) == (2, [{"R@1": 0.5}])


def test_a_broken_record_of_a_study_says_how_to_write_it_anew(write_run, tmp_path):
    write_run("study/a/seed-0", {"R@1": 0.5})
    (tmp_path / "study" / "comparison.json").write_text('{"rows": [{}]}')
    with pytest.raises(DataError, match=r"comparison\.json cannot be read.*Run nearkin compare again"):
        gather_runs([tmp_path / "study"])
