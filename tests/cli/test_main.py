"""What the command says and returns when something stops it, whichever command it is."""

from __future__ import annotations

import errno

import pytest
import torch

from nearkin import cli, ranks
from nearkin.errors import DataError, notice


@pytest.fixture
def stopped(nearkin, monkeypatch):
    """Run a command that ends with an error."""

    def call(error):
        def command():
            raise error

        monkeypatch.setattr(cli, "app", command)
        return nearkin()

    return call


def test_an_interrupt_is_one_word_and_the_code_of_the_signal(stopped):
    assert stopped(KeyboardInterrupt()) == (130, "", "interrupted\n")


def test_a_reader_that_has_seen_enough_is_no_error(stopped):
    assert stopped(BrokenPipeError(errno.EPIPE, "Broken pipe")) == (0, "", "")


def test_a_command_that_needs_torch_says_so_without_it(stopped):
    code, out, err = stopped(ModuleNotFoundError("No module named 'torch'", name="torch"))
    assert (code, out) == (4, "")
    assert err == "error: this command needs torch, which is not installed here: pip install torch\n"


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
    monkeypatch.setattr(cli, "_is_one_of_several", lambda: True)
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
    code, out, said = nearkin("losses")
    assert (code, out) == (2, "")
    assert said.startswith("error: WORLD_SIZE must be the number of processes")
