from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.main import get_command

from nearkin.cli import app
from nearkin.cli._app import (
    COMPARE,
    ENCODER,
    LOOK_UP,
    SEARCH,
    announcer,
    error_line,
    options,
    print_listing,
    progress_console,
)
from nearkin.errors import RecipeError
from nearkin.report.listings import Listing
from nearkin.runs.data import DataReport, Part

LISTING = Listing("Things", "Of a kind.", ("name",), ({"name": "a", "hidden": 1},))
REPORT = DataReport("birds", 4, 2, ("owl", 2), ("owl", 2), 0, (Part("training", 2, 4),))


def test_a_list_is_for_people_programs_or_the_documentation(capsys):
    print_listing(LISTING, as_json=True)
    assert json.loads(capsys.readouterr().out) == [{"name": "a", "hidden": 1}]
    print_listing(LISTING, as_json=False, markdown=True)
    assert capsys.readouterr().out == LISTING.page()
    print_listing(LISTING, as_json=False)
    table = capsys.readouterr().out
    assert "Things" in table
    assert "hidden" not in table


def test_every_command_stands_under_a_heading_of_what_a_person_wants():
    panels = {
        name: command.rich_help_panel for name, command in get_command(app).commands.items() if not command.hidden
    }
    assert set(panels.values()) == {ENCODER, SEARCH, COMPARE, LOOK_UP}
    encoder = {"train", "evaluate", "embed", "export"}
    assert {name for name, panel in panels.items() if panel == ENCODER} == encoder
    assert panels["index"] == panels["serve"] == SEARCH


def test_an_error_is_one_line_on_the_error_stream_with_brackets_as_they_are(capsys):
    error_line(f"no [bold] {'word ' * 60}")
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith("error: no [bold] word")


@pytest.mark.parametrize("verbose", [False, True])
def test_progress_is_silent_where_nobody_watches(verbose):
    assert progress_console(verbose).quiet == (not verbose)


def test_the_report_on_the_data_is_said_also_where_progress_is_silent(capsys):
    announcer(Console(quiet=True))(REPORT)
    out, err = capsys.readouterr()
    assert (out, err.startswith("birds: 4 images of 2 classes")) == ("", True)
    announcer(Console(quiet=True), as_json=True)(REPORT)
    assert capsys.readouterr() == ("", ""), "nothing is wrong, and a program reads along"


def test_several_processes_are_for_commands_that_share_work(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    options(SimpleNamespace(invoked_subcommand="evaluate"))
    with pytest.raises(
        RecipeError, match="torchrun is for nearkin train, evaluate, embed: start nearkin losses without it"
    ):
        options(SimpleNamespace(invoked_subcommand="losses"))
