"""What it does as a process is tested in test_starter.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nearkin.studies.ready_process import IMPORTED
from nearkin.studies.starter import Starter


def test_what_is_imported_beforehand_leaves_the_gpu_alone():
    """A process that has spoken to CUDA cannot be forked into one that does."""
    code = "; ".join(f"import {name}" for name in (*IMPORTED, "torch")) + "; print(torch.cuda.is_initialized())"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["False"]


@pytest.mark.gpu
def test_a_job_can_use_the_gpu(tmp_path, monkeypatch):
    (tmp_path / "a_job.py").write_text("import torch; print(float(torch.ones(3, device='cuda').sum()))")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    log = tmp_path / "log"
    with Starter(at_once=1) as starter:
        assert starter.start(["-m", "a_job"], log).wait() == 0, log.read_text()
    assert log.read_text().split() == ["3.0"]
