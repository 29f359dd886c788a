"""What the documentation says is run: its Python, and the pages that are read off the code; commands have a file."""

from __future__ import annotations

import importlib.util
import re
import textwrap
from pathlib import Path

import pytest
from typer.main import get_command

from nearkin.cli import app
from nearkin.report.listings import list_keys

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts),
    *sorted((ROOT / "results" / "notes").glob("*.md")),
]


def blocks(language):
    for page in PAGES:
        for number, code in enumerate(re.findall(rf"```{language}\n(.*?)^ *```", page.read_text(), flags=re.S | re.M)):
            yield pytest.param(code, id=f"{page.name}-{number}")


@pytest.mark.parametrize("code", list(blocks("python")))
def test_python_blocks_run(code):
    names: dict[str, object] = {}
    exec(compile(textwrap.dedent(code), "<documentation>", "exec"), names)
    assert names


def anchors(page):
    """The headings of a page as a git viewer names them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M), flags=re.M)
    return {re.sub(r"[^\w\s-]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
        if "://" not in target:
            path = page.parent / target if target else page
            assert path.exists(), target
            if anchor and path.suffix == ".md":
                assert anchor in anchors(path), f"{target}#{anchor}"


@pytest.mark.parametrize(
    ("what", "page"),
    [
        ("losses", "losses"),
        ("methods", "methods"),
        ("backbones", "backbones"),
        ("scores", "scores"),
        ("plots", "plots"),
        ("recipes", "recipes"),
        ("keys", "recipe_keys"),
    ],
)
def test_pages_that_are_read_off_the_files_are_what_the_command_prints(nearkin, what, page):
    code, out, err = nearkin("list", what, "--markdown")
    assert code == 0, err
    held = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert held == out, f"run: nearkin list {what} --markdown > docs/{page}.md"


def every_command(group, words=()):
    for name, command in group.commands.items():
        yield (*words, name), command
        if hasattr(command, "commands"):
            yield from every_command(command, (*words, name))


def test_the_page_of_commands_is_what_the_application_has():
    spec = importlib.util.spec_from_file_location("write_commands", ROOT / "docs" / "write_commands.py")
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    held = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert held == writer.page(), "run: python docs/write_commands.py > docs/commands.md"
    for words, command in every_command(get_command(app)):
        (section,) = re.findall(rf"^## `nearkin {' '.join(words)}`\n(.*?)(?=^## )", held, flags=re.M | re.S)
        for parameter in command.params:
            for flag in parameter.opts if parameter.param_type_name == "option" else ():
                assert f"`{flag}`" in section


@pytest.mark.parametrize("words, command", list(every_command(get_command(app))), ids=lambda each: str(each)[:40])
def test_commands_arguments_and_options_say_what_they_are(words, command):
    assert command.help
    for parameter in command.params:
        assert len(parameter.help or "") > 5, f"nearkin {' '.join(words)}: {parameter.opts}"


def test_keys_of_a_recipe_say_what_they_are():
    unsaid = [each["name"] for each in list_keys().records if len(each["meaning"] or "") <= 5]
    assert not unsaid, f"a docstring below each in recipe/recipe.py: {unsaid}"
