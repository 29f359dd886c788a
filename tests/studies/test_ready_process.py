"""What it does as a process is tested in test_starter.py."""

from __future__ import annotations

import subprocess
import sys

from nearkin.studies.ready_process import IMPORTED

CODE = """
{imports}
import torch
print(torch.cuda.is_initialized(), "libcuda.so" in open("/proc/self/maps").read())
"""


def test_what_is_imported_beforehand_leaves_the_gpu_alone():
    """A process that has spoken to CUDA cannot be forked into one that does."""
    code = CODE.format(imports="\n".join(f"import {name}" for name in IMPORTED))
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["False", "False"]
