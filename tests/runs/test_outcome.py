"""``study.json``: how a run of a study ended."""

from __future__ import annotations

import json

import pytest

from nearkin.errors import DataError, MissingExtraError, TrainingError
from nearkin.recipe import Recipe
from nearkin.runs.folder import RunFolder
from nearkin.runs.outcome import FILE, Outcome


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


@pytest.mark.parametrize(
    ("code", "status", "exit_code"),
    [
        (DataError.exit_code, "skipped", 3),
        (MissingExtraError.exit_code, "skipped", 4),
        (TrainingError.exit_code, "failed", 5),
        (-9, "failed", 1),
    ],
)
def test_what_is_written_is_read_back(folder, code, status, exit_code):
    ended = Outcome.after("a", 7, folder, "for some reason", code, parallel_runs=3)
    assert ended == Outcome("a", 7, status, "for some reason", exit_code, 3)
    ended.write(folder)
    assert Outcome.read("a", 7, folder) == ended
    kept = json.loads((folder.path / FILE).read_text())
    assert list(kept) == ["row", "seed", "status", "reason", "exit_code", "parallel_runs"]


def test_scores_count_for_more_than_the_exit(folder):
    folder.begin(Recipe())
    folder.write_scores({})
    ended = Outcome.after("a", 0, folder, "killed by signal 9", -9, parallel_runs=2)
    assert ended == Outcome("a", 0, "finished", parallel_runs=2)
    Outcome("a", 0, "failed", "out of memory", 1, 4).write(folder)
    assert Outcome.read("a", 0, folder) == Outcome("a", 0, "finished", parallel_runs=4)


def test_without_a_file_the_folder_says_how_far_it_has_come(folder):
    assert Outcome.read("a", 0, folder) == Outcome("a", 0, "unfinished", "not run yet")
    folder.begin(Recipe())
    begun = Outcome("a", 0, "unfinished", "begun, not finished")
    assert Outcome.read("a", 0, folder) == begun
    Outcome("a", 0, "finished").write(folder)
    assert Outcome.read("a", 0, folder) == begun, "its scores are gone"


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null"])
def test_a_damaged_file_is_as_good_as_none(folder, text):
    folder.begin(Recipe())
    (folder.path / FILE).write_text(text)
    assert Outcome.read("a", 0, folder).reason == "begun, not finished"


def test_files_of_other_versions_and_of_folders_that_were_renamed_are_read(folder):
    folder.begin(Recipe())
    (folder.path / FILE).write_text('{"row": "fold-0", "status": "skipped", "reason": "no data", "since": "tomorrow"}')
    assert Outcome.read("photos/fold-0", 4, folder) == Outcome("photos/fold-0", 4, "skipped", "no data")
    folder.write_scores({})
    (folder.path / FILE).write_text('{"parallel_runs": 4, "since": "tomorrow"}')
    assert Outcome.read("a", 0, folder).parallel_runs == 4
