"""One writer at a time, and no lock that outlives its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from nearkin.errors import BusyError, OutputError
from nearkin.runs import lock
from nearkin.runs.lock import sole_writer_of

HOLD = """
import sys, time
from pathlib import Path
from nearkin.runs import lock
if sys.argv[2] == "without":
    lock.fcntl = None
with lock.sole_writer_of(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(120)
"""


@pytest.mark.parametrize("kernel", ["with", "without"])
def test_the_second_process_is_told_of_the_first_and_a_killed_one_holds_nothing(tmp_path, monkeypatch, kernel):
    if kernel == "without":
        monkeypatch.setattr(lock, "fcntl", None)
    folder = tmp_path / "run"
    command = [sys.executable, "-c", HOLD, str(folder), kernel]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n"
            said = rf"run is being written by process {process.pid} since 20\d\d-.*: wait until it has ended"
            with pytest.raises(BusyError, match=said), sole_writer_of(folder):
                pytest.fail("two processes hold one folder")
        finally:
            process.send_signal(signal.SIGKILL)
    with sole_writer_of(folder):
        (folder / "mine").touch()
    with sole_writer_of(folder):
        pass
    assert (folder / "mine").exists()


def test_a_folder_that_stays_empty_is_taken_away_again_and_others_are_not(tmp_path):
    (tmp_path / "there").mkdir()
    with sole_writer_of(tmp_path / "runs" / "a"), sole_writer_of(tmp_path / "there"):
        assert (tmp_path / "runs" / "a").is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_lock_file_that_was_taken_away_meanwhile_is_made_anew(tmp_path, monkeypatch):
    genuine, opened = lock._locked, []

    def after_another_has_left(file, folder):
        opened.append(os.fstat(file.fileno()).st_ino)
        if len(opened) == 1:
            (folder / lock.NAME).unlink()
        return genuine(file, folder)

    monkeypatch.setattr(lock, "_locked", after_another_has_left)
    (tmp_path / "kept").touch()
    with sole_writer_of(tmp_path):
        assert len(opened) == 2
        assert (tmp_path / lock.NAME).stat().st_ino == opened[1]


def test_a_file_system_without_locks_gets_the_name_of_the_process(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with sole_writer_of(tmp_path / "run"):
        assert (tmp_path / "run" / lock.PROCESS_NAME).exists()
        with pytest.raises(BusyError, match=f"process {os.getpid()}"), sole_writer_of(tmp_path / "run"):
            pass
    assert not (tmp_path / "run").exists()


def test_where_nothing_can_be_written_it_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot write .*Give a folder"), sole_writer_of(tmp_path / "file" / "run"):
        pass
