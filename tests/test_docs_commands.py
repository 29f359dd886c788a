"""Every command that the documentation shows gets as far as the work that it asks for, and what is cheap is done."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import re
import shlex
import shutil
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from PIL import Image
from tests.conftest import write_photos
from tests.test_docs import PAGES, ROOT, every_command
from torch.distributed.run import get_args_parser
from typer.main import get_command

import nearkin
from nearkin import losses
from nearkin.cli import app
from nearkin.errors import NearkinError
from nearkin.report.listings import list_keys
from nearkin.training import methods
from nearkin.training.recipes import load_recipe

BLOCK = re.compile(r"^ *```(\S*).*?\n(.*?)^ *```", flags=re.S | re.M)
RECIPE = re.compile(r"^```yaml\n# (\S+): nearkin train \1\n(.*?)^```", flags=re.S | re.M)
SHELL = ("", "sh", "bash", "shell", "console")
PROGRAMS = ("nearkin", "python", "python3", "torchrun", "make", "pip", "curl", "git")
KEYS = {each["name"] for each in list_keys().records}
GROUP = get_command(app)
PARTS = {"objective": losses.catalogue(), "method": methods.catalogue()}


def without_folder(word):
    return word.removeprefix(".venv/bin/")


def shell_blocks(text):
    """The lines of every shell block, those that a backslash joins as one; not of blocks such as a tree of files."""
    for language, block in BLOCK.findall(text):
        lines = [line.strip() for line in block.replace("\\\n", " ").splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        if language in SHELL and any(is_known(line) for line in lines):
            yield lines


def is_known(line):
    return without_folder(line.split()[0]) in PROGRAMS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shell_blocks_have_commands_in_every_line(page):
    unknown = [line for lines in shell_blocks(page.read_text(encoding="utf-8")) for line in lines if not is_known(line)]
    assert not unknown


def words_of(line):
    """As a shell would read them, without a comment and without where the output goes."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="<>|&;")
    lexer.whitespace_split = True
    words = list(lexer)
    if ">" in words:
        words = words[: words.index(">")]
    return [without_folder(words[0]), *words[1:]]


def is_abbreviated(line):
    return "…" in line or "(as " in line


def shown():
    for page in PAGES:
        for line in chain.from_iterable(shell_blocks(page.read_text(encoding="utf-8"))):
            # What is said behind an abbreviated line is no part of it.
            yield page, line if not is_abbreviated(line) else re.sub(r"\(as .*", "", line)


SHOWN = list(shown())
NEARKIN = []
for page, line in SHOWN:
    words = words_of(line)
    if words[0] == "torchrun":
        words = words[words.index("-m") + 1 :] if "-m" in words else words
    if words[0] == "nearkin":
        NEARKIN.append((page, line, words[1:]))


def command_of(words):
    """The command, and the words behind its name."""
    assert words[0] in GROUP.commands, f"no command {words[0]}"
    command, rest = GROUP.commands[words[0]], words[1:]
    if hasattr(command, "commands"):  # without one of its own words it adds
        named = bool(rest) and rest[0] in command.commands
        command, rest = command.commands[rest[0] if named else "add"], rest[1:] if named else rest
    return command, rest


ADDED = ("hinge", "damped", "fewer", "shells", "All@4", "--engine plain")
"""Parts that a page has its reader add; tests/contracts/test_adding.py does so."""


def check_options_and_keys(words):
    command, rest = command_of(words)
    known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    given = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
    assert given <= known, f"nearkin {words[0]} has no {', '.join(given - known)}"
    for word in rest:
        if (found := re.match(r"([a-z]+\.[a-z_0-9]+)=", word)) and not any(part in " ".join(words) for part in ADDED):
            assert is_key(found[1]), f"{found[1]} is no key of a recipe"


def is_key(key):
    section, name = key.split(".")
    of_parts = PARTS.get(section, {}).values()
    return key in KEYS or name == "name" or any(name in losses.options(part) for part in of_parts)


class Reached(Exception):
    """The command has understood its line, and would begin to work."""


WORK = (
    *("runs.run.run", "runs.final.train_final", "runs.evaluate.evaluate_run", "runs.evaluate.evaluate_backbone"),
    *("runs.embed.embed_files", "runs.export.export", "runs.model.load", "index.Index.open"),
)


@pytest.fixture(scope="module")
def whole_package():
    """Every module, before a function is replaced: one that is imported only then would keep what it finds."""
    for module in pkgutil.walk_packages(nearkin.__path__, "nearkin."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ModuleNotFoundError):  # what needs an extra, or a GPU's compiler
                importlib.import_module(module.name)


@pytest.fixture
def understood(whole_package, monkeypatch, tmp_path):
    """Whether a command line gets to its work, or is done without any."""

    def reached(*_, **__):
        raise Reached

    for name in WORK:
        monkeypatch.setattr(f"nearkin.{name}", reached)
    for name in ("compare", "mlrc", "tune", "study", "reproduce"):  # the package shows their functions by these names
        monkeypatch.setattr(sys.modules[f"nearkin.cli.{name}"], "run_study", reached)
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (400, 300)).save("query.jpg")  # of a crop the image is opened first

    def call(words):
        for file in re.findall(r"[\w.-]+\.safetensors", " ".join(words)):
            Path(file).touch()
        try:
            GROUP(words, standalone_mode=False)
        except Reached:
            return True
        return False

    return call


OF_RUNS = {"plot", "report", "table"}
"""They read runs first of all, which are not here; those of the README are done below."""


@pytest.mark.parametrize(
    "line, words",
    [(line, words) for _, line, words in NEARKIN],
    ids=lambda each: " ".join(each)[:70] if isinstance(each, list) else "",
)
def test_a_command_is_understood_as_it_is_shown(line, words, understood):
    assert not [word for word in words if set(word) <= set("<>|&;")], f"quote it, or the shell reads it: {line}"
    check_options_and_keys(words)
    if is_abbreviated(line) or words[0] in OF_RUNS or any(part in line for part in ADDED):
        return
    assert understood(words) or words in (["reproduce"], ["cache"], ["datasets"])  # which say what there is


@pytest.mark.parametrize(
    "line",
    [
        "train glyphs/dmo",
        "train glyphs/demo training.epoch=3",
        "train glyphs/demo objective.tau=1",
        "trian glyphs/demo",
        "compare --data cub --rows nonsense",
        "search birds.index --bogus",
        "reproduce ccp/table-99",
        "index add birds.index",
    ],
)
def test_a_wrong_command_would_be_found(line, understood):
    def check():
        check_options_and_keys(line.split())
        assert understood(line.split())

    with pytest.raises((AssertionError, NearkinError)):
        check()


INLINE = [
    pytest.param(words_of(text)[1:], id=f"{page.name}-{text[:60]}")
    for page in PAGES
    for text in re.findall(r"`(nearkin [^`]+)`", BLOCK.sub("", page.read_text(encoding="utf-8")))
    if "…" not in text and not text.startswith("nearkin COMMAND")
]


@pytest.mark.parametrize("words", INLINE)
def test_a_command_in_running_text_exists_with_its_options_and_keys(words):
    check_options_and_keys(words)


def test_recipes_that_are_shown_can_be_read(tmp_path):
    own = [found for page in PAGES for found in RECIPE.findall(page.read_text(encoding="utf-8"))]
    assert own
    for name, recipe in own:
        (tmp_path / name).write_text(recipe, encoding="utf-8")
        assert load_recipe(tmp_path / name)


def test_options_and_keys_in_running_text_exist():
    options = {flag for _, command in every_command(GROUP) for p in command.params for flag in p.opts}
    options |= {flag for _, command in every_command(GROUP) for p in command.params for flag in p.secondary_opts}
    options |= {flag for action in get_args_parser()._actions for flag in action.option_strings}
    options |= set(
        re.findall(r'"(--[a-z-]+)"', "".join(file.read_text() for file in (ROOT / "benchmarks").glob("*.py")))
    )
    for page in PAGES:
        for code in re.findall(r"`([^`\n]+)`", BLOCK.sub("", page.read_text(encoding="utf-8"))):
            if re.match(r"--[a-z]", code):
                assert {word.split("=")[0] for word in code.split() if word.startswith("--")} <= options, (
                    page.name,
                    code,
                )
            for key in re.findall(r"\b((?:data|encoder|training|protocol|objective|method)\.[a-z_0-9]+)=", code):
                assert is_key(key), f"{page.name}: {code}"
            if re.fullmatch(r"(data|encoder|training|protocol)\.[a-z_0-9]+", code) and code != "encoder.safetensors":
                assert is_key(code), f"{page.name}: {code}"


def test_scripts_targets_extras_and_addresses_that_are_shown_exist():
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.M))
    routes = "".join(file.read_text() for file in (ROOT / "src/nearkin/serving").glob("*.py"))
    for page, line in SHOWN:
        program, *words = words_of(line)
        told = f"{page.name}: {line}"
        if program == "make":
            for word in words:
                name, given, _ = word.partition("=")
                assert f"$({name})" in makefile if given else word in targets, told
        for word in words if program == "pip" else ():
            for named in re.findall(r"\[(.+)\]", word):
                assert set(named.split(",")) <= extras, told
        if program == "torchrun":
            get_args_parser().parse_args([word for word in words if "…" not in word])
        if program == "python" and words[0] != "-m":
            script = (ROOT / words[0]).read_text(encoding="utf-8")
            assert {word for word in words if word.startswith("--")} <= set(re.findall(r'"(--[a-z-]+)"', script)), told
        if program == "curl":
            (path,) = re.findall(r"https?://[^/ ]+(/[a-z.]+)", line)
            assert f'"{path}"' in routes, told


# What follows is done for real, in a folder as the pages take it for granted, with an encoder that has learned nothing.

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
)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """Photos with a year each, a query, and runs of the names that the pages use."""
    from nearkin.runs.folder import RunFolder
    from nearkin.runs.run import run

    folder = tmp_path_factory.mktemp("workshop")
    for name, kinds in (
        ("photos", ("tit", "robin", "wren", "owl", "kite")),
        ("other_photos", ("a", "b")),
        ("more_photos", ("c",)),
    ):
        write_photos(folder / name, kinds=kinds)
    files = sorted((folder / "photos").glob("*/*"))
    for name, file in (("query.jpg", files[0]), ("other.jpg", files[-1])):
        Image.open(file).resize((400, 300)).save(folder / name)
    rows = [f"{file.relative_to(folder)},{file.parent.name},{2015 + number % 8}" for number, file in enumerate(files)]
    (folder / "years.csv").write_text("path,label,year\n" + "\n".join(rows), encoding="utf-8")
    tiny = [
        "data.image_size=32",
        "encoder.dim=64",
        "training.max_steps=1",
        "training.batch_size=8",
        "data.shorter_side=48",
    ]
    tiny += ["training.epochs=1", "data.workers=1", "training.device=cpu", f"data.source={folder / 'photos'}"]
    recipe = load_recipe("own_photos/small", tiny)
    run(recipe, RunFolder(folder / "runs" / "photos"))
    run(recipe.with_changes({"training.seed": 1}), RunFolder(folder / "runs" / "better"))
    for name in ("a", "b", "c", "photos-final"):
        shutil.copytree(folder / "runs" / "photos", folder / "runs" / name)
    return folder


TO_DO = {
    str(page.relative_to(ROOT)): [
        (line, words)
        for each, line, words in NEARKIN
        if each == page and words[0] in CHEAP and not any(left in line for left in (*LEFT_OUT, *ADDED, "…"))
    ]
    for page in PAGES
}
SLOW = {"docs/export.md", "docs/own_photos.md"}
"""Writing ONNX files takes its time."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name, asked in TO_DO.items() if asked],
)
def test_what_is_cheap_is_done(page, workshop, tmp_path, monkeypatch, nearkin):
    shutil.copytree(workshop, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    if any("year" in line for line, _ in TO_DO[page]):  # which only a manifest has
        code, _, err = nearkin("index", "runs/photos", "years.csv", "-o", "birds.index")
        assert code == 0, err
    for line, words in TO_DO[page]:
        code, out, err = nearkin(*words)
        assert code == 0, f"{line}\n{out}\n{err}"
