"""Jobs of a small module of the test's own, which shows what a job sees and how it ends."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from nearkin.errors import NearkinError
from nearkin.studies import starter as starting
from nearkin.studies.starter import Starter

JOB = """
import os, signal, sys, time
what = sys.argv[1]
print("job", sys.argv[1:], __name__, os.environ["OMP_NUM_THREADS"], "torch" in sys.modules, flush=True)
print("to stderr", file=sys.stderr, flush=True)
assert sys.stdin.read() == ""
if what == "code":
    sys.exit(5)
if what == "dies":
    signal.raise_signal(signal.SIGKILL)
if what == "raises":
    raise ValueError("it broke")
if what == "waits":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    print("ready", flush=True)
    time.sleep(60)
"""

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal on this system")
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="jobs are forked on Linux only")


@pytest.fixture(params=[pytest.param("forked", marks=ON_LINUX), "new process"])
def way(request, tmp_path, monkeypatch):
    (tmp_path / "a_job.py").write_text(JOB)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if request.param == "new process":
        monkeypatch.setattr(starting, "PYTHON", (sys.executable, "-B"))
    return request.param


def test_a_job_does_as_python_would(way, tmp_path):
    logs = {what: tmp_path / "logs" / f"{what}.log" for what in ("fine", "code", "dies", "raises")}
    with Starter(at_once=10_000) as starter:
        jobs = {what: starter.start(["-m", "a_job", what, "ü"], log) for what, log in logs.items()}
        codes = {what: job.wait() for what, job in jobs.items()}
        assert {what: job.poll() for what, job in jobs.items()} == codes
        jobs["fine"].terminate()  # has ended: nothing happens
    assert codes == {"fine": 0, "code": 5, "dies": -signal.SIGKILL, "raises": 1}
    for what, log in logs.items():
        first, second, *_ = log.read_text(encoding="utf-8").splitlines()
        assert first == f"job {[what, 'ü']} __main__ 1 {way == 'forked'}"
        assert second == "to stderr"
    assert "ValueError: it broke" in logs["raises"].read_text()


def test_a_job_is_asked_to_stop_and_a_deaf_one_is_killed(way, tmp_path):
    with Starter(at_once=2) as starter:
        asked, killed = (starter.start(["-m", "a_job", "waits"], tmp_path / f"{n}.log") for n in range(2))
        for n in range(2):
            until(lambda n=n: "ready" in (tmp_path / f"{n}.log").read_text())
        assert asked.poll() is None
        asked.terminate()
        killed.kill()
        assert (asked.wait(), killed.wait()) == (130, -signal.SIGKILL)


@ON_LINUX
def test_where_the_ready_process_dies_its_jobs_have_ended_and_none_begins(tmp_path, monkeypatch):
    (tmp_path / "a_job.py").write_text(JOB)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    with Starter(at_once=2) as starter:
        job = starter.start(["-m", "a_job", "waits"], tmp_path / "log")
        starter._forks._process.kill()
        assert job.wait() == -signal.SIGKILL
        for _ in range(2):
            with pytest.raises(NearkinError, match="the same command goes on"):
                starter.start(["-m", "a_job", "fine"], tmp_path / "log")


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
