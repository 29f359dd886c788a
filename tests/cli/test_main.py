"""What all commands share: the application, exit codes, and the recipe of a command line."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from typer.main import get_command

from nearkin import cli, ranks
from nearkin.cli._app import announcer, check_processes, progress_console
from nearkin.cli.options import changes_from, recipe_from, split_arguments
from nearkin.errors import DataError, RecipeError, notice
from nearkin.runs.data import DataReport, Part
from nearkin.training.recipe_check import load_recipe

REPORT = DataReport("birds", 4, 2, ("owl", 2), ("owl", 2), 0, (Part("training", 2, 4),))


@pytest.fixture
def stopped(nearkin, monkeypatch):
    """Run a command that ends with an error."""

    def call(error):
        def command():
            raise error

        monkeypatch.setattr(cli, "app", command)
        return nearkin()

    return call


def test_a_pipe_gets_each_line_at_once():
    script = """
import time
from nearkin import cli
cli.app = lambda: (print("first"), time.sleep(60))
cli.main()
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": ""}
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE) as process:
        ready, _, _ = select.select([process.stdout], [], [], 45)
        line = process.stdout.readline() if ready else b""
        process.kill()
        assert line == b"first\n"


def test_an_interrupt_is_one_word_and_the_code_of_the_signal(stopped):
    assert stopped(KeyboardInterrupt()) == (130, "", "interrupted\n")


def test_a_reader_that_has_seen_enough_is_no_error(stopped):
    assert stopped(BrokenPipeError(errno.EPIPE, "Broken pipe")) == (0, "", "")


def test_a_command_that_needs_torch_says_so_without_it(stopped):
    code, out, err = stopped(ModuleNotFoundError("No module named 'torch'", name="torch"))
    assert (code, out) == (4, "")
    assert err.startswith("error: ")
    assert "pip install torch" in err


def test_what_nobody_can_put_right_is_shown_as_it_is(stopped):
    for error in (
        ModuleNotFoundError("no", name="nowhere"),
        OSError(errno.EBADF, "bad"),
        ZeroDivisionError("zero"),
        RuntimeError("no"),
    ):
        with pytest.raises(type(error)) as raised:
            stopped(error)
        assert raised.value is error


def test_a_disk_that_is_full_is_one_line(stopped):
    code, out, err = stopped(OSError(errno.ENOSPC, "No space left on device"))
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert err.startswith("error: ")


def test_memory_that_is_full_is_one_line(stopped):
    code, out, err = stopped(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 392.00 MiB."))
    assert (code, out, err.count("\n")) == (8, "", 1)
    assert err.startswith("error: the GPU's memory is full")


def test_brackets_of_an_error_or_a_notice_are_no_colours(nearkin, stopped, monkeypatch):
    assert stopped(DataError("no [red] here")) == (3, "", "error: no [red] here\n")
    monkeypatch.setattr(cli, "app", lambda: notice("look [red] here"))
    assert nearkin() == (0, "", "note: look [red] here\n")


@pytest.mark.parametrize("error", [DataError("gone"), KeyboardInterrupt()])
def test_of_several_processes_only_the_first_to_fail_speaks(stopped, monkeypatch, error):
    alone = stopped(error)
    monkeypatch.setattr(ranks, "is_first_to_fail", lambda: False)
    assert stopped(error) == alone, "nobody else is asked about"
    monkeypatch.setattr(cli, "is_distributed", lambda: True)
    monkeypatch.setattr(ranks, "joined", lambda: cli.contextlib.nullcontext())
    monkeypatch.setattr(ranks, "is_first", lambda: True)
    assert stopped(error) == (alone[0], "", "")
    monkeypatch.setattr(ranks, "is_first_to_fail", lambda: True)
    assert stopped(error) == alone


@pytest.mark.parametrize("first", [True, False])
def test_only_the_first_of_several_prints(nearkin, monkeypatch, first):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(ranks, "joined", lambda: cli.contextlib.nullcontext())
    monkeypatch.setattr(ranks, "is_first", lambda: first)
    monkeypatch.setattr(cli, "app", lambda: print("done"))
    assert nearkin() == (0, "done\n" if first else "", "")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert nearkin() == (0, "done\n", "")


def test_a_number_of_processes_that_is_none_is_one_line(nearkin, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "x")
    code, out, said = nearkin("list", "losses")
    assert (code, out) == (2, "")
    assert said.startswith("error: WORLD_SIZE must be the number of processes")


@pytest.mark.parametrize(
    ("arguments", "expected", "unexpected"),
    [
        (["train", "--epochs", "2"], "No such option: --epochs; write training.epochs=VALUE instead", ""),
        (["tune", "--learning-rate", "2"], "--learning-rate; write training.learning_rate=VALUE instead", ""),
        (["train", "--bakbone", "x"], "--backbone", "encoder.backbone"),
        (["train", "--zzz"], "No such option: --zzz", "write"),
        (["search", "x", "--epochs", "2"], "No such option: --epochs", "training.epochs"),
        (["list", "loses"], "'WHAT': 'loses' is not one of 'recipes', ", "Value error"),
        (["list", "loses"], "Did you mean 'losses'?", "Value error"),
        (["list", "xyz"], "'xyz' is not one of 'recipes'", "Did you mean"),
        (["train", "--data"], "'--data' requires an argument", "write"),
    ],
)
def test_a_wrong_option_or_choice_gets_a_suggestion(nearkin, monkeypatch, arguments, expected, unexpected):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = nearkin(*arguments)
    assert (code, out, expected in err) == (2, "", True), err
    assert not unexpected or unexpected not in err


def test_there_are_at_most_twenty_commands_each_under_a_heading():
    commands = get_command(cli.app).commands
    assert len(commands) <= 20
    assert all(command.rich_help_panel for command in commands.values())


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
    check_processes(SimpleNamespace(invoked_subcommand="evaluate"))
    with pytest.raises(RecipeError, match="list"):
        check_processes(SimpleNamespace(invoked_subcommand="list"))


def test_options_come_behind_the_changes_that_were_given():
    given = {"data.source": "own photos", "training.epochs": 0, "data.root": Path("/sets"), "training.device": None}
    recipe = load_recipe("glyphs/demo", changes_from(["training.epochs=3", "training.device=cpu"], given))
    assert (recipe.data.source, recipe.data.root) == ("own photos", "/sets")
    assert (recipe.training.epochs, recipe.training.device) == (0, "cpu")


def test_a_name_and_changes_are_told_apart_by_the_sign():
    assert split_arguments(["x.y=1", "glyphs/demo", "a=b=c"], what="recipe") == ("glyphs/demo", ["x.y=1", "a=b=c"])
    assert split_arguments(None, what="recipe") == (None, [])
    with pytest.raises(RecipeError, match="a, b"):
        split_arguments(["a", "k=1", "b"], what="recipe")


def test_a_named_recipe_takes_the_data_and_without_a_name_the_data_choose_one(tmp_path):
    named = recipe_from(["glyphs/demo", "training.seed=4"], "photos", {"training.device": "cpu"})
    assert named == load_recipe("glyphs/demo", ["training.seed=4", "training.device=cpu", "data.source=photos"])
    own = recipe_from(["training.seed=4"], str(tmp_path), {"training.epochs": 2})
    assert (own.data.source, own.training.seed, own.training.epochs) == (str(tmp_path), 4, 2)
    with pytest.raises(RecipeError):
        recipe_from(["training.seed=4"], None, {})


def test_the_chosen_backbone_is_printed_even_without_progress(tmp_path, capsys):
    recipe_from(["training.seed=4"], str(tmp_path), {})
    out, err = capsys.readouterr()
    assert (out, err.startswith("Backbone: ")) == ("", True)
    assert "Preferred, but not here: --backbone vit_tiny" in err
    recipe_from(["encoder.backbone=small", "encoder.weights=null"], str(tmp_path), {})
    assert capsys.readouterr() == ("", ""), "the command names another"
