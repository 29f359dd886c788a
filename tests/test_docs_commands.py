"""The commands that the documentation shows have options, keys and recipes that exist; those that are cheap are run."""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib

import pytest
from PIL import Image
from tests.conftest import write_photos
from tests.test_docs import PAGES, ROOT
from typer.main import get_command

from nearkin import losses
from nearkin.cli import app
from nearkin.report.listings import list_keys
from nearkin.training import methods
from nearkin.training.recipe_check import load_recipe

BLOCK = re.compile(r"^ *```(\S*).*?\n(.*?)^ *```", flags=re.S | re.M)
RECIPE = re.compile(r"^```yaml\n# (\S+): nearkin train \1\n(.*?)^```", flags=re.S | re.M)
SHELL = ("", "sh", "bash", "shell", "console")
PROGRAMS = ("nearkin", "python", "torchrun", "make", "pip")
KEYS = {record["name"] for record in list_keys().records}
GROUP = get_command(app)
PARTS = {"objective": losses.catalogue(), "method": methods.catalogue()}
ADDED = ("hinge", "damped", "fewer", "shells", "All@4", "--engine plain")
"""Parts that a page has its reader add; tests/contracts/test_adding.py does so."""


def commands_of(page):
    """The lines of a page's shell blocks as words, without comments and redirections."""
    for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines() if language in SHELL else ():
            line = line.strip().removeprefix(".venv/bin/")
            if line.split() and line.split()[0] in PROGRAMS:
                lexer = shlex.shlex(line, posix=True, punctuation_chars="<>|&;")
                lexer.whitespace_split = True
                words = list(lexer)
                yield line, words[: words.index(">")] if ">" in words else words


def nearkin_commands(page):
    """The commands of nearkin on a page, also behind torchrun."""
    for line, words in commands_of(page):
        if words[0] == "torchrun" and "-m" in words:
            words = words[words.index("-m") + 1 :]
        if words[0] == "nearkin":
            yield line, words[1:]


def is_key(key):
    section, name = key.split(".")
    of_parts = PARTS.get(section, {}).values()
    return key in KEYS or name == "name" or any(name in losses.options(part) for part in of_parts)


def check(words):
    """A command, its options, keys and recipe exist."""
    assert words[0] in GROUP.commands, f"no command {words[0]}"
    command, rest = GROUP.commands[words[0]], words[1:]
    if hasattr(command, "commands"):  # without one of its own words it adds
        named = bool(rest) and rest[0] in command.commands
        command, rest = command.commands[rest[0] if named else "add"], rest[1:] if named else rest
    known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    given = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
    assert given <= known, f"nearkin {words[0]} has no {', '.join(given - known)}"
    assert not [word for word in words if set(word) <= set("<>|&;")], "quote it, or the shell reads it"
    if any(part in " ".join(words) for part in ADDED):
        return
    keys = [match[1] for word in rest if (match := re.match(r"([a-z]+\.[a-z_0-9]+)=", word))]
    assert not [key for key in keys if not is_key(key)]
    names_a_run = bool({"--resume", "--finish"} & set(rest))
    if words[0] == "train" and not names_a_run and re.match(r"[a-z_]+/[a-z_0-9]+$", rest[0] if rest else ""):
        load_recipe(rest[0], [word for word in rest if "=" in word and not word.startswith("-")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_shown_exist_with_their_options_and_keys(page):
    shown = [(line, words) for line, words in nearkin_commands(page) if "…" not in line and "(as " not in line]
    inline = re.findall(r"`nearkin ([^`]+)`", BLOCK.sub("", page.read_text(encoding="utf-8")))
    shown += [
        (text, shlex.split(text.partition(" > ")[0]))
        for text in inline
        if "…" not in text and not text.startswith("COMMAND")
    ]
    wrong = []
    for line, words in shown:
        try:
            check(words)
        except Exception as error:
            wrong.append(f"{line}: {error}")
    assert not wrong


@pytest.mark.parametrize(
    "line",
    ["train glyphs/dmo", "train glyphs/demo training.epoch=3", "trian glyphs/demo", "search birds.index --bogus"],
)
def test_a_wrong_command_would_be_found(line):
    with pytest.raises(Exception):  # noqa: B017
        check(line.split())


def test_recipes_that_are_shown_can_be_read(tmp_path):
    shown = [recipe for page in PAGES for recipe in RECIPE.findall(page.read_text(encoding="utf-8"))]
    assert shown
    for name, recipe in shown:
        (tmp_path / name).write_text(recipe, encoding="utf-8")
        assert load_recipe(tmp_path / name)


def test_scripts_targets_and_extras_that_are_shown_exist():
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for page in PAGES:
        for line, (program, *words) in commands_of(page):
            if program == "make":
                assert {word for word in words if "=" not in word} <= targets, f"{page.name}: {line}"
            if program == "pip":
                named = {name for word in words for found in re.findall(r"\[(.+)\]", word) for name in found.split(",")}
                assert named <= extras, f"{page.name}: {line}"
            if program == "python" and words[0].endswith(".py"):
                assert (ROOT / words[0]).is_file(), f"{page.name}: {line}"


# What follows is run, in a folder as the pages presume it, with an encoder that has learned nothing.

CHEAP = (
    "index",
    "search",
    "classify",
    "duplicates",
    "cluster",
    "export",
    "embed",
    "evaluate",
    "plot",
    "report",
    "table",
)
LEFT_OUT = (
    "--engine postgresql",
    "--engine http",
    "--backbone",
    "runs/cub",
    "RUN",
    "manifest.csv",
    "--only uncertainty",
    *ADDED,
    "…",
)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """Photos with a year each, a query, and runs of the names that the pages use."""
    from nearkin.runs.folder import RunFolder
    from nearkin.runs.run import run

    folder = tmp_path_factory.mktemp("workshop")
    classes = {"photos": ("tit", "robin", "wren", "owl", "kite"), "other_photos": ("a", "b"), "more_photos": ("c",)}
    for name, names in classes.items():
        write_photos(folder / name, kinds=names)
    files = sorted((folder / "photos").glob("*/*"))
    for name, file in (("query.jpg", files[0]), ("other.jpg", files[-1])):
        Image.open(file).resize((400, 300)).save(folder / name)
    rows = [f"{file.relative_to(folder)},{file.parent.name},{2015 + number % 8}" for number, file in enumerate(files)]
    (folder / "years.csv").write_text("path,label,year\n" + "\n".join(rows), encoding="utf-8")
    tiny = ["data.image_size=32", "encoder.dim=64", "training.max_steps=1", "training.batch_size=8"]
    tiny += ["data.shorter_side=48", "training.epochs=1", "data.workers=1", "training.device=cpu"]
    recipe = load_recipe("own_photos/small", [*tiny, f"data.source={folder / 'photos'}"])
    run(recipe, RunFolder(folder / "runs" / "photos"))
    run(recipe.with_changes({"training.seed": 1}), RunFolder(folder / "runs" / "better"))
    for name in ("a", "b", "c", "photos-final"):
        shutil.copytree(folder / "runs" / "photos", folder / "runs" / name)
    return folder


TO_RUN = {
    str(page.relative_to(ROOT)): [
        words
        for line, words in nearkin_commands(page)
        if words[0] in CHEAP and not any(left in line for left in LEFT_OUT)
    ]
    for page in PAGES
}
SLOW = {"docs/export.md", "docs/own_photos.md"}
"""Writing ONNX files takes its time."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name, asked in TO_RUN.items() if asked],
)
def test_cheap_commands_run(page, workshop, tmp_path, monkeypatch, nearkin):
    shutil.copytree(workshop, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    # Figures take most of the time of plots and reports, and have their own tests.
    monkeypatch.setattr("nearkin.report.page.plot_names", lambda: ["curves"])
    if any("year" in word for words in TO_RUN[page] for word in words):  # which only a manifest has
        code, _, err = nearkin("index", "runs/photos", "years.csv", "-o", "birds.index")
        assert code == 0, err
    for words in TO_RUN[page]:
        code, out, err = nearkin(*words)
        assert code == 0, f"{' '.join(words)}\n{out}\n{err}"
