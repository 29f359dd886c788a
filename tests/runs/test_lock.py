"""One writer at a time, and no lock that outlives its process."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from nearkin.disk import sole_writer_of
from nearkin.errors import BusyError, OutputError

HOLD = """
import sys, time
from pathlib import Path
from nearkin.disk import sole_writer_of
with sole_writer_of(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(120)
"""


def test_the_second_process_is_told_of_the_first_and_a_killed_one_holds_nothing(tmp_path):
    folder = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n"
            told = rf"run .*process {process.pid} since 20\d\d-"
            for _ in range(2):  # a refused attempt changes nothing
                with (
                    pytest.raises(BusyError, match=told),
                    sole_writer_of(folder),
                ):
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


def test_where_nothing_can_be_written_it_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"), sole_writer_of(tmp_path / "file" / "run"):
        pass
