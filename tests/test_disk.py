"""A disk that is full or must not be written to: one line, nothing lost, nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nearkin.disk import check_room, check_writable, remove_leftovers, write_atomically
from nearkin.errors import OutputError
from nearkin.report import listings

QUICK = ["encoder.backbone=small", "encoder.weights=null", "encoder.dim=4", "data.image_size=16", "training.device=cpu"]


@pytest.fixture
def fail(monkeypatch):
    """Make a function of a module fail as a disk does, for paths that end in one of ``names``."""

    def set_failure(module, function, number, *names):
        genuine = getattr(module, function)

        def failing(path, *arguments, **options):
            if not names or str(path).endswith(names):
                raise OSError(number, os.strerror(number), str(path))
            return genuine(path, *arguments, **options)

        monkeypatch.setattr(module, function, failing)

    return set_failure


def test_a_small_need_is_not_called_nothing(tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"MB free, 0\.1 MB needed"):
        write_atomically(tmp_path / "file", b"a few bytes")


def test_a_file_that_does_not_fit_leaves_the_old_one_and_no_temporary(tmp_path, fail):
    file = tmp_path / "scores.json"
    write_atomically(file, b"old")
    fail(os, "fsync", errno.ENOSPC)
    with pytest.raises(OutputError, match=r"scores\.json: No space left on device \(.* MB free, 3\.0 MB needed\)"):
        write_atomically(file, bytes(3_000_000))
    assert [path.name for path in tmp_path.iterdir()] == ["scores.json"]
    assert file.read_bytes() == b"old"


def test_threads_that_write_the_same_file_do_not_mix(tmp_path):
    contents = [bytes([number]) * 200_000 for number in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda content: write_atomically(tmp_path / "file", content), contents * 5))
    assert (tmp_path / "file").read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_leftovers_of_a_killed_process_go_and_other_files_stay(tmp_path):
    program = """
import os, pathlib, signal, sys
from nearkin.disk import replacing
with replacing(pathlib.Path(sys.argv[1]) / "last.pt") as file:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program, tmp_path], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / ".notes.tmp").touch()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".notes.tmp"]


def test_a_folder_is_looked_at_before_the_work(tmp_path, monkeypatch):
    check_writable(tmp_path / "not" / "yet")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    check_room(tmp_path / "not" / "yet", 1, "anything")
    with pytest.raises(OutputError, match=r"no room for checkpoints in .*: about .* MB are needed and .* MB are free"):
        check_room(tmp_path, 10**18, "checkpoints")


def test_a_run_that_would_not_fit_is_refused_before_training(nearkin, photos, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 100_000))
    code, _, err = nearkin("train", "--data", photos, "-o", tmp_path / "runs" / "run", *QUICK)
    assert code == 3
    assert "no room for the checkpoints in" in err
    assert "0.1 MB are free" in err
    assert not (tmp_path / "runs").exists()


def test_a_disk_that_fills_up_in_the_midst_costs_nothing_but_time(nearkin, photos, tmp_path, fail, monkeypatch):
    command = ["train", "--data", photos, "-o", tmp_path / "run", *QUICK, "training.epochs=2", "--no-figure"]
    with monkeypatch.context() as patch:
        written = []
        genuine = os.replace

        def fills(source, target):
            written.append(Path(target).name)
            if written.count("last.pt") == 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            genuine(source, target)

        patch.setattr(os, "replace", fills)
        code, _, err = nearkin(*command)
    assert code == 3
    assert "last.pt: No space left on device" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert list(tmp_path.rglob("*.tmp")) == []
    (tmp_path / "run" / "checkpoints" / ".last.pt.999999999.tmp").write_bytes(b"of a process killed while it wrote")
    code, _, err = nearkin(*command, "--resume")
    assert code == 0, err
    assert list(tmp_path.rglob("*.tmp")) == []
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["epochs"] == 2


@pytest.mark.parametrize("command", ["train", "report", "plot", "compare", "mlrc"])
def test_a_read_only_folder_is_one_line(nearkin, photos, tmp_path, monkeypatch, command):
    if command in ("report", "plot"):
        assert nearkin("train", "--data", photos, "-o", tmp_path / "run", *QUICK, "training.max_steps=1")[0] == 0
    before = sorted(path for path in (tmp_path / "run").rglob("*"))

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(Path, "touch", refuse)
    if command in ("report", "plot"):
        code, _, err = nearkin(command, tmp_path / "run")
    else:
        rows = {"compare": ["--rows", "proxy_anchor", "--seeds", 1], "mlrc": ["protocol.folds=2"]}.get(command, [])
        code, _, err = nearkin(command, "--data", photos, "-o", tmp_path / "run", *rows, *QUICK, "training.max_steps=1")
    assert code == 3, err
    assert "Read-only file system" in err
    assert "Traceback" not in err
    assert sorted(path for path in (tmp_path / "run").rglob("*")) == before


def test_what_the_disk_says_anywhere_else_is_one_line_too(nearkin, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "some/file.png")

    monkeypatch.setitem(listings.LISTINGS, "losses", full)
    code, _, err = nearkin("list", "losses")
    assert code == 3
    assert "cannot write some/file.png: No space left on device" in err
    monkeypatch.setitem(listings.LISTINGS, "losses", lambda: {}["a bug"])
    with pytest.raises(KeyError):
        nearkin("list", "losses")
