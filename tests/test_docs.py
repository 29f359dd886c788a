"""What the documentation says is run."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from typer.main import get_command

from nearkin.cli import app
from nearkin.recipe import Recipe

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language):
    for page in PAGES:
        for number, code in enumerate(re.findall(rf"```{language}\n(.*?)^ *```", page.read_text(), flags=re.S | re.M)):
            yield pytest.param(code, id=f"{page.name}-{number}")


@pytest.mark.parametrize("code", list(blocks("python")))
def test_python_blocks_run(code):
    names: dict[str, object] = {}
    exec(compile(textwrap.dedent(code), "<documentation>", "exec"), names)
    assert names


def commands():
    for page in PAGES:
        shown = "".join(re.findall(r"```\n(.*?)```", page.read_text(), flags=re.S))
        for line in re.findall(r"^(?:\.venv/bin/)?nearkin (.*)$", shown, flags=re.M):
            yield pytest.param(line.split("#")[0].split(), id=line[:60])


@pytest.mark.parametrize("words", list(commands()))
def test_commands_exist_with_the_options_shown(words):
    command = get_command(app).commands[words[0]]
    if words[0] == "index":  # without one of its own words it adds
        command = command.commands.get(words[1], command.commands["add"])
    options = {flag for parameter in command.params for flag in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= options
    if words[0] == "train" and "=" not in words[1] and not words[1].startswith("-"):
        assert Recipe.load(words[1], [word for word in words[2:] if "=" in word])


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize(
    ("command", "page"),
    [
        ("losses", "losses"),
        ("methods", "methods"),
        ("backbones", "backbones"),
        ("scores", "scores"),
        ("plots", "plots"),
        ("recipes", "recipes"),
        ("study", "studies"),
    ],
)
def test_pages_that_are_read_off_the_files_are_what_the_command_prints(nearkin, command, page):
    code, out, err = nearkin(command, "--markdown")
    assert code == 0, err
    held = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert held == out, f"run: nearkin {command} --markdown > docs/{page}.md"
